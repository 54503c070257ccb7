"""Trainer callbacks: the record of a run, the Hugging Face folder of its policy, and a way out of a collapse."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from rpl.core.errors import ConfigError, RPLError
from rpl.core.files import append_jsonl, read_appended, replacing, write_jsonl
from rpl.core.progress import say
from rpl.core.records import to_dict
from rpl.modules.base import PolicyModule
from rpl.training.snapshot import put_state, take_state


class RunRecorder(Callback):
    """Appends every iteration's logged values to `metrics.jsonl` and the rollouts of all ranks to `rollouts.jsonl`.

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

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drops lines of iterations that will run (again)."""
        self.run_dir = Path(self.given or _log_dir(trainer))
        # a validation that is made up for stands in the files once, too
        due = any(getattr(callback, "validation_is_due", False) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        self._drop_unfinished(_policy(pl_module).iteration, due)

    @rank_zero_only
    def _drop_unfinished(self, iteration: int, validation_is_due: bool) -> None:
        for name in ("metrics.jsonl", "rollouts.jsonl"):
            path = self.run_dir / name
            lines = read_appended(path)
            kept = [x for x in lines if x["phase"] != self.phase or x["iteration"] < iteration]
            if validation_is_due:
                last = {"phase": self.phase, "iteration": iteration - 1}
                kept = [x for x in kept if not (x.get("name", "").startswith("val/") and last.items() <= x.items())]
            if len(kept) != len(lines):
                write_jsonl(path, kept)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes one line a logged value, and one a rollout; rank 0 writes those of the others, too."""
        module = _policy(pl_module)
        credited: list[dict[str, Any]] = []
        if self.rollouts:
            credited = module.ranks.joined_on_first([to_dict(item) for item in (outputs or {}).get("rollouts", ())])
        if module.global_rank != 0:
            return
        iteration = module.iteration - 1
        values = {
            k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(("train/", "rollout/", "time/"))
        }
        stamp = {"phase": self.phase, "iteration": iteration}
        append_jsonl(
            self.run_dir / "metrics.jsonl",
            [stamp | {"name": k, "value": v, "at": round(time.time(), 1)} for k, v in sorted(values.items())],
        )
        if credited:
            append_jsonl(self.run_dir / "rollouts.jsonl", [stamp | item for item in credited])

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


def _log_dir(trainer: pl.Trainer) -> Path:
    """The log folder. All ranks must ask for it together: rank 0 tells the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)


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
        folder = Path(self.dirpath) if self.dirpath else _log_dir(trainer) / "policy"
        _policy(pl_module).export_policy(folder)


class TimedCheckpoint(ModelCheckpoint):
    """Writes a checkpoint every so many minutes and keeps the newest, so that a run that is killed loses no more."""

    def __init__(self, minutes: float = 10.0, dirpath: str | None = None) -> None:
        """Sets the rhythm.

        Args:
            minutes: Time between two checkpoints; they are written at the end of an iteration.
            dirpath: Folder of the checkpoints; by default `checkpoints` in the log folder.

        Raises:
            ConfigError: The time is not positive.
        """
        if not minutes > 0:
            raise ConfigError(f"TimedCheckpoint.minutes must be positive, got {minutes}")
        super().__init__(dirpath=dirpath, filename="{step}", train_time_interval=timedelta(minutes=minutes))
        self._interval_s = 60.0 * minutes

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Writes one when it is time; Lightning's own class never looks at the clock where modules make the steps."""
        assert self._last_time_checked is not None
        now = time.monotonic()
        due = trainer.strategy.broadcast(now - self._last_time_checked >= self._interval_s)
        if due and not self._should_skip_saving_checkpoint(trainer):
            self._last_time_checked = now
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))


class CollapseGuard(Callback):
    """Goes back to the last good weights and optimizer state when a run collapses, and says why.

    A state is kept before an iteration, and it is good once that iteration has stayed within all bounds: its rollouts,
    its loss and its gradient came from that state. Data order, sampling seeds, step count and learning-rate schedule go
    on after a restore, so that the same weights meet other questions instead of collapsing in the same way again. With
    several processes all of them decide and restore together, sharded or not. A metric that is not a number counts as
    past its bound; one that is not logged (as in SFT) is not watched. Before an iteration has stayed within all bounds
    there is nothing to go back to, and nothing is done: an untrained model may begin outside of them.

    The defaults are far outside of healthy training. Restores are counted in `train/restores` and written to
    `collapse.jsonl` in the log folder.
    """

    def __init__(
        self,
        entropy_below: float | None = 0.001,
        approx_kl_above: float | None = 1.0,
        sampler_gap_above: float | None = 1.0,
        grad_norm_above: float | None = 1000.0,
        truncated_rate_above: float | None = 0.95,
        invalid_rate_above: float | None = None,
        reward_drop: float | None = None,
        patience: int = 2,
        keep_every: int = 5,
        max_restores: int = 3,
        dirpath: str | None = None,
    ) -> None:
        """Sets the bounds; `None` turns one off.

        Args:
            entropy_below: Least `train/entropy`, in nats a token.
            approx_kl_above: Largest `train/approx_kl`, in nats a token.
            sampler_gap_above: Largest `train/sampler_gap`, in nats a token.
            grad_norm_above: Largest `train/grad_norm`, before clipping.
            truncated_rate_above: Largest `rollout/truncated_rate`.
            invalid_rate_above: Largest `rollout/invalid_rate`. A model that does not know the format starts near 1.
            reward_drop: Largest distance of `train/reward` below its best value so far, over the run.
            patience: Iterations in a row that must be past a bound.
            keep_every: Iterations between kept states.
            max_restores: Restores in a run; at the next collapse the run stops with the reason.
            dirpath: Folder of kept states, one file a rank, which a resumed run finds again; `None` keeps them in CPU
                memory (12 bytes a trained parameter, twice for a moment, shared out over the ranks when sharded).

        Raises:
            ConfigError: All bounds are off, or a number is out of range.
        """
        self.limits: dict[str, tuple[str, float]] = {
            name: (side, bound)
            for name, side, bound in (
                ("train/entropy", "below", entropy_below),
                ("train/approx_kl", "above", approx_kl_above),
                ("train/sampler_gap", "above", sampler_gap_above),
                ("train/grad_norm", "above", grad_norm_above),
                ("rollout/truncated_rate", "above", truncated_rate_above),
                ("rollout/invalid_rate", "above", invalid_rate_above),
            )
            if bound is not None
        }
        if not self.limits and reward_drop is None:
            raise ConfigError("CollapseGuard: all bounds are off; give at least one, or leave the callback out")
        for key, value, least in (
            ("patience", patience, 1),
            ("keep_every", keep_every, 1),
            ("max_restores", max_restores, 0),
            ("reward_drop", reward_drop, 0),
        ):
            if value is not None and value < least:
                raise ConfigError(f"CollapseGuard.{key} must be at least {least}, got {value}")
        self.reward_drop = reward_drop
        self.patience, self.keep_every, self.max_restores = patience, keep_every, max_restores
        self.dirpath = None if dirpath is None else Path(dirpath)
        self.best_reward = -math.inf
        self.restores = 0
        self._strikes = 0
        self._pending: dict[str, Any] | None = None
        self._good: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The counters; kept states are not part of checkpoints."""
        return {"best_reward": self.best_reward, "restores": self.restores, "strikes": self._strikes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counters."""
        self.best_reward, self.restores = state_dict["best_reward"], state_dict["restores"]
        self._strikes = state_dict["strikes"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Finds the state that an interrupted run kept in `dirpath`."""
        module = _policy(pl_module)
        self._log_dir = _log_dir(trainer)
        self._pending = self._good = None
        if self.dirpath is None:
            self._strikes = 0
            return
        file = self._file(module)
        kept = torch.load(file, weights_only=True) if file.is_file() else None
        iteration = float(kept["iteration"]) if kept is not None else -1.0
        # all ranks must have kept the same iteration, and one that this run has been through
        same = module.ranks.largest(iteration) == -module.ranks.largest(-iteration)
        self._good = kept if same and 0 <= iteration < module.iteration else None
        self._strikes = 0 if self._good is None else self._strikes

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the state that the iteration starts from, until it is known whether it is good."""
        module = _policy(pl_module)
        if self._good is not None and module.iteration % self.keep_every:
            return
        self._pending = take_state(_trained(module), trainer.optimizers[0]) | {"iteration": module.iteration}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Judges the iteration, and goes back if it was one too many."""
        module = _policy(pl_module)
        values = _logged(trainer, ("train/", "rollout/"))
        reason = self._crossed(values)
        pending, self._pending = self._pending, None
        if not module.ranks.largest(float(reason is not None)):
            self._strikes = 0
            self.best_reward = max(self.best_reward, values.get("train/reward", -math.inf))
            if pending is not None:
                self._keep(module, pending)
        elif self._good is not None:
            self._strikes += 1
            if self._strikes >= self.patience:
                self._restore(trainer, module, self._good, reason or "a bound was crossed on another rank")
        module.log("train/restores", float(self.restores), batch_size=1)

    def _crossed(self, values: dict[str, float]) -> str | None:
        """Names the first metric past its bound, with value and bound."""
        if values.get("train/tokens") == 0:  # nothing was trained on: what the update logs is that of an earlier one
            values = {k: v for k, v in values.items() if k == "train/reward" or not k.startswith("train/")}
        for name, (side, bound) in self.limits.items():
            value = values.get(name)
            if value is not None and not (value >= bound if side == "below" else value <= bound):
                return f"{name} is {value:.4g}, {side} {bound:g}"
        reward = values.get("train/reward")
        if self.reward_drop is not None and reward is not None and not reward >= self.best_reward - self.reward_drop:
            return f"train/reward is {reward:.4g}, over {self.reward_drop:g} below its best, {self.best_reward:.4g}"
        return None

    def _keep(self, module: PolicyModule, state: dict[str, Any]) -> None:
        self._good = state
        if self.dirpath is None:
            return
        with replacing(self._file(module)) as file:
            torch.save(state, file)

    def _restore(self, trainer: pl.Trainer, module: PolicyModule, good: dict[str, Any], reason: str) -> None:
        where = f"iteration {module.iteration - 1}, {self._strikes} in a row"
        put_state(good, _trained(module), trainer.optimizers[0])
        self._strikes = 0
        stops = self.restores >= self.max_restores
        if not stops:
            self.restores += 1
        text = f"{reason} ({where}): weights and optimizer state are back where iteration {good['iteration']} began"
        if module.global_rank == 0:
            entry = {"iteration": module.iteration - 1, "reason": reason, "restored": good["iteration"]}
            append_jsonl(self._log_dir / "collapse.jsonl", [entry | {"restores": self.restores, "stopped": stops}])
        if stops:
            checkpoint = self._log_dir / "last_good.ckpt"
            trainer.save_checkpoint(checkpoint)
            raise RPLError(
                f"the run collapsed again after {self.restores} restores: {text}; that state is in {checkpoint} "
                "(`rpl export` makes a model folder of it). Lower the learning rate or the updates an iteration"
            )
        if module.global_rank == 0:
            say(f"{text} (restore {self.restores} of {self.max_restores}); data and learning-rate schedule go on")

    def _file(self, module: PolicyModule) -> Path:
        assert self.dirpath is not None
        return self.dirpath / f"good.rank{module.global_rank}of{module.world_size}.pt"


def _trained(module: PolicyModule) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in module.model.named_parameters() if parameter.requires_grad}
