"""Trains GRPO and SFT modules on CPU, in one process or in one of several; started by sharded_runs.py.

Writes what each iteration logged to files, which are the verdict: exit codes of process groups are not reliable.
"""

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from module_fakes import QUESTIONS, FakeExecutor, ListData, ListLoader, ScriptedSampler

from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.modules.grpo import GRPOModule
from rpl.modules.sft import SFTModule
from rpl.policy.weights.lora import LoRAConfig
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.hf.sampler import HFSampler
from rpl.training.callbacks import CollapseGuard, RunRecorder
from rpl.training.snapshot import take_state
from rpl.training.strategy import FSDP2Strategy

DROPPED = ("q1", "q3", "q5", "q8", "q9", "q10", "q11")


class Example:
    def __init__(self, question):
        self.question, self.question_id, self.answer = question.question, question.id, question.answers[0]
        self.imitate = True
        # Some examples are much longer than others, so that ranks have different numbers of micro-batches.
        self.steps = (("print(1)", "x" * (5 if question.id in ("q0", "q3") else 120)),)


class Lopsided(GRPOModule):
    """Drops groups so that one of two ranks has no work in the first iteration, and both have none in the third."""

    real_sampling = False

    def credit(self, made, questions):
        credited = super().credit(made, questions)
        if self.real_sampling:  # a random model is always wrong: give its rollouts credit by their place in the group
            credited = [replace(c, advantage=(-1.0) ** c.rollout.sample_index, kept=True) for c in credited]
        return [replace(c, kept=c.kept and c.rollout.question_id not in DROPPED) for c in credited]

    crash = None
    dull_iteration = None

    def log(self, name, value, **kwargs):
        """Reports one iteration without entropy, on this rank alone."""
        dull = name == "train/entropy" and self.iteration - 1 == self.dull_iteration
        super().log(name, 0.0 if dull else value, **kwargs)

    def loss(self, *args, **kwargs):
        """Fails on one rank alone, in the middle of an update, in the way that it is told to."""
        if self.crash and self.iteration == 1:
            Path(self.crash[1]).write_text(str(time.time()))
            if self.crash[0] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a made-up fault")
        return super().loss(*args, **kwargs)


class States(pl.Callback):
    """Sums of this rank's part of weights and moments, before and after each iteration."""

    def __init__(self):
        self.before, self.after = [], []

    def on_train_batch_start(self, trainer, pl_module, *args):
        self.before.append(self.sums(trainer, pl_module))

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.after.append(self.sums(trainer, pl_module))

    def sums(self, trainer, pl_module):
        trained = {name: p for name, p in pl_module.model.named_parameters() if p.requires_grad}
        state = take_state(trained, trainer.optimizers[0])
        values = [*state["weights"].values(), *(v for kept in state["optimizer"].values() for v in kept.values())]
        return [float(value.double().abs().sum()) for value in values]


class Gradients(pl.Callback):
    """Keeps the whole gradient of the first optimizer step, put together from all ranks."""

    def __init__(self):
        self.first = {}

    def on_fit_start(self, trainer, pl_module):
        def keep(optimizer, args, kwargs):
            if not self.first:
                for name, p in pl_module.model.named_parameters():
                    if p.grad is not None:
                        whole = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
                        self.first[name] = whole.detach().clone()

        trainer.optimizers[0].register_step_pre_hook(keep)


class Recorder(pl.Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items() if "time/" not in k})


@dataclass
class Case:
    """One training. What it writes goes to `folder`."""

    folder: Path
    task: str = "grpo"
    strategy: str = "auto"
    precision: str = "32-true"
    real: bool = False
    fault: int = -1
    """The rank whose retriever is broken."""
    steps: int = 6
    ckpt: str | None = None
    lora: bool = False
    packing: str = "shared"
    aggregation: str = "token"
    lopsided: bool = False
    """Rank 0 has all questions."""
    guard: bool = False
    """Iteration 1 has no entropy on the last rank."""
    crash: str | None = None
    """How a rank fails in the second iteration: `raise` or `kill`."""
    crash_rank: int = 1

    def __post_init__(self):
        self.folder = Path(self.folder)


def strategy(name):
    if name == "fsdp":
        return FSDP2Strategy()
    return DDPStrategy(process_group_backend="gloo") if name == "ddp" else "auto"


def train(case, world):
    torch.manual_seed(0)  # as in a process of its own
    case.folder.mkdir(parents=True, exist_ok=True)
    rollout = RolloutConfig(max_turns=2, max_new_tokens=10 if case.real else 80)
    common = {
        "policy": "tiny",
        "rollout": rollout,
        "sampler": HFSampler() if case.real else ScriptedSampler(),
        "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        "tokens_per_micro_batch": 300,
        "gradient_clip": 0.3,
        "packing": case.packing,
        "lora": LoRAConfig(rank=4) if case.lora else None,
    }
    if case.task == "grpo":
        module = Lopsided(group_size=4, beta=0.05, updates_per_iteration=2, aggregation=case.aggregation, **common)
        module.real_sampling = case.real
    else:
        module = SFTModule(**common)
    recorder, states, gradients = Recorder(), States(), Gradients()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=strategy(case.strategy),
        precision=case.precision,
        max_steps=case.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=case.folder,
        callbacks=[
            recorder,
            RunRecorder(str(case.folder)),
            *([CollapseGuard(patience=1, keep_every=1, sampler_gap_above=None)] if case.guard else []),
            states,
            gradients,
        ],
    )
    rank = trainer.global_rank
    module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor(broken=rank == case.fault))
    items = QUESTIONS if case.task == "grpo" else [Example(q) for q in QUESTIONS]
    result = {}
    if rank == case.crash_rank and case.crash:
        module.crash = (case.crash, case.folder / "crashed")
    if rank == world - 1 and case.guard:
        module.dull_iteration = 1
    try:
        val = ListLoader(QUESTIONS[:5], 2 // world or 1, rank, world)
        loader = ListLoader(items, 4 // world, rank, world)
        if case.lopsided:
            loader.batches = [items[s : s + 4] if rank == 0 else [] for s in range(0, len(items), 4)]
        trainer.fit(module, datamodule=ListData(loader, val), ckpt_path=case.ckpt)
        result["rows"], result["before"], result["after"] = recorder.rows, states.before, states.after
        result["val"] = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        torch.save(gradients.first, case.folder / f"rank{rank}.gradients")
        trainer.save_checkpoint(case.folder / "checkpoint.ckpt")
        module.export_policy(case.folder / "policy")
    except Exception as error:  # the test reads which error it was
        result["error"] = f"{type(error).__name__}: {error}"
        if case.crash:
            raise
    (case.folder / f"rank{rank}.json").write_text(json.dumps(result))


def main(cases, processes):
    """Trains the cases of a JSON file, one after the other, in the same processes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for options in json.loads(Path(cases).read_text()):
        train(Case(**options), int(processes))


def rank_main(cases, rank, processes, port):
    """Is one of several processes that were started already, which Lightning finds out from their environment."""
    with open(cases.parent / f"rank{rank}.log", "w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    os.environ["RPL_HOME"] = str(cases.parent / "home")
    if processes > 1:
        place = {"LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()}
    main(cases, processes)


if __name__ == "__main__":
    main(*sys.argv[1:])
