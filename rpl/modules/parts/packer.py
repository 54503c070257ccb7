"""Splits sequences into micro-batches, equally many on every rank; packs them if the model allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from rpl.core.progress import say
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import (
    MicroBatch,
    TrainingSequence,
    collate,
    dummy_micro_batch,
    micro_batches,
    token_budget,
)
from rpl.modules.batches.shared_attention import can_share
from rpl.modules.parts.collectives import Ranks
from rpl.policy.modes import evaluating

PACKING_BOUNDS = {"32-true": 1e-4, "bf16-mixed": 0.05}
"""Largest mean difference in nats between log-probabilities of packed and padded tokens, by precision."""


class Packer:
    """Cuts an update's sequences into micro-batches.

    Args:
        packing: `shared` packs where that is exact; `plain` pads rows.
        tokens: Computed tokens of a micro-batch; `None` chooses by device.
    """

    def __init__(self, packing: Literal["shared", "plain"], tokens: int | None) -> None:
        self.packing, self.tokens = packing, tokens
        self.packs: bool | None = False if packing == "plain" else None
        """Whether micro-batches are packed; `None` until the first sequences have shown whether that is exact."""

    def micro_batches(
        self, sequences: Sequence[TrainingSequence], model: Any, pad: int, precision: str, ranks: Ranks
    ) -> list[MicroBatch]:
        """Cuts sequences into micro-batches, as many on this rank as on the one that has most. Collective.

        Ranks with less work get dummies, so that all of them make the same forward and backward passes. The list is
        empty only if there is no work on any rank. The first time that there is work, a few sequences are scored both
        ways. If the results differ, this is said, and the run goes on with padded rows.

        Args:
            sequences: Those of this rank.
            model: What is trained on them.
            pad: Id of the padding token.
            precision: The Trainer's.
            ranks: The processes of the run.
        """
        if self.packs is None and not can_share(model):
            say(f"packing: {type(model).__name__} has attention that cannot be shared; rows are padded")
            self.packs = False
        if self.packs is None and ranks.largest(float(any(s.num_trained for s in sequences))):
            gap, bound = packing_gap(sequences, model, pad, ranks), PACKING_BOUNDS[precision]
            self.packs = gap <= bound
            if not self.packs:
                say(
                    f"packing: log-probabilities of packed and padded tokens differ by {gap:.2g} nats "
                    f"(more than {bound:g}); rows are padded"
                )
        packed = bool(self.packs)
        batches = micro_batches(sequences, token_budget(self.tokens, ranks.device.type), pad, packed)
        missing = int(ranks.largest(len(batches))) - len(batches)
        return [batch.to(ranks.device) for batch in batches + [dummy_micro_batch(pad, packed)] * missing]


@torch.no_grad()
def packing_gap(sequences: Sequence[TrainingSequence], model: Any, pad: int, ranks: Ranks) -> float:
    """The mean difference between log-probabilities of packed and padded tokens, the largest of all ranks.

    Args:
        sequences: Those of this rank; up to four are taken, which begin alike where there are such.
        model: See `Packer.micro_batches`.
        pad: Id of the padding token.
        ranks: The processes of the run.
    """
    # Sorted, those that begin alike are next to each other.
    rows = sorted((s for s in sequences if s.num_trained), key=lambda s: s.token_ids)[:4]
    batch = collate(rows, range(len(rows)), pad, packed=True) if rows else dummy_micro_batch(pad, packed=True)
    batch = batch.to(ranks.device)
    with evaluating(model):  # dropout would differ from pass to pass
        packed, _ = score_tokens(model, batch)
        padded, _ = score_tokens(model, replace(batch, packing=None))
    gap = float((packed - padded).abs().mean()) if packed.numel() else 0.0
    # NaN compares as false with every bound, and would be lost in a maximum.
    return ranks.largest(gap if gap == gap else float("inf"))
