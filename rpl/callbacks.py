"""Trainer callbacks: the record of a run as JSON lines, and the Hugging Face folder of the trained policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from rpl.errors import ConfigError
from rpl.files import append_jsonl, read_appended, write_jsonl
from rpl.modules.base import PolicyModule
from rpl.types import to_dict


class RunRecorder(Callback):
    """Appends every iteration's logged values to `metrics.jsonl` and every training rollout to `rollouts.jsonl`.

    A resumed run first drops what a killed process had written past the checkpoint, so that each iteration stands in
    the files once.
    """

    def __init__(self, run_dir: str | None = None, phase: str = "", rollouts: bool = True) -> None:
        """Sets where to write.

        Args:
            run_dir: Folder of the two files; by default the log folder.
            phase: Name that every line carries; lines of other phases are left alone.
            rollouts: Whether to record rollouts (`metrics.jsonl` is always written).
        """
        self.given, self.phase, self.rollouts = run_dir, phase, rollouts
        self.run_dir = Path()

    @rank_zero_only
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drops lines of iterations that will run (again)."""
        self.run_dir = Path(self.given or trainer.log_dir or trainer.default_root_dir)
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            path = self.run_dir / name
            lines = read_appended(path)
            kept = [x for x in lines if x["phase"] != self.phase or x["iteration"] < _policy(pl_module).iteration]
            if len(kept) != len(lines):
                write_jsonl(path, kept)

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes one line a logged value, and one a rollout."""
        iteration = _policy(pl_module).iteration - 1
        values = {
            k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(("train/", "rollout/", "time/"))
        }
        stamp = {"phase": self.phase, "iteration": iteration}
        append_jsonl(
            self.run_dir / "metrics.jsonl",
            [stamp | {"name": k, "value": v, "at": round(time.time(), 1)} for k, v in sorted(values.items())],
        )
        scored = getattr(pl_module, "last_scored", None)
        if self.rollouts and scored:
            append_jsonl(self.run_dir / "rollouts.jsonl", [stamp | to_dict(item) for item in scored])

    @rank_zero_only
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the validation scores under the iteration they were measured after."""
        if trainer.sanity_checking:
            return
        stamp = {"phase": self.phase, "iteration": _policy(pl_module).iteration - 1}
        values = _logged(trainer, ("val/",))
        append_jsonl(
            self.run_dir / "metrics.jsonl",
            [stamp | {"name": k, "value": v, "at": round(time.time(), 1)} for k, v in sorted(values.items())],
        )


def _policy(module: pl.LightningModule) -> PolicyModule:
    if not isinstance(module, PolicyModule):
        raise ConfigError(f"trainer.callbacks: RPL's callbacks need one of its modules, got {type(module).__name__}")
    return module


def _logged(trainer: pl.Trainer, prefixes: tuple[str, ...]) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith(prefixes)}


class ExportPolicy(Callback):
    """Writes the trained policy as a Hugging Face folder when training ends (all ranks gather, rank 0 writes)."""

    def __init__(self, dirpath: str | None = None) -> None:
        """Sets where to write.

        Args:
            dirpath: Folder of the model, replaced as a whole when it exists; by default `policy` in the log folder.
        """
        self.dirpath = dirpath

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Exports the policy."""
        folder = Path(self.dirpath) if self.dirpath else Path(trainer.log_dir or trainer.default_root_dir) / "policy"
        _policy(pl_module).export_policy(folder)
