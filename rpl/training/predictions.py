"""`rpl predict`: the policy's rollouts as JSON lines."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from rpl.core.files import write_jsonl
from rpl.core.progress import say


class PredictionWriter(Callback):
    """Writes the rollouts of all processes to `predictions.jsonl` in the log folder, in the order of the questions.

    The file appears when it is complete, and replaces an earlier one.
    """

    def __init__(self) -> None:
        self._rollouts: list[dict[str, Any]] = []

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        """Keeps the rollouts of one batch."""
        self._rollouts += outputs

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes them; collective."""
        parts = [self._rollouts] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(parts, self._rollouts)
        path = Path(trainer.log_dir or trainer.default_root_dir) / "predictions.jsonl"
        if trainer.is_global_zero:
            # process r answered every world_size-th question, from the r-th on
            rollouts = [r for r in chain.from_iterable(zip_longest(*parts)) if r is not None]
            write_jsonl(path, rollouts)
            say(f"wrote {len(rollouts)} rollouts to {path}")
