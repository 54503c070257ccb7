"""Our side of the update benchmark: one whole training iteration of `GRPOModule` a turn, less the rollouts.

Started by `benchmarks.updates`, as `python -m benchmarks.updates_rpl WORKLOAD POLICY …`.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.turns import Turns
from rpl.core.records import Question, Rollout, Turn
from rpl.modules.batches.micro_batches import MicroBatch
from rpl.modules.grpo import GRPOModule
from rpl.modules.parts.rollout_engine import Rollouts

VARIANTS: dict[str, dict[str, Any]] = {
    "rpl": {},
    "plain": {"packing": "plain"},
    "full-logits": {"packing": "plain"},
    "no-entropy": {"log_entropy": False},
    "checkpointed": {"activation_checkpointing": True},
}
"""Settings of `GRPOModule`. `rpl` is what ships; `plain` pads rows and forwards every row with its own prompt;
`full-logits` also computes the logits of all tokens at once; the others change one thing each."""


class Prepared(GRPOModule):
    """Takes prepared rollouts in place of sampled ones; everything else of an iteration is what users run."""

    def __init__(self, rollouts: list[Rollout], full_logits: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.prepared = rollouts
        self.full_logits = full_logits

    def roll_out(self, *args: Any, **kwargs: Any) -> Rollouts:
        """Returns the prepared rollouts."""
        return Rollouts(self.prepared)

    def token_logprobs(self, batch: MicroBatch, temperature: float = 1.0, entropy: Any = "none") -> Any:
        """As shipped, or in the way of a first draft: logits of every position, log-softmax over all of them."""
        if not self.full_logits:
            return super().token_logprobs(batch, temperature, entropy)
        logits = self.model(input_ids=batch.input_ids, use_cache=False).logits[:, :-1].float() / temperature
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
        entropies: Tensor = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
        mask = batch.loss_mask[:, 1:]
        return chosen[mask], entropies[mask]


class TakeTurns(pl.Callback):
    """Waits for each turn, and times the training step from the start of the batch to the optimizer step's end."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.start = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tells that all is loaded."""
        self.turns.ready(torch=torch.__version__, threads=torch.get_num_threads())

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Waits, then starts the clock."""
        self.turns.wait()
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Stops the clock and reports."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        seconds = time.perf_counter() - self.start
        self.turns.done(
            seconds,
            loss=metrics["train/loss"],
            grad_norm=metrics["train/grad_norm"],
            tokens=metrics["train/tokens"],
            kept_rate=metrics["train/kept_rate"],
        )


class Batches(pl.LightningDataModule):
    """The same list of questions again and again; records stay on the CPU, as in RPL's own data modules."""

    def __init__(self, questions: list[Question], count: int) -> None:
        super().__init__()
        self.questions, self.count = questions, count

    def train_dataloader(self) -> DataLoader[Any]:
        """Returns the batches."""
        return DataLoader([self.questions] * self.count, batch_size=None)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves records alone."""
        return batch


def records(workload: dict[str, Any]) -> tuple[list[Question], list[Rollout]]:
    """Turns a workload into questions and rollouts; right rollouts answer `yes`."""
    questions, rollouts = [], []
    for number, group in enumerate(workload["groups"]):
        questions.append(Question(f"q{number}", "?", ("yes",)))
        for i, row in enumerate(group["rollouts"]):
            answer = "yes" if row["reward"] else "no"
            logprobs = [(-1.0,) * len(row[part]) for part in ("program", "answer")]
            turns = (
                Turn(tuple(row["program"]), logprobs[0], "", "stop", "pass", observation_ids=tuple(row["observation"])),
                Turn(tuple(row["answer"]), logprobs[1], "", "stop", answer=answer),
            )
            rollouts.append(Rollout(f"q{number}", f"0/q{number}", i, i, tuple(group["prompt"]), turns, answer))
    return questions, rollouts


def main() -> None:
    """Loads the policy and takes the asked-for number of turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path)
    parser.add_argument("policy")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="rpl")
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--micro-batch-tokens", type=int)
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()

    turns = Turns()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    workload = json.loads(args.workload.read_text())
    questions, rollouts = records(workload)
    settings = dict(VARIANTS[args.variant])
    if args.checkpointing:
        settings["activation_checkpointing"] = True
    module = Prepared(
        rollouts,
        args.variant == "full-logits",
        policy=args.policy,
        group_size=len(workload["groups"][0]["rollouts"]),
        tokens_per_micro_batch=args.micro_batch_tokens,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-5, weight_decay=0.0, fused=True),
        **settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if args.device == "cuda" else "cpu",
            devices=1,
            precision="bf16-mixed" if args.precision == "bf16" else "32-true",
            max_steps=args.turns,
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=folder,
            callbacks=[TakeTurns(turns)],
        )
        trainer.fit(module, datamodule=Batches(questions, args.turns))
    # `shared` is checked against padded rows when a run starts, and given up where it does not agree.
    turns.finish(args.device, packed=bool(module.packer.packs), micro_batch_tokens=module.packer.tokens)


if __name__ == "__main__":
    main()
