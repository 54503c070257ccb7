"""Ends a training run that a signal asked to end: between two iterations, with a checkpoint by all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from rpl.core import signals
from rpl.modules.base import PolicyModule


class SafeStop(Callback):
    """Grants a signal's request after an iteration or a batch of validation, where all processes agree on it.

    Before and after training a signal ends the process at once: there is nothing to save.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From here on a signal waits for the end of the iteration."""
        signals.defer(True)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """A safe point."""
        self._stop_if_asked(trainer, pl_module)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """A safe point: a resumed run makes up for the validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_asked(trainer, pl_module, validating=True)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """What fails ends at once."""
        signals.defer(False)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """After the last hook of training, a signal ends the process at once again."""
        signals.defer(False)

    def _stop_if_asked(self, trainer: pl.Trainer, module: pl.LightningModule, validating: bool = False) -> None:
        assert isinstance(module, PolicyModule)
        if not (number := int(module.ranks.largest(float(signals.requested() or 0)))):
            return
        if validating:  # it begins again as a whole: scores of half the questions are not part of the checkpoint
            trainer.fit_loop.epoch_loop.val_loop.batch_progress.reset()
        if (folder := _checkpoint_folder(trainer)) is not None:
            path = folder / f"step={trainer.global_step}-stopped.ckpt"
            trainer.save_checkpoint(path)
            signals.resume_from(str(path))
        signals.check(number)


def _checkpoint_folder(trainer: pl.Trainer) -> Path | None:
    """Where the run's checkpoints lie; `None` if it writes none (`trainer.enable_checkpointing`)."""
    callback: Any = trainer.checkpoint_callback
    if callback is None:
        return None
    given = getattr(callback, "dirpath", None)
    return Path(given or Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints")
