"""The run folder: its configuration, its lock, and the record of finished phases."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rpl.core.errors import CheckpointError
from rpl.core.files import write_json, write_text


class RunFolder:
    """A folder that belongs to exactly one configuration and to one process at a time.

    Layout: `config.yaml` (resolved), `environment.json`, `identity.json` (digests of what all phases share), one folder
    a phase with its `inputs.json` (digests of what it is made from) and a `done.json` when it is finished, and the
    records that span phases (`metrics.jsonl`, `rollouts.jsonl`, `repairs.jsonl`, `results.json`, `report.md`).
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        """Opens or creates the folder.

        Args:
            path: The folder.
            config: The resolved configuration, as JSON values, without the folder's own name.

        Raises:
            CheckpointError: The folder belongs to another configuration, holds something else, or is in use.
        """
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")
        try:
            self._claim(config)
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, config: Mapping[str, Any]) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(f"{self.path}: another process is running in this folder") from error
        config_file = self.path / "config.yaml"
        if config_file.exists():
            self._check_same(config_file, config)
            return
        foreign = sorted(p.name for p in self.path.iterdir() if p.name not in (".lock", "environment.json"))
        if foreign:
            raise CheckpointError(f"{self.path}: not a run folder and not empty (holds {', '.join(foreign[:5])})")
        import yaml

        # the configuration comes last: a folder that has one is a whole run folder
        write_json(self.path / "environment.json", describe_environment())
        write_text(config_file, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    def _check_same(self, config_file: Path, config: Mapping[str, Any]) -> None:
        import yaml

        stored = _flatten(yaml.safe_load(config_file.read_text(encoding="utf-8")))
        given = _flatten(json.loads(json.dumps(config)))
        changed = [key for key in sorted({*stored, *given}) if stored.get(key) != given.get(key)]
        if changed:
            lines = [f"  {k}: there {stored.get(k)!r}, now {given.get(k)!r}" for k in changed[:8]]
            more = f"\n  and {len(changed) - 8} more" if len(changed) > 8 else ""
            raise CheckpointError(
                f"{self.path}: this run folder belongs to another configuration; give another run_dir or delete it."
                " What differs:\n" + "\n".join(lines) + more
            )

    def phase(self, index: int, name: str) -> Path:
        """Returns (and makes) the folder of a phase."""
        path = self.path / f"{index:02d}-{name}"
        path.mkdir(exist_ok=True)
        return path

    @staticmethod
    def done(phase: Path) -> dict[str, Any] | None:
        """Returns what a finished phase left for the ones after it, or `None`."""
        marker = phase / "done.json"
        if not marker.exists():
            return None
        value: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
        return value

    @staticmethod
    def finish(phase: Path, outcome: Mapping[str, Any]) -> None:
        """Marks a phase as finished and frees its checkpoints."""
        write_json(phase / "done.json", dict(outcome))
        shutil.rmtree(phase / "checkpoints", ignore_errors=True)

    def forget(self) -> None:
        """Leaves an empty folder to whatever configuration comes next, if no phase was begun in it."""
        if not any(self.path.glob("[0-9][0-9]-*")):
            for name in ("config.yaml", "environment.json", "plan.json"):
                (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._lock.close()


def describe_environment() -> dict[str, Any]:
    """Returns what a reader needs to judge a run's figures: versions, processor, threads, devices, source revision."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "revision": _revision(),
        "packages": {d.metadata["Name"]: d.version for d in sorted(distributions(), key=lambda d: d.metadata["Name"])},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.processor())


def _revision() -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        out = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"rpl: the source revision could not be read ({error})\n")
        return None
    return out.stdout.strip()


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key, inner in value.items() for k, v in _flatten(inner, f"{prefix}{key}.").items()}
    if isinstance(value, list) and value:
        return {k: v for i, inner in enumerate(value) for k, v in _flatten(inner, f"{prefix}{i}.").items()}
    return {prefix[:-1]: value}
