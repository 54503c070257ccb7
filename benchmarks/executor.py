"""Programs a second through the sandbox, and what it adds to a program and to a primitive call, beside three others.

`python -m benchmarks.executor --smolagents-python .venv-smolagents/bin/python` prints a table and one JSON line. The
others: smolagents' `LocalPythonExecutor`, a fresh interpreter a program, and `exec` without any protection.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.executor_side import CALLS, PROGRAMS, SIDES
from benchmarks.report import common_arguments, headline, report
from benchmarks.sides import Measured, Side, SideError, take_turns
from rpl.core.progress import say

SLOW = {"subprocess": 10}
"""Sides that get this many times fewer programs, because each takes that much longer."""


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the table and the JSON line; returns the exit status."""
    args = parse(arguments)
    return report(args, "executor", lambda: measure(args), summarise, describe)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.executor", description=__doc__)
    common_arguments(parser)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["rpl", "smolagents", "subprocess", "exec"])
    parser.add_argument("--smolagents-python", metavar="FILE", help="the interpreter of smolagents' environment")
    parser.add_argument("--singles", type=int, default=300, help="programs of each kind, one after the other (300)")
    parser.add_argument("--batch", type=int, default=4_000, help="programs handed in at once (4000)")
    args = parser.parse_args(arguments)
    if "smolagents" in args.sides and not args.smolagents_python:
        parser.error("--smolagents-python is needed for the side smolagents")
    if args.quick:
        args.singles, args.batch, args.repeats, args.warmup = 20, 50, 1, 0
    return args


def measure(args: argparse.Namespace) -> dict[str, Measured]:
    """Runs all sides in turns."""
    say(f"starting {', '.join(args.sides)}")
    with ExitStack() as stack:
        sides = {}
        for name in args.sides:
            python = args.smolagents_python if name == "smolagents" else sys.executable
            share = SLOW.get(name, 1)
            sizes = ["--singles", str(max(1, args.singles // share)), "--batch", str(max(1, args.batch // share))]
            command = [python, "-m", "benchmarks.executor_side", name, "--turns", str(args.warmup + args.repeats)]
            sides[name] = stack.enter_context(Side(name, [*command, *sizes], 1))
        results = take_turns(sides, args.warmup, args.repeats)
    printed = {result.facts["printed"] for result in results.values()}
    if len(printed) > 1:
        raise SideError("the sides did not print the same; the comparison means nothing")
    return results


def summarise(args: argparse.Namespace, results: dict[str, Measured]) -> dict[str, Any]:
    """Builds the JSON line."""
    settings = {"singles": args.singles, "batch": args.batch, "calls": CALLS}
    line = headline("executor", settings) | {"n": args.repeats, "sides": {}}
    for name, result in results.items():
        keys = [*(f"{kind}_ms" for kind in PROGRAMS), "programs_per_s"]
        figures = {key: round(median(turn[key] for turn in result.turns), 4) for key in keys}
        per_call = (figures["calls_ms"] - figures["empty_ms"]) / CALLS
        line["sides"][name] = result.summary() | figures | {"call_ms": round(per_call, 4)}
    bare, own = line["sides"].get("exec"), line["sides"].get("rpl")
    if bare and own:
        line["overhead"] = {
            "program_ms": round(own["empty_ms"] - bare["empty_ms"], 4),
            "search_ms": round(own["search_ms"] - bare["search_ms"], 4),
            "call_ms": round(own["call_ms"] - bare["call_ms"], 4),
        }
    if own:
        line["ratios"] = {
            name: {
                "speed_search": round(other["search_ms"] / own["search_ms"], 3),
                "speed_search_new": round(other["search_new_ms"] / own["search_new_ms"], 3),
                "throughput": round(own["programs_per_s"] / other["programs_per_s"], 3),
            }
            for name, other in line["sides"].items()
            if name != "rpl"
        }
    return line


def describe(line: dict[str, Any]) -> Iterable[str]:
    """Puts the result into words."""
    yield f"{'side':<12}{'empty':>10}{'search':>10}{'new':>10}{'a call':>10}   programs/s"
    for name, side in line["sides"].items():
        times = (side["empty_ms"], side["search_ms"], side["search_new_ms"], side["call_ms"])
        yield f"{name:<12}" + "".join(f"{ms:>8.3f}ms" for ms in times) + f"{side['programs_per_s']:>13.0f}"
    if "overhead" in line:
        over = line["overhead"]
        yield (
            f"over exec: {over['program_ms']:.3f} ms for an empty program, {over['search_ms']:.3f} ms for one that "
            f"searches, {over['call_ms']:.3f} ms a primitive call"
        )
    for name, ratio in line.get("ratios", {}).items():
        yield (
            f"against {name}: {ratio['speed_search']:.2f}x as fast for one program, {ratio['speed_search_new']:.2f}x "
            f"where every text is new, {ratio['throughput']:.2f}x in programs a second"
        )


if __name__ == "__main__":
    sys.exit(main())
