"""Update benchmark: trajectories trained per second and peak memory, ours against TRL's `GRPOTrainer`.

Both sides train the same weights on the same prepared completions with the same loss, optimizer and precision, each in
a process of its own; they take turns, and the medians are compared. That they do the same work is checked: the gradient
norm of the first step must agree. See benchmarks/README.md for what is timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.report import common_arguments, headline, report
from benchmarks.sides import ROOT, Measured, Side, SideError, take_turns
from benchmarks.workload import Shape, make, write
from rpl.core.progress import say

VARIANTS = ("plain", "full-logits", "no-entropy", "checkpointed")
NORM_TOLERANCE = {"bf16": 0.05, "fp32": 0.002}
"""How far the two sides' gradient norms may lie apart, relatively. TRL adds 1e-4 to the standard deviation."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.updates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common_arguments(parser)
    add = parser.add_argument
    add("--policy", default="smollm2-135m", help="model folder or name (default smollm2-135m)")
    add("--trl-python", type=Path, default=ROOT / ".venv-trl/bin/python", metavar="FILE", help="TRL's interpreter")
    add("--no-trl", action="store_true", help="measure only our own side and its variants")
    add("--trl-rows", type=int, default=8, metavar="N", help="TRL's rows of a micro-batch (default 8, as in TRL)")
    add("--micro-batch-tokens", type=int, metavar="N", help="our tokens of a micro-batch (default: what ships)")
    add("--checkpointing", action="store_true", help="activation checkpointing on both sides (TRL's default)")
    add("--variants", nargs="*", choices=VARIANTS, default=[], help="also measure our side with parts turned off or on")
    add("--sequential", action="store_true", help="one process at a time: half the memory, no alternation")
    add("--questions", type=int, default=8)
    add("--group-size", type=int, default=8)
    add("--prompt-tokens", type=int, default=350)
    add("--transcript-tokens", type=int, default=250)
    add("--policy-tokens", type=int, default=100, help="those of the transcript that are trained (default 100)")
    add("--equal-groups", type=int, default=0, help="groups without any difference in reward (default 0)")
    add("--spread", type=float, default=0.0, help="transcripts vary in length by up to this share (default 0)")
    args = parser.parse_args(arguments)
    if args.quick:
        args.policy, args.repeats, args.warmup = "tiny", min(args.repeats, 2), min(args.warmup, 1)
        args.questions, args.group_size = 2, 4
        args.prompt_tokens, args.transcript_tokens, args.policy_tokens = 40, 30, 12
        args.equal_groups, args.trl_rows = min(args.equal_groups, 1), min(args.trl_rows, 4)
    try:
        args.shape = Shape(
            args.questions,
            args.group_size,
            args.prompt_tokens,
            args.transcript_tokens,
            args.policy_tokens,
            args.equal_groups,
            args.spread,
        )
    except ValueError as error:
        parser.error(str(error))
    if args.shape.rollouts % args.trl_rows:
        parser.error(f"--trl-rows {args.trl_rows} does not divide the {args.shape.rollouts} rollouts")
    if not args.no_trl and not args.trl_python.is_file():
        parser.error(f"no interpreter at {args.trl_python}: `make .venv-trl/.installed`, --trl-python or --no-trl")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the ratios and the JSON line; returns the exit status."""
    args = parse(arguments)

    def checked() -> dict[str, Measured]:
        with tempfile.TemporaryDirectory(prefix="rpl-bench-") as folder:
            results = measure(args, Path(folder))
        check_same_work(results, args.precision, args.shape)
        return results

    return report(args, "updates", checked, summarise, describe)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Measured]:
    """Runs all sides: TRL and ours in turns, then each variant alone."""
    from rpl.policy.loading import load_policy, resolve_model

    policy = resolve_model(args.policy)
    write(folder / "workload.json", make(args.shape, load_policy(policy)[1]))
    count = args.warmup + args.repeats
    shared = [folder / "workload.json", policy, "--turns", count]
    shared += ["--precision", args.precision, "--device", args.device]
    shared += ["--checkpointing"] * args.checkpointing

    def own(variant: str) -> list[Any]:
        tokens = ["--micro-batch-tokens", args.micro_batch_tokens] if args.micro_batch_tokens else []
        return [sys.executable, "-m", "benchmarks.updates_rpl", *shared, "--variant", variant, *tokens]

    commands = {} if args.no_trl else {
        "trl": [args.trl_python, ROOT / "benchmarks/updates_trl.py", *shared, "--rows", args.trl_rows]
    }  # fmt: skip
    commands["rpl"] = own("rpl")
    batches = [[name] for name in commands] if args.sequential else [list(commands)]
    commands |= {variant: own(variant) for variant in args.variants}
    batches += [[variant] for variant in args.variants]
    results: dict[str, Measured] = {}
    for names in batches:
        say(f"loading {' and '.join(names)}")
        with ExitStack() as stack:
            sides = {n: stack.enter_context(Side(n, commands[n], args.threads)) for n in names}
            results |= take_turns(sides, args.warmup, args.repeats)
    return results


def check_same_work(results: dict[str, Measured], precision: str, shape: Shape) -> None:
    """Compares the first gradient norms.

    TRL divides the loss by the trained tokens of all groups, we by those of the groups that differ in reward.

    Raises:
        SideError: They do not agree, so the sides did not train on the same thing.
    """
    first = {name: (r.warmup + r.turns)[0]["grad_norm"] for name, r in results.items()}
    differing = (shape.questions - shape.equal_groups) / shape.questions
    for name, norm in first.items():
        own = first["rpl"] * (differing if name == "trl" else 1.0)
        if abs(norm - own) > NORM_TOLERANCE[precision] * own:
            raise SideError(f"{name} and rpl did not do the same work: first gradient norms {norm:.5f} and {own:.5f}")


def summarise(args: argparse.Namespace, results: dict[str, Measured]) -> dict[str, Any]:
    """Builds the JSON line."""
    shape: Shape = args.shape
    settings = {
        "policy": args.policy,
        "precision": args.precision,
        "device": args.device,
        "checkpointing": args.checkpointing,
        "trl_rows": None if args.no_trl else args.trl_rows,
        "micro_batch_tokens": args.micro_batch_tokens,
        "alternating": not args.sequential,
        "shape": {name: getattr(shape, name) for name in shape.__dataclass_fields__},
    }
    line = headline("updates", settings) | {"n": args.repeats, "sides": {}}
    for name, result in results.items():
        norms = {"first_grad_norm": (result.warmup + result.turns)[0]["grad_norm"]}
        rate = {"trajectories_per_s": round(result.rate(shape.rollouts), 4)}
        line["sides"][name] = rate | result.summary() | norms
    own = line["sides"]["rpl"]
    line["ratios"] = {
        name: {
            "speed": round(own["trajectories_per_s"] / side["trajectories_per_s"], 3),
            "peak_memory": round(own["peak_mib"] / side["peak_mib"], 3),
        }
        for name, side in line["sides"].items()
        if name != "rpl"
    }
    return line


def describe(line: dict[str, Any]) -> Iterable[str]:
    """Puts the result into words."""
    shape = line["settings"]["shape"]
    yield (
        f"{shape['questions']} questions x {shape['group_size']} rollouts ({shape['equal_groups']} groups all equal), "
        f"{shape['prompt']} prompt and {shape['transcript']} transcript tokens of which {shape['written']} trained, "
        f"{line['settings']['precision']}, n = {line['n']}"
    )
    yield f"{'':14}{'trajectories/s':>15}{'s a step':>11}{'spread':>8}{'peak MiB':>10}{'rpl is':>9}{'memory':>8}"
    for name, side in line["sides"].items():
        ratio = line["ratios"].get(name)
        end = f"{ratio['speed']:>8.2f}x{ratio['peak_memory']:>8.2f}" if ratio else ""
        rate, seconds = side["trajectories_per_s"], side["median_s"]
        yield f"{name:14}{rate:>15.3f}{seconds:>11.2f}{side['spread']:>8.1%}{side['peak_mib']:>10}{end}"


if __name__ == "__main__":
    sys.exit(main())
