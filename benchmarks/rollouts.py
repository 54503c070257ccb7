"""Rollout benchmark: finished rollouts per second and peak memory, our loop against a lock-step loop over `generate`.

Both sides load the same weights, ask the same questions at the same temperature, and run programs in the same executor
on the same corpus, each in a process of its own; they take turns, and the medians are compared. Sampling noise differs,
so the tokens that each side wrote are reported, and a second ratio per written token. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.report import common_arguments, headline, options, report
from benchmarks.sides import ROOT, Measured, Side, take_turns
from rpl.core.progress import say

TRAINED = ROOT / "runs/bench-policy/01-sft/policy"
SHAPE = (
    "questions", "group_size", "batch_size", "max_turns", "max_new_tokens", "printed_tokens", "temperature", "corpus",
    "prompt_style", "precision", "device",
)  # fmt: skip


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common_arguments(parser)
    add = parser.add_argument
    add(
        "--policy",
        default=str(TRAINED),
        help="a policy that writes programs (default: what `make bench-rollouts` trains)",
    )
    add("--sides", nargs="+", choices=("rpl", "lockstep"), default=["lockstep", "rpl"])
    add("--sequential", action="store_true", help="one process at a time: half the memory, no alternation")
    add("--questions", type=int, default=8)
    add("--group-size", type=int, default=8)
    add("--batch-size", type=int, default=64, help="rollouts in flight at most, on both sides (default 64)")
    add("--max-turns", type=int, default=3)
    add("--max-new-tokens", type=int, default=96)
    add("--printed-tokens", type=int, default=384)
    add("--temperature", type=float, default=1.0)
    add("--corpus", choices=("atlas", "atlas-mini"), default="atlas")
    add("--prompt-style", choices=("compact", "documented"), default="compact")
    args = parser.parse_args(arguments)
    if args.quick:
        args.policy, args.corpus, args.repeats, args.warmup = "tiny", "atlas-mini", min(args.repeats, 2), 0
        args.questions, args.group_size, args.batch_size, args.max_new_tokens = 2, 2, 4, 12
    elif args.policy == str(TRAINED) and not TRAINED.is_dir():
        parser.error(f"no policy at {TRAINED}: run `make bench-policy`, or give --policy DIR")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the ratios and the JSON line; returns the exit status."""
    args = parse(arguments)
    return report(args, "rollouts", lambda: measure(args), summarise, describe)


def measure(args: argparse.Namespace) -> dict[str, Measured]:
    """Runs both sides in turns."""
    from rpl.policy.loading import resolve_model

    policy = resolve_model(args.policy)
    results: dict[str, Measured] = {}
    for names in [[name] for name in args.sides] if args.sequential else [args.sides]:
        say(f"loading {' and '.join(names)}")
        with ExitStack() as stack:
            command = [sys.executable, "-m", "benchmarks.rollouts_side"]
            sides = {
                n: stack.enter_context(Side(n, [*command, n, policy, *options(args, SHAPE)], args.threads))
                for n in names
            }
            results |= take_turns(sides, args.warmup, args.repeats)
    return results


def summarise(args: argparse.Namespace, results: dict[str, Measured]) -> dict[str, Any]:
    """Builds the JSON line."""
    settings = {"policy": args.policy, "alternating": not args.sequential} | {n: getattr(args, n) for n in SHAPE}
    line = headline("rollouts", settings) | {"n": args.repeats, "sides": {}}
    for name, result in results.items():
        per_s = [t["finished"] / t["seconds"] for t in result.turns]
        tokens_per_s = [t["written_tokens"] / t["seconds"] for t in result.turns]
        counts = {
            key: sum(t[key] for t in result.turns)
            for key in ("finished", "written_tokens", "observation_tokens", "programs", "turns")
        }
        ends: dict[str, int] = {}
        for t in result.turns:
            for end, count in t["ends"].items():
                ends[end] = ends.get(end, 0) + count
        em = round(sum(t["em"] for t in result.turns) / len(result.turns), 3)
        line["sides"][name] = (
            {"rollouts_per_s": round(median(per_s), 4), "written_tokens_per_s": round(median(tokens_per_s), 2)}
            | result.summary()
            | {"counts": counts, "ends": ends, "em": em}
        )
    if {"rpl", "lockstep"} <= set(results):
        own, other = line["sides"]["rpl"], line["sides"]["lockstep"]
        line["ratios"] = {
            "lockstep": {
                "speed": round(own["rollouts_per_s"] / other["rollouts_per_s"], 3),
                "speed_per_written_token": round(own["written_tokens_per_s"] / other["written_tokens_per_s"], 3),
                "peak_memory": round(own["peak_mib"] / other["peak_mib"], 3),
            }
        }
        if args.temperature == 0:
            line["equal_rollouts"] = _share_equal(results["rpl"], results["lockstep"])
    return line


def _share_equal(a: Measured, b: Measured) -> float:
    """Share of rollouts with the same token ids on both sides; greedy fp32 rollouts should all be equal."""
    pairs = [
        one == other
        for x, y in zip(a.turns, b.turns, strict=True)
        for one, other in zip(x["digests"], y["digests"], strict=True)
    ]
    return round(sum(pairs) / len(pairs), 4)


def describe(line: dict[str, Any]) -> Iterable[str]:
    """Puts the result into words."""
    s = line["settings"]
    yield (
        f"{s['questions']} questions x {s['group_size']} rollouts, at most {s['batch_size']} in flight, "
        f"{s['max_turns']} turns of {s['max_new_tokens']} tokens, {s['precision']}, n = {line['n']}"
    )
    yield f"{'':10}{'rollouts/s':>11}{'tokens/s':>10}{'s':>8}{'spread':>8}{'written':>9}{'EM':>7}{'peak MiB':>10}"
    for name, side in line["sides"].items():
        yield (
            f"{name:10}{side['rollouts_per_s']:>11.3f}{side['written_tokens_per_s']:>10.1f}{side['median_s']:>8.2f}"
            f"{side['spread']:>8.1%}{side['counts']['written_tokens']:>9}{side['em']:>7.3f}{side['peak_mib']:>10}"
        )
    for ratio in line.get("ratios", {}).values():
        yield (
            f"rpl is {ratio['speed']:.2f} times as fast ({ratio['speed_per_written_token']:.2f} times per written "
            f"token) with {ratio['peak_memory']:.2f} of the peak memory"
        )
    if "equal_rollouts" in line:
        yield f"equal rollouts: {line['equal_rollouts']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
