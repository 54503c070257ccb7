"""TRL's side of the update benchmark: one optimizer step of its `GRPOTrainer` a turn, with prepared completions.

Started by `benchmarks.updates` with the Python of TRL's own environment; imports nothing of RPL.

The completions come in through `rollout_func`, which hands them over with `env_mask`, so that observations are out of
the loss as they are on our side. What is timed is `on_step_begin` to `on_step_end`: padding, rewards and advantages,
whatever passes TRL makes over the rows, gradient clipping and the optimizer step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.turns import Turns


def main() -> None:
    """Loads the policy and takes the asked-for number of turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path)
    parser.add_argument("policy")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="rows of a micro-batch (per_device_train_batch_size)")
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()

    turns = Turns()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    groups = json.loads(args.workload.read_text())["groups"]
    group_size = len(groups[0]["rollouts"])
    total = len(groups) * group_size
    tokenizer = AutoTokenizer.from_pretrained(args.policy, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.policy, dtype=torch.float32, attn_implementation="sdpa")

    def prepared(prompts: list[str], trainer: Any) -> dict[str, Any]:
        seen: Counter[str] = Counter()
        out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "prepared_reward": []}
        for prompt in prompts:
            group = groups[int(prompt)]
            row = group["rollouts"][seen[prompt]]
            seen[prompt] += 1
            out["prompt_ids"].append(group["prompt"])
            out["completion_ids"].append(row["program"] + row["observation"] + row["answer"])
            out["env_mask"].append([1] * len(row["program"]) + [0] * len(row["observation"]) + [1] * len(row["answer"]))
            out["prepared_reward"].append(row["reward"])
        return out | {"logprobs": None}

    def reward(completions: list[str], prepared_reward: list[float], **kwargs: Any) -> list[float]:
        return prepared_reward

    class TakeTurns(TrainerCallback):
        start = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            turns.wait()
            self.start = time.perf_counter()

        def on_step_end(self, *step_args: Any, **kwargs: Any) -> None:
            if args.device == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - self.start
            turns.done(seconds, grad_norm=float(trainer.clipped_norm))

    class Timed(GRPOTrainer):
        clipped_norm = 0.0

        def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
            norm = super()._get_grad_norm(model, grad_norm=grad_norm)
            self.clipped_norm = norm
            return norm

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=args.rows,
            gradient_accumulation_steps=total // args.rows,
            num_generations=group_size,
            max_completion_length=max(
                len(r["program"]) + len(r["observation"]) + len(r["answer"]) for g in groups for r in g["rollouts"]
            ),
            num_iterations=1,
            beta=0.0,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            temperature=1.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_steps=args.turns,
            bf16=args.precision == "bf16",
            gradient_checkpointing=args.checkpointing,
            use_cpu=args.device == "cpu",
            shuffle_dataset=False,
            logging_steps=10**6,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Timed(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(groups))]}),
            processing_class=tokenizer,
            rollout_func=prepared,
            callbacks=[TakeTurns()],
        )
        turns.ready(
            trl=version("trl"),
            transformers=version("transformers"),
            torch=torch.__version__,
            threads=torch.get_num_threads(),
        )
        trainer.train()
    turns.finish(args.device)


if __name__ == "__main__":
    main()
