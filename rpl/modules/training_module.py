"""Manual optimisation, shared by all training modules: accumulate micro-batches, clip, step, the same on every rank."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rpl.core.errors import RPLError
from rpl.modules.base import PolicyModule
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import MicroBatch, TrainingSequence
from rpl.modules.losses import LossOutput
from rpl.policy.weights.sharding import clip_gradients, gradient_sync

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Update:
    """What one update computed."""

    sums: dict[str, float]
    """The loss, the sums that came with it, both over all ranks, and `grad_norm` where there was work."""
    logprobs: list[Tensor]
    """Of each micro-batch, `(N,)` log-probabilities of its trained tokens before the update, without gradient."""


class TrainingModule(PolicyModule, ABC):
    """A policy module that trains.

    One `training_step` is one *iteration* and makes a fixed number of updates (optimizer steps), also when there is
    nothing to learn: an update without any gradient changes neither weights nor optimizer state, but it is counted. So
    `trainer.max_steps`, checkpoint intervals and `trainer.global_step` mean the same in every run, resumed or not.
    """

    updates_per_step: int = 1
    """Updates in one iteration."""
    learning_rate: float = 0.0
    """That of the latest update."""

    def pack(self, sequences: Sequence[TrainingSequence]) -> list[MicroBatch]:
        """Cuts sequences into micro-batches, as many on every rank; collective, see `Packer`."""
        return self.packer.micro_batches(
            sequences, self.model, self.policy_model.tokenizer.pad_token_id, self.trainer.precision, self.ranks
        )

    def token_logprobs(
        self, batch: MicroBatch, temperature: float = 1.0, entropy: Literal["none", "detached", "grad"] = "none"
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the trained tokens of a micro-batch; see `score_tokens`."""
        chunk = self.logprob_chunk_tokens
        return score_tokens(self.model, batch, temperature=temperature, entropy=entropy, chunk_tokens=chunk)

    def update(self, work: Sequence[tuple[MicroBatch, T]], loss: Callable[[MicroBatch, T], LossOutput]) -> Update:
        """Makes one update from micro-batches; collective.

        Args:
            work: Micro-batches from `pack`, each with whatever `loss` needs besides.
            loss: Maps a micro-batch to its part of the loss, already divided by the normaliser of all ranks.

        Raises:
            RPLError: The gradient is not finite.
        """
        optimizer: Any = self.optimizers()
        optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        logprobs: list[Tensor] = []
        for number, (batch, extra) in enumerate(work):
            last = number == len(work) - 1
            with gradient_sync(self.model, self.trainer.strategy, enabled=last):
                output = loss(batch, extra)
                # Gradients are averaged over ranks, but the loss is a share of the sum over ranks.
                self.manual_backward(output.loss * self.world_size)
            add_up(sums, {name: float(value) for name, value in {"loss": output.loss.detach(), **output.sums}.items()})
            logprobs.append(output.logprobs)
        if work:
            sums = self.ranks.sums(sums)
            norm = clip_gradients(self.policy_model.trainable, self.gradient_clip or None)
            if not torch.isfinite(torch.tensor(norm)):
                raise RPLError(f"the gradient norm is {norm} in iteration {self.iteration}; no update was made")
            sums["grad_norm"] = norm
        self.learning_rate = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return Update(sums, logprobs)


def add_up(totals: dict[str, float], values: dict[str, float]) -> None:
    """Adds values to totals by name, in place."""
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + value
