"""Run by test_sharded_training.py as a script, because Lightning's launcher starts further processes from sys.argv.

Trains a GRPO or SFT module on CPU and writes what each iteration logged to a file, which is the verdict: exit codes of
process groups are not reliable.
"""

import argparse
import json
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "modules"))

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from module_fakes import QUESTIONS, FakeExecutor, ListData, ListLoader, ScriptedSampler

from rpl.callbacks import CollapseGuard
from rpl.modules.grpo import GRPOModule
from rpl.modules.keeping import take_state
from rpl.modules.lora import LoRAConfig
from rpl.modules.sft import SFTModule
from rpl.modules.strategy import FSDP2Strategy
from rpl.rollouts.hf_sampler import HFSampler
from rpl.rollouts.loop import RolloutConfig

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

    def _score(self, rollouts, valid, questions):
        scored, log = super()._score(rollouts, valid, questions)
        if self.real_sampling:  # a random model is always wrong: give its rollouts credit by their place in the group
            scored = [replace(s, advantage=(-1.0) ** s.rollout.sample_index, kept=True) for s in scored]
        return [replace(s, kept=s.kept and s.rollout.question_id not in DROPPED) for s in scored], log

    crash = None
    dull_iteration = None

    def log(self, name, value, **kwargs):
        """Reports one iteration without entropy, on this rank alone."""
        dull = name == "train/entropy" and self.iteration - 1 == self.dull_iteration
        super().log(name, 0.0 if dull else value, **kwargs)

    def _loss(self, *args, **kwargs):
        """Fails on one rank alone, in the middle of an update, in the way that it is told to."""
        if self.crash and self.iteration == 1:
            Path(self.crash[1]).write_text(str(time.time()))
            if self.crash[0] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a made-up fault")
        return super()._loss(*args, **kwargs)


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


def strategy(name, devices):
    if name == "fsdp":
        return FSDP2Strategy()
    return DDPStrategy(process_group_backend="gloo") if name == "ddp" else "auto"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--task", default="grpo")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--fault", type=int, default=-1, help="the rank whose retriever is broken")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ckpt")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--packing", choices=["shared", "plain"], default="shared")
    parser.add_argument("--aggregation", choices=["token", "sequence", "constant"], default="token")
    parser.add_argument("--lopsided", action="store_true", help="rank 0 has all questions")
    parser.add_argument("--guard", action="store_true", help="iteration 1 has no entropy on the last rank")
    parser.add_argument("--crash", choices=["raise", "kill"], help="how a rank fails in the second iteration")
    parser.add_argument("--crash_rank", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    rollout = RolloutConfig(max_turns=2, max_new_tokens=10 if args.real else 80)
    common = {
        "policy": "tiny",
        "rollout": rollout,
        "sampler": HFSampler() if args.real else ScriptedSampler(),
        "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        "tokens_per_micro_batch": 300,
        "gradient_clip": 0.3,
        "packing": args.packing,
        "lora": LoRAConfig(rank=4) if args.lora else None,
    }
    if args.task == "grpo":
        module = Lopsided(group_size=4, beta=0.05, updates_per_iteration=2, aggregation=args.aggregation, **common)
        module.real_sampling = args.real
    else:
        module = SFTModule(**common)
    recorder, states, gradients = Recorder(), States(), Gradients()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy=strategy(args.strategy, args.devices),
        precision=args.precision,
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=args.out.parent,
        callbacks=[
            recorder,
            *([CollapseGuard(patience=1, keep_every=1, sampler_gap_above=None)] if args.guard else []),
            states,
            gradients,
        ],
    )
    module.executor = FakeExecutor(broken=trainer.global_rank == args.fault)
    items = QUESTIONS if args.task == "grpo" else [Example(q) for q in QUESTIONS]
    rank, world = trainer.global_rank, args.devices
    result = {}
    if rank == args.crash_rank and args.crash:
        module.crash = (args.crash, args.out.with_suffix(".crashed"))
    if rank == world - 1 and args.guard:
        module.dull_iteration = 1
    try:
        val = ListLoader(QUESTIONS[:5], 2 // world or 1, rank, world)
        train = ListLoader(items, 4 // world, rank, world)
        if args.lopsided:
            train.batches = [items[s : s + 4] if rank == 0 else [] for s in range(0, len(items), 4)]
        data = ListData(train, val)
        trainer.fit(module, datamodule=data, ckpt_path=args.ckpt)
        result["rows"], result["before"], result["after"] = recorder.rows, states.before, states.after
        result["val"] = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        torch.save(gradients.first, args.out.with_suffix(f".{rank}.gradients"))
        trainer.save_checkpoint(args.out.with_suffix(".ckpt"))
        module.export_policy(args.out.with_suffix(".policy"))
    except Exception as error:  # the test reads which error it was
        result["error"] = f"{type(error).__name__}: {error}"
        if args.crash:
            raise
    args.out.with_suffix(f".{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
