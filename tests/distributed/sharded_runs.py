"""Starts train_sharded.py and reads what its processes wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "train_sharded.py"
WATCHED = ("train/loss", "train/grad_norm", "train/tokens", "train/kl", "train/ratio", "train/reward", "rollout/turns")


def start(out: Path, *, processes: int = 1, launcher: tuple[str, ...] = (), **options: str | int | float):
    """Runs the script and returns the finished process."""
    flags = [f"--{name}={value}" if value != "" else f"--{name}" for name, value in options.items()]
    command = [sys.executable, *launcher, str(SCRIPT), f"--out={out}", f"--devices={processes}", *flags]
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")}
    # an empty cache: processes that make the same model at the same moment must not disturb one another
    environment |= {"OMP_NUM_THREADS": "1", "RPL_HOME": str(out.with_suffix(".home"))}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


def run(out: Path, *, processes: int = 1, **options: str | int | float) -> list[dict]:
    """Runs the script and returns the result of each rank."""
    done = start(out, processes=processes, **options)
    files = [out.with_suffix(f".{rank}.json") for rank in range(processes)]
    assert all(file.exists() for file in files), done.stderr[-3000:]
    return [json.loads(file.read_text()) for file in files]


def trajectory(result: dict) -> list[float]:
    assert "error" not in result, result
    return [row[name] for row in result["rows"] for name in WATCHED if name in row]
