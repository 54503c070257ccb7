"""Run by test_estimate_measured.py as a script, because peak memory is that of a whole process.

Trains SmolLM2 for two iterations on made-up transcripts and prints the peak as a JSON line.
"""

import argparse
import json
import resource
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lightning.pytorch as pl
import torch
from module_fakes import QUESTIONS, FakeExecutor, ListData, ListLoader

from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.modules.grpo import GRPOModule
from rpl.modules.sft import SFTModule
from rpl.policy.weights.lora import LoRAConfig
from rpl.rollouts.requests import RolloutConfig


@dataclass(frozen=True)
class Example:
    question: str
    question_id: str
    steps: tuple[tuple[str, str], ...]
    answer: str
    imitate: bool = True


class AllKept(GRPOModule):
    """Every rollout gets credit by its place in the group, so that there is something to train on."""

    def credit(self, *args):
        return [replace(c, advantage=(-1.0) ** c.rollout.sample_index, kept=True) for c in super().credit(*args)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=["rl", "sft"])
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    common = {
        "policy": "smollm2-135m",
        "rollout": RolloutConfig(max_turns=1, max_new_tokens=64, batch_size=64),
        "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
        "tokens_per_micro_batch": 1024,
        "lora": LoRAConfig(rank=16) if args.lora else None,
    }
    if args.task == "rl":
        module = AllKept(group_size=8, **common)
        loader = ListLoader(QUESTIONS, 6)
    else:
        module = SFTModule(**common)
        text = "Lyon is a city in the east of France, on the Rhone. " * 12
        loader = ListLoader([Example(q.question, q.id, (("print(1)", text),), q.answers[0]) for q in QUESTIONS], 12)
    module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor())
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        precision=args.precision,
        max_steps=2,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=args.out,
    )
    trainer.fit(module, datamodule=ListData(loader, ListLoader(QUESTIONS[:1], 1)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak": peak, "tokens": float(trainer.callback_metrics["train/tokens"])}))  # noqa: T201


if __name__ == "__main__":
    main()
