"""Token sequences to micro-batches. Pure; knows neither the model nor where the sequences came from.

Rows are padded on the *right*. Under causal attention no real token sees a pad that comes after it, so the model needs
no attention mask and can take the fast causal path; `attention_mask` is there for models that are not causal. A
micro-batch may have its tokens a second time, packed (see `packing`); the padded ones then only carry the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rpl.core.errors import ConfigError
from rpl.core.records import Rollout
from rpl.modules.batches.packing import Packing, needed, pack_tokens, plan_packed

TOKEN_BUDGET = {"cpu": 3072, "cuda": 16384}
"""Tokens of a micro-batch where nothing else is said, by type of device: enough for a group of rollouts on a CPU."""


def token_budget(wanted: int | None, device_type: str) -> int:
    """Returns how many tokens a micro-batch may have.

    Args:
        wanted: What the user says, or `None`.
        device_type: As in `torch.device`.
    """
    return wanted or TOKEN_BUDGET.get(device_type, TOKEN_BUDGET["cuda"])


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One transcript with what the loss needs to know about each of its tokens."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True where the token is trained on; explicit, never derived from a pad value."""
    advantage: float = 0.0
    """The advantage of every trained token."""
    sampler_logprobs: tuple[float, ...] | None = None
    """Log-probabilities under the sampler; read only where `loss_mask` is True."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.token_ids)} token ids but a loss mask of {len(self.loss_mask)}")
        if self.sampler_logprobs is not None and len(self.sampler_logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} token ids but {len(self.sampler_logprobs)} log-probabilities")
        if self.loss_mask and self.loss_mask[0]:
            raise ValueError("the first token cannot be trained on: nothing predicts it")

    @property
    def num_trained(self) -> int:
        """Tokens that are trained on."""
        return sum(self.loss_mask)


def from_rollout(rollout: Rollout, advantage: float) -> TrainingSequence:
    """Takes the sampled ids as they are: completions are trained, prompt and observations are not."""
    return TrainingSequence(rollout.token_ids, rollout.completion_mask, advantage, rollout.sampler_logprobs)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B sequences padded on the right to the longest, T tokens. Padding: id `pad_id`, mask False, the rest 0."""

    input_ids: Tensor
    """`(B, T)` int64."""
    attention_mask: Tensor
    """`(B, T)` bool, True on real tokens."""
    position_ids: Tensor
    """`(B, T)` int64, counting from 0 in each row."""
    loss_mask: Tensor
    """`(B, T)` bool, True on trained tokens."""
    advantages: Tensor
    """`(B, T)` float32; 0 where `loss_mask` is False."""
    sampler_logprobs: Tensor
    """`(B, T)` float32; 0 where `loss_mask` is False."""
    indices: tuple[int, ...]
    """Row b holds the sequence with this number in the list that was batched; empty for a dummy."""
    packing: Packing | None = None
    """The tokens without padding, common beginnings once, for models that can take them so."""

    def to(self, device: torch.device | str) -> MicroBatch:
        """Returns the micro-batch with its tensors on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name in self.__slots__
            if isinstance(value := getattr(self, name), (Tensor, Packing))
        }
        return replace(self, **moved)

    @property
    def num_trained(self) -> int:
        """Tokens that are trained on."""
        return int(self.loss_mask.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.input_ids.numel() if self.packing is None else self.packing.num_tokens

    @property
    def targets(self) -> Tensor:
        """`(N,)` ids of the trained tokens, in row-major order."""
        return self.input_ids[self.loss_mask]


def plan_micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Sorts sequences by length and cuts them into micro-batches of at most `token_budget` padded tokens.

    Longest first, so that memory peaks at once and not an hour into the run. A sequence longer than the budget gets
    a micro-batch of its own. Equal lengths keep their order.

    Args:
        lengths: Tokens of each sequence.
        token_budget: Rows times longest row, at most.

    Returns:
        Lists of indices into `lengths`; every index appears exactly once.

    Raises:
        ConfigError: The budget is not positive.

    >>> plan_micro_batches([3, 9, 4, 5], token_budget=10)
    [[1], [3, 2], [0]]
    """
    if token_budget < 1:
        raise ConfigError(f"tokens_per_micro_batch must be at least 1, got {token_budget}")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    plan: list[list[int]] = []
    for index in order:
        if plan and (len(plan[-1]) + 1) * lengths[plan[-1][0]] <= token_budget:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan


def collate(
    sequences: Sequence[TrainingSequence], indices: Sequence[int], pad_id: int = 0, packed: bool = False
) -> MicroBatch:
    """Pads the sequences with the given indices to one micro-batch.

    Args:
        sequences: All sequences.
        indices: Which of them, in the order of the rows; at least one.
        pad_id: Any valid token id; it is masked everywhere.
        packed: Whether to pack the tokens, too.
    """
    rows = [sequences[i] for i in indices]
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    input_ids = torch.full(shape, pad_id, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.bool)
    loss_mask = torch.zeros(shape, dtype=torch.bool)
    advantages = torch.zeros(shape)
    sampler_logprobs = torch.zeros(shape)
    for b, row in enumerate(rows):
        length = len(row.token_ids)
        input_ids[b, :length] = torch.tensor(row.token_ids, dtype=torch.long)
        attention_mask[b, :length] = True
        loss_mask[b, :length] = torch.tensor(row.loss_mask, dtype=torch.bool)
        advantages[b] = row.advantage
        if row.sampler_logprobs is not None:
            sampler_logprobs[b, :length] = torch.tensor(row.sampler_logprobs)
    return MicroBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=torch.arange(shape[1]).expand(shape).clone(),
        loss_mask=loss_mask,
        advantages=advantages.masked_fill(~loss_mask, 0.0),
        sampler_logprobs=sampler_logprobs.masked_fill(~loss_mask, 0.0),
        indices=tuple(indices),
        packing=pack_tokens([r.token_ids for r in rows], [r.loss_mask for r in rows]) if packed else None,
    )


def micro_batches(
    sequences: Sequence[TrainingSequence], token_budget: int, pad_id: int = 0, packed: bool = False
) -> list[MicroBatch]:
    """Plans and pads or packs; every sequence is in exactly one micro-batch.

    Args:
        sequences: All sequences.
        token_budget: Tokens of a micro-batch that are computed, at most: padded ones, or packed ones.
        pad_id: Any valid token id.
        packed: Whether to pack.
    """
    if packed:
        plan = plan_packed([s.token_ids[: needed(s.loss_mask)] for s in sequences], token_budget)
    else:
        plan = plan_micro_batches([len(s.token_ids) for s in sequences], token_budget)
    return [collate(sequences, indices, pad_id, packed) for indices in plan]


def dummy_micro_batch(pad_id: int = 0, packed: bool = False) -> MicroBatch:
    """Two tokens, none of them trained: a rank that has run out of work still goes forward and backward with it."""
    return replace(collate([TrainingSequence((pad_id, pad_id), (False, False))], [0], pad_id, packed), indices=())


def split_evenly(count: int, parts: int) -> list[list[int]]:
    """Deals `count` items to `parts` mini-batches, round robin; some are empty when there are more parts than items.

    >>> split_evenly(5, 2)
    [[0, 2, 4], [1, 3]]
    """
    return [list(range(start, count, parts)) for start in range(parts)]
