"""Resuming: checkpoints name their module and start model and are checked, and a validation that was due is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from rpl.core import signals
from rpl.core.errors import CheckpointError
from rpl.core.progress import say
from rpl.modules.base import PolicyModule
from rpl.policy.loading import resolve_model
from rpl.policy.weights.checkpoint_files import UNREADABLE, read_header, save_file, verify
from rpl.policy.weights.merged import folder_digest


class CheckpointFiles(TorchCheckpointIO):
    """Checkpoint files that are written in their own folder, flushed and renamed, so that none is ever half-written."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Writes one file; remote addresses are left to Lightning."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            save_file(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in Lightning.

        Raises:
            CheckpointError: It cannot be read.
        """
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except UNREADABLE as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{path}: not a checkpoint, or damaged: {reason}") from error


class FitLoop(_FitLoop):
    """Lightning's loop, which also ends a run that a checkpoint finds with nothing left to train.

    Lightning would skip such a run without its last hooks, and what hangs on them (the policy's folder, a validation
    that was due) would be lost for good.
    """

    @classmethod
    def replace(cls, trainer: pl.Trainer) -> None:
        """Puts such a loop in the place of the trainer's own."""
        given = trainer.fit_loop
        loop = cls(trainer, min_epochs=given.min_epochs, max_epochs=given.max_epochs)
        steps = given.epoch_loop
        loop.epoch_loop = _TrainingEpochLoop(trainer, min_steps=steps.min_steps, max_steps=steps.max_steps)
        trainer.fit_loop = loop

    def run(self) -> None:
        """Runs the epochs that are left."""
        self.setup_data()
        if self.epoch_loop.global_step == 0 or not self.skip:
            super().run()
            return
        if self.trainer.is_global_zero:
            say(f"the checkpoint has reached step {self.epoch_loop.global_step}: nothing is left to train")
        self.on_run_start()
        self.on_run_end()


class Resumption(Callback):
    """Writes module, start model and prompts into each checkpoint, and makes a validation that was still due."""

    def __init__(self) -> None:
        self.validation_is_due = False
        self._start_digest: str | None = None
        self._optimizer: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Whether the last iteration's validation had not been made."""
        return {"validation_is_due": self.validation_is_due}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores it."""
        self.validation_is_due = state_dict["validation_is_due"]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Adds the module's class, the start model and the form of the prompts."""
        assert isinstance(pl_module, PolicyModule)
        checkpoint["run"] = {
            "module": _class_name(pl_module),
            "start_model": pl_module.policy_model.start,
            "start_digest": self._start_digest,
            "prompts": pl_module.policy_model.renderer.style_hash,
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Says when the checkpoint's transcripts looked otherwise."""
        assert isinstance(pl_module, PolicyModule)
        earlier = checkpoint.get("run", {}).get("prompts")
        if trainer.is_global_zero and earlier not in (None, pl_module.policy_model.renderer.style_hash):
            say("the checkpoint was made with another chat template, prompt style or wording of the prompts")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remembers the settings of the optimizer that YAML and flags ask for."""
        assert isinstance(pl_module, PolicyModule)
        self._optimizer = _settings(trainer)
        if trainer.is_global_zero and needs_start_model(pl_module):
            self._start_digest = folder_digest(resolve_model(pl_module.policy_model.start))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Says which settings of the checkpoint's optimizer win, and validates if that was due."""
        now = _settings(trainer)
        beaten = [f"{k} {now[k]} (given: {v})" for k, v in self._optimizer.items() if now.get(k, v) != v]
        if beaten and trainer.is_global_zero:
            say(f"the checkpoint's optimizer settings win over those given: {', '.join(beaten)}")
        if self.validation_is_due:
            validate(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Notes whether Lightning is about to validate; checkpoints of this iteration are written after this."""
        loop = trainer.fit_loop
        assert loop._data_fetcher is not None
        self.validation_is_due = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes that it was made."""
        if not trainer.sanity_checking:
            self.validation_is_due = False


def validate(trainer: pl.Trainer) -> None:
    """Validates within training, as Lightning does between two iterations."""
    loop, connector = trainer.fit_loop.epoch_loop.val_loop, trainer._logger_connector
    first = connector._first_loop_iter
    loop.batch_progress.reset()
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True
    connector._first_loop_iter = first


def needs_start_model(module: PolicyModule) -> bool:
    """Whether training compares with the start model all along, so that another one would change what is learned."""
    return bool(getattr(module, "beta", 0.0)) or module.policy_model.lora is not None


def check_checkpoint(path: Path, module: PolicyModule, training: bool) -> None:
    """Refuses a checkpoint that is damaged or another run's, before any model is loaded.

    Args:
        path: A file, or a folder of shards.
        module: What is to go on from it.
        training: Whether it is to be trained; other commands take the policy of any module.

    Raises:
        CheckpointError: It is missing, damaged, of another module class or of another start model.
    """
    verify(path)
    header, start = read_header(path), module.policy_model.start
    run = header.get("run")
    signals.resume_from(str(path))
    if not training or run is None:
        return
    advice = f"to start from its policy: `rpl export {path} --out FOLDER`, then --model.init_from FOLDER"
    if run["module"] != _class_name(module):
        raise CheckpointError(
            f"{path} is a checkpoint of {run['module']}, and this run is one of {_class_name(module)}; {advice}"
        )
    before = header["rpl"]["lora"] is not None
    if before != (module.policy_model.lora is not None):
        what = ("adapters", "all weights") if before else ("all weights", "adapters")
        raise CheckpointError(f"{path} was made by training {what[0]}, and model.lora asks for {what[1]}; {advice}")
    if not needs_start_model(module):
        if run["start_model"] != start:
            say(f"{path} started from {run['start_model']!r}; its weights replace those of {start!r}")
    elif run["start_digest"] is None:
        raise CheckpointError(
            f"{path} was made without model.beta, so that its start model cannot be checked; {advice}"
        )
    elif run["start_digest"] != folder_digest(resolve_model(start)):
        raise CheckpointError(
            f"{path} started from {run['start_model']!r}, whose weights are not those of {start!r}: "
            f"model.beta and model.lora need the same start model; {advice}"
        )


def _class_name(module: PolicyModule) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _settings(trainer: pl.Trainer) -> dict[str, Any]:
    group = trainer.optimizers[0].param_groups[0]
    settings = {
        name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr", "fused", "foreach")
    }
    return {"lr": group.get("initial_lr", group["lr"])} | settings
