"""Retrieval benchmarks: gathered dense calls against one search a call, and the BM25 server against others.

`programs`: the same programs, so many at a time, call `dense` in the sandbox; on one side concurrent calls are gathered
into one encoder and one index call, on the other each call is a search of its own. `service`: threads send requests to
a server of `rpl serve-retrieval`, to a server that answers one query after the other as Search-R1's does, and, where
pyserini is installed, the same queries go to its own batch search without any server. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from benchmarks.report import common_arguments, headline, options, report
from benchmarks.sides import Measured, Side, take_turns

SIDES = {"programs": ("gathered", "single"), "service": ("rpl", "one-by-one", "pyserini")}
OWN = {"programs": "gathered", "service": "rpl"}
SHAPE = ("corpus", "programs", "calls", "clients", "requests", "queries", "k")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=tuple(SIDES))
    common_arguments(parser)
    add = parser.add_argument
    add("--sides", nargs="+", help="default: all but pyserini")
    add("--corpus", default="atlas", help="atlas, atlas-mini or a corpus file")
    add("--programs", type=int, default=64, help="programs at a time (programs; default 64)")
    add("--calls", type=int, default=3, help="dense calls a program, one after the other (programs; default 3)")
    add("--clients", type=int, default=16, help="threads that send requests (service; default 16)")
    add("--requests", type=int, default=20, help="requests a thread (service; default 20)")
    add("--queries", type=int, default=8, help="queries a request (service; default 8)")
    add("--k", type=int, default=5)
    args = parser.parse_args(arguments)
    args.sides = args.sides or [side for side in SIDES[args.kind] if side != "pyserini"]
    unknown = [side for side in args.sides if side not in SIDES[args.kind]]
    if unknown:
        parser.error(f"--sides of {args.kind} are {', '.join(SIDES[args.kind])}, got {', '.join(unknown)}")
    if args.quick:
        args.corpus, args.repeats, args.warmup = "atlas-mini", min(args.repeats, 2), 0
        args.programs, args.calls, args.clients, args.requests = 4, 2, 2, 3
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the ratios and the JSON line; returns the exit status."""
    args = parse(arguments)
    return report(args, "retrieval", lambda: measure(args), summarise, describe)


def measure(args: argparse.Namespace) -> dict[str, Measured]:
    """Runs all sides in turns."""
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.retrieval_side", args.kind]
        sides = {
            name: stack.enter_context(Side(name, [*command, name, *options(args, SHAPE)], args.threads))
            for name in args.sides
        }
        return take_turns(sides, args.warmup, args.repeats)


def amount(args: argparse.Namespace) -> int:
    """Queries that one turn answers."""
    if args.kind == "programs":
        return int(args.programs * args.calls)
    return int(args.clients * args.requests * args.queries)


def summarise(args: argparse.Namespace, results: dict[str, Measured]) -> dict[str, Any]:
    """Builds the JSON line."""
    line = headline(f"retrieval {args.kind}", {name: getattr(args, name) for name in SHAPE}) | {"n": args.repeats}
    line["sides"] = {
        name: {"queries_per_s": round(result.rate(amount(args)), 1)} | result.summary()
        for name, result in results.items()
    }
    own = OWN[args.kind]
    answers = {name: [turn["answers"] for turn in result.turns] for name, result in results.items()}
    if own in results:
        line["ratios"] = {
            name: round(results[own].rate(1.0) / result.rate(1.0), 3) for name, result in results.items() if name != own
        }
        line["equal_answers"] = {name: answers[name] == answers[own] for name in results if name != own}
    return line


def describe(line: dict[str, Any]) -> Iterable[str]:
    """Puts the result into words."""
    for name, side in line["sides"].items():
        yield f"{name}: {side['queries_per_s']} queries/s (median of {line['n']}), peak {side['peak_mib']} MiB"
    for name, ratio in line.get("ratios", {}).items():
        same = "the same answers" if line["equal_answers"][name] else "other answers"
        yield f"{ratio} times as fast as {name}, with {same}"


if __name__ == "__main__":
    sys.exit(main())
