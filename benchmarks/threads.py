"""What a busy neighbour costs: the tiny schedule and rollouts, with a process that burns one core and without.

`python -m benchmarks.threads` prints a table and one JSON line. Idle and busy turns alternate in one run, each in the
same process for rollouts and in fresh ones for the schedule. A turn may take at most `LIMIT` times as long as idle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.sides import ROOT, Side
from rpl.core.machine import available_cores, wait_passively
from rpl.core.progress import say

LIMIT = 1.6
"""Most that one busy core may cost."""


@contextmanager
def burning(cores: int) -> Iterator[None]:
    """Keeps cores busy with processes that do nothing else."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def schedule() -> float:
    """Runs the tiny schedule in a fresh folder and returns its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rpl", "cycle", "-c", "configs/tiny_cycle.yaml", "--run_dir", f"{folder}/run"]
        began = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return time.perf_counter() - began


def rollouts(policy: str, turns: int, quick: bool) -> Side:
    """Starts a side that makes rollouts as the quickstart does: 8 questions, groups of 6, two turns, 96 tokens."""
    from rpl.core.machine import fastest_precision

    precision = "bf16" if fastest_precision().dtype == "bfloat16" else "fp32"
    command = [sys.executable, "-m", "benchmarks.rollouts_side", "rpl", policy, "--turns", turns]
    command += ["--questions", 2 if quick else 8, "--group-size", 6, "--batch-size", 64, "--max-turns", 2]
    command += ["--max-new-tokens", 16 if quick else 96, "--printed-tokens", 384, "--temperature", 1.0]
    command += ["--corpus", "atlas-mini", "--prompt-style", "compact", "--precision", precision, "--device", "cpu"]
    return Side("rollouts", [str(part) for part in command]).ready()


def alternate(name: str, turn: Callable[[], float], repeats: int) -> dict[str, object]:
    """Takes idle and busy turns in alternation, after one that does not count, and returns their medians and ratio."""
    turn()
    seconds: dict[str, list[float]] = {"idle": [], "busy": []}
    for _ in range(repeats):
        for kind, cores in (("idle", 0), ("busy", 1)):
            with burning(cores):
                seconds[kind].append(turn())
            say(f"{name}, {kind}: {seconds[kind][-1]:.2f} s")
    idle, busy = median(seconds["idle"]), median(seconds["busy"])
    return {"idle_s": round(idle, 2), "busy_s": round(busy, 2), "ratio": round(busy / idle, 2), "all": seconds}


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the table and the JSON line; returns 1 where the limit is exceeded."""
    parser = argparse.ArgumentParser(prog="benchmarks.threads", description=__doc__)
    parser.add_argument("--policy", default="smollm2-135m", help="of the rollouts (smollm2-135m)")
    parser.add_argument("--repeats", type=int, default=3, help="idle and busy turns of each (3)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: short rollouts, no schedule")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    args = parser.parse_args(arguments)
    wait_passively()  # as the `rpl` command does; the sides inherit it
    results, before = {}, os.getloadavg()[0]
    with ExitStack() as stack:
        side = stack.enter_context(rollouts(args.policy, 2 * args.repeats + 1, args.quick))
        results["rollouts"] = alternate("rollouts", lambda: float(side.turn()["seconds"]), args.repeats)
        side.finish()
    if not args.quick:
        results["tiny schedule"] = alternate("tiny schedule", schedule, args.repeats)
    sys.stdout.write(f"{'':<16}{'idle s':>10}{'busy s':>10}{'ratio':>8}\n")
    for name, found in results.items():
        sys.stdout.write(f"{name:<16}{found['idle_s']:>10}{found['busy_s']:>10}{found['ratio']:>8}\n")
    line = json.dumps({"benchmark": "threads", "cores": available_cores(), "load_before": before, **results})
    sys.stdout.write(line + "\n")
    if args.out:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return int(any(float(str(found["ratio"])) > LIMIT for found in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
