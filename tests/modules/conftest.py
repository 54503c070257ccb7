"""Trainers, modules and loaders that the module tests share."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from module_fakes import FakeExecutor, ScriptedSampler

from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.modules.grpo import GRPOModule
from rpl.modules.sft import SFTModule
from rpl.rollouts.requests import RolloutConfig

ROLLOUT = RolloutConfig(max_turns=2, max_new_tokens=80)


class Recorder(pl.Callback):
    """Keeps what each iteration logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.credited: list[Any] = []  # of the latest iteration

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self.credited = (outputs or {}).get("rollouts", [])
        row = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(("train/", "rollout/"))}
        self.rows.append(row | {"global_step": trainer.global_step, "iteration": pl_module.iteration})


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_grpo():
    def make(right: float = 0.5, broken: bool = False, **kwargs: Any) -> GRPOModule:
        kwargs = {"group_size": 4, "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2)} | kwargs
        module = GRPOModule(policy="tiny", rollout=ROLLOUT, sampler=ScriptedSampler(right), **kwargs)
        module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor(broken))
        return module

    return make


@pytest.fixture
def make_sft():
    def make(**kwargs: Any) -> SFTModule:
        kwargs = {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2)} | kwargs
        module = SFTModule(policy="tiny", rollout=ROLLOUT, sampler=ScriptedSampler(), **kwargs)
        module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor())
        return module

    return make


@pytest.fixture
def make_trainer(tmp_path):
    def make(max_steps: int, **kwargs: Any) -> tuple[pl.Trainer, Recorder]:
        recorder = Recorder()
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=max_steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            use_distributed_sampler=False,
            callbacks=[recorder],
            **kwargs,
        )
        return trainer, recorder

    return make
