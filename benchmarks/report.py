"""Result lines of benchmarks: one JSON object each, with the machine it was measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sides import Measured, SideError
from rpl.core.errors import RPLError
from rpl.core.files import append_jsonl
from rpl.core.progress import say


def machine() -> dict[str, Any]:
    """Describes what was measured on, without naming the machine."""
    return {
        "cpu_cores": os.cpu_count(),
        "cpu_flags": _flags(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _flags() -> list[str]:
    """Instruction sets that decide how fast bf16 is."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return sorted(words & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})


def emit(line: dict[str, Any], out: Path | None) -> None:
    """Prints a result as one JSON line, and appends it to a file if one is given."""
    print(json.dumps(line, ensure_ascii=False))
    if out is not None:
        append_jsonl(out, [line])
        say(f"appended to {out}")


def report(
    args: argparse.Namespace,
    name: str,
    measure: Callable[[], dict[str, Measured]],
    summarise: Callable[[argparse.Namespace, dict[str, Measured]], dict[str, Any]],
    describe: Callable[[dict[str, Any]], Iterable[str]],
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Measures, prints the result in words and as a JSON line, and returns the exit status.

    Args:
        args: The command line.
        name: Of the benchmark, for messages.
        measure: Runs all sides.
        summarise: Builds the JSON line.
        describe: Puts it into words.
        facts: More to say of what was measured on.
    """
    before = machine() | dict(facts or {})
    try:
        results = measure()
    except (RPLError, SideError) as error:
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
        return 1
    line = summarise(args, results) | {"machine": before}
    for text in describe(line):
        print(text)
    emit(line, args.out)
    return 0


def options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Returns what a side is told: the turns it has, and the named arguments as they were given."""
    given = [str(part) for name in names for part in (f"--{name.replace('_', '-')}", getattr(args, name))]
    return ["--turns", str(args.warmup + args.repeats), *given]


def headline(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The start of every result line."""
    return {"benchmark": name, "date": date.today().isoformat(), "settings": settings}


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what all benchmarks understand."""
    parser.add_argument("--repeats", type=_positive, default=3, metavar="N", help="timed turns a side (default 3)")
    parser.add_argument("--warmup", type=_count, default=1, metavar="N", help="turns before them (default 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--precision", choices=("bf16", "fp32"), default="bf16", help="bf16: autocast over fp32 weights"
    )
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads of each side (default: torch chooses)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the JSON line to this file")
    parser.add_argument("--quick", action="store_true", help="tiny random model and small numbers: a smoke test")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value
