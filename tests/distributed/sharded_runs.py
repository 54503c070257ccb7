"""Starts the trainings of train_sharded.py and reads what their processes wrote."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import train_sharded
from patience import patience

SCRIPT = Path(train_sharded.__file__)
WATCHED = ("train/loss", "train/grad_norm", "train/tokens", "train/kl", "train/ratio", "train/reward", "rollout/turns")
LIMIT_S = 280


def write_cases(folder: Path, cases: dict[str, dict]) -> Path:
    """Writes the file that train_sharded.py reads: cases by name, each with the fields of its `Case`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cases.json"
    file.write_text(json.dumps([{"folder": str(folder / name), **options} for name, options in cases.items()]))
    return file


def start(folder: Path, options: dict, processes: int = 1, launcher: tuple[str, ...] = ()):
    """Trains one case as a user would, by a script that Lightning or a launcher starts again; returns the process."""
    command = [sys.executable, *launcher, str(SCRIPT), str(write_cases(folder, {"run": options})), str(processes)]
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")}
    # an empty cache: processes that make the same model at the same moment must not disturb one another
    environment |= {"OMP_NUM_THREADS": "1", "RPL_HOME": str(folder / "home")}
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(LIMIT_S), env=environment)


class Runs:
    """Trainings that share their processes, because starting these takes longer than a training.

    Args:
        folder: Where they write, each to a folder of its name.
        cases: Name to options, which are the fields of `Case` in train_sharded.py.
        forks: What makes the processes.
        processes: How many train together.
        strategy: That of all cases that name none.
    """

    def __init__(self, folder: Path, cases: dict[str, dict], forks, processes: int = 1, strategy: str = "auto"):
        self.folder, self.processes = folder, processes
        file = write_cases(folder, {name: {"strategy": strategy, **options} for name, options in cases.items()})
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [
            forks.Process(target=train_sharded.rank_main, args=(file, rank, processes, port))
            for rank in range(processes)
        ]
        deadline = time.monotonic() + patience(LIMIT_S)
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
            rank.kill()
            rank.join()
        self.exit_codes = [rank.exitcode for rank in ranks]

    def said(self, rank: int) -> str:
        """What a rank wrote to its standard streams."""
        return (self.folder / f"rank{rank}.log").read_text()

    def __getitem__(self, name: str) -> list[dict]:
        """The result of each rank."""
        files = [self.folder / name / f"rank{rank}.json" for rank in range(self.processes)]
        assert all(file.exists() for file in files), "\n".join(
            self.said(rank)[-3000:] for rank in range(self.processes)
        )
        return [json.loads(file.read_text()) for file in files]


def trajectory(result: dict) -> list[float]:
    assert "error" not in result, result
    return [row[name] for row in result["rows"] for name in WATCHED if name in row]
