"""Run by test_sharded_training.py as a script, because Lightning's launcher starts further processes from sys.argv.

Trains a GRPO or SFT module on CPU and writes what each iteration logged to a file, which is the verdict: exit codes of
process groups are not reliable.
"""

import argparse
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "modules"))

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from module_fakes import QUESTIONS, FakeExecutor, ListData, ListLoader, ScriptedSampler

from rpl.modules.grpo import GRPOModule
from rpl.modules.sft import SFTModule
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


class Recorder(pl.Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items() if "time/" not in k})


def strategy(name, devices):
    if name == "fsdp":
        return ModelParallelStrategy(data_parallel_size=devices, tensor_parallel_size=1)
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
    }
    if args.task == "grpo":
        module = Lopsided(group_size=4, beta=0.05, updates_per_iteration=2, **common)
        module.real_sampling = args.real
    else:
        module = SFTModule(**common)
    recorder = Recorder()
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
        callbacks=[recorder],
    )
    module.executor = FakeExecutor(broken=trainer.global_rank == args.fault)
    items = QUESTIONS if args.task == "grpo" else [Example(q) for q in QUESTIONS]
    rank, world = trainer.global_rank, args.devices
    result = {}
    try:
        val = ListLoader(QUESTIONS[:5], 2 // world or 1, rank, world)
        data = ListData(ListLoader(items, 4 // world, rank, world), val)
        trainer.fit(module, datamodule=data, ckpt_path=args.ckpt)
        result["rows"] = recorder.rows
        result["val"] = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
        trainer.save_checkpoint(args.out.with_suffix(".ckpt"))
        module.export_policy(args.out.with_suffix(".policy"))
    except Exception as error:  # the test reads which error it was
        result["error"] = f"{type(error).__name__}: {error}"
    args.out.with_suffix(f".{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
