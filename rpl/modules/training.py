"""Manual optimisation, shared by all training modules: accumulate micro-batches, clip, step, the same on every rank."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from rpl.core.errors import RPLError
from rpl.core.progress import say
from rpl.modules.base import PolicyModule
from rpl.modules.batches.micro_batches import (
    MicroBatch,
    TrainingSequence,
    collate,
    dummy_micro_batch,
    micro_batches,
    token_budget,
)
from rpl.modules.batches.shared_attention import can_share
from rpl.modules.losses import LossOutput
from rpl.policy.sharding import clip_gradients, gradient_sync

T = TypeVar("T")

PACKING_BOUNDS = {"32-true": 1e-4, "bf16-mixed": 0.05}
"""Largest mean difference in nats between log-probabilities of packed and padded tokens, by precision."""


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
    _packs: bool | None = None

    def pack(self, sequences: Sequence[TrainingSequence]) -> list[MicroBatch]:
        """Cuts sequences into micro-batches, as many on this rank as on the one that has most.

        Ranks with less work get dummies, so that all of them make the same forward and backward passes. The list is
        empty only if there is no work on any rank.
        """
        pad = self.tokenizer.pad_token_id
        packed = self.packs(sequences)
        budget = token_budget(self.tokens_per_micro_batch, self.device.type)
        batches = micro_batches(sequences, budget, pad, packed)
        missing = int(self.reduce_max(len(batches))) - len(batches)
        return [batch.to(self.device) for batch in batches + [dummy_micro_batch(pad, packed)] * missing]

    def packs(self, sequences: Sequence[TrainingSequence]) -> bool:
        """Whether micro-batches are packed; collective.

        The first time that there is work, a few sequences are scored both ways. If the results differ, this is said,
        and the run goes on with padded rows.
        """
        if self._packs is not None:
            return self._packs
        if self.packing == "plain":
            self._packs = False
        elif not can_share(self.model):
            say(f"packing: {type(self.model).__name__} has attention that cannot be shared; rows are padded")
            self._packs = False
        elif self.reduce_max(float(any(s.num_trained for s in sequences))):
            gap, bound = self.packing_gap(sequences), PACKING_BOUNDS[self.trainer.precision]
            self._packs = gap <= bound
            if not self._packs:
                say(
                    f"packing: log-probabilities of packed and padded tokens differ by {gap:.2g} nats "
                    f"(more than {bound:g}); rows are padded"
                )
        return bool(self._packs)

    @torch.no_grad()
    def packing_gap(self, sequences: Sequence[TrainingSequence]) -> float:
        """The mean difference between log-probabilities of packed and padded tokens, the largest of all ranks.

        Args:
            sequences: Those of this rank; up to four are taken, which begin alike where there are such.
        """
        pad = self.tokenizer.pad_token_id
        # Sorted, those that begin alike are next to each other.
        rows = sorted((s for s in sequences if s.num_trained), key=lambda s: s.token_ids)[:4]
        batch = collate(rows, range(len(rows)), pad, packed=True) if rows else dummy_micro_batch(pad, packed=True)
        batch, training = batch.to(self.device), self.model.training
        self.model.eval()  # dropout would differ from pass to pass
        packed, _ = self.token_logprobs(batch)
        padded, _ = self.token_logprobs(replace(batch, packing=None))
        self.model.train(training)
        gap = float((packed - padded).abs().mean()) if packed.numel() else 0.0
        # NaN compares as false with every bound, and would be lost in a maximum.
        return self.reduce_max(gap if gap == gap else float("inf"))

    def update(
        self, work: Sequence[tuple[MicroBatch, T]], loss: Callable[[MicroBatch, T], LossOutput]
    ) -> dict[str, float]:
        """Makes one update from micro-batches; collective.

        Args:
            work: Micro-batches from `pack`, each with whatever `loss` needs besides.
            loss: Maps a micro-batch to its part of the loss, already divided by the normaliser of all ranks.

        Returns:
            The loss, the sums that came with it, both over all ranks, and `grad_norm` where there was work.

        Raises:
            RPLError: The gradient is not finite.
        """
        optimizer: Any = self.optimizers()
        optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for number, (batch, extra) in enumerate(work):
            last = number == len(work) - 1
            with gradient_sync(self.model, self.trainer.strategy, enabled=last):
                output = loss(batch, extra)
                # Gradients are averaged over ranks, but the loss is a share of the sum over ranks.
                self.manual_backward(output.loss * self.world_size)
            for name, value in {"loss": output.loss.detach(), **output.sums}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        norm = None
        if work:
            sums = self.reduce_sums(sums)
            norm = clip_gradients(self.trainable, self.gradient_clip or None)
            if not torch.isfinite(torch.tensor(norm)):
                raise RPLError(f"the gradient norm is {norm} in iteration {self.iteration}; no update was made")
        self.learning_rate = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return sums if norm is None else sums | {"grad_norm": norm}
