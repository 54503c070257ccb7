"""Packs sequences without padding; a beginning that several of them share is stored once.

The rollouts of a group start with the same prompt, often go on with the same program and see the same result. All that
is computed once, as a tree: each *segment* of tokens attends to the segments before it and to itself. What comes after
the last trained token of a sequence is not computed at all: nothing depends on it. Pure index arithmetic; what the
indices are for is in `shared_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rpl.core.errors import ConfigError
from rpl.modules.batches.prefix_tree import PackedSize, segments


@dataclass(frozen=True, slots=True)
class Bucket:
    """R segments of at most S tokens, each with a context of at most C; of like length, so that padding is small.

    Indices point into the packed tokens. Rows are padded on the right with index 0; what is computed there is dropped.
    """

    tokens: Tensor
    """`(R, S)` int64, the tokens of each segment."""
    seen: Tensor
    """`(R, C + S)` int64, the tokens before each segment, from the start of the sequence, and its own."""
    visible: Tensor | None
    """`(R, 1, S, C + S)` bool, which of context and own tokens each token sees; `None` if C is 0: causal."""
    masks: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict, compare=False, repr=False)
    """What attention made of `visible`, once for all layers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where packed tokens are."""

    buckets: tuple[Bucket, ...]
    order: Tensor
    """`(T,)` int64, the place of each packed token among the padded tokens of all buckets, flattened."""


@dataclass(frozen=True, slots=True)
class Packing:
    """T packed tokens of a micro-batch with N trained tokens, U of them different."""

    token_ids: Tensor
    """`(T,)` int64."""
    position_ids: Tensor
    """`(T,)` int64, positions in the sequences."""
    predictors: Tensor
    """`(U,)` int64, the packed token whose hidden state predicts each different trained token."""
    targets: Tensor
    """`(U,)` int64, the ids of these."""
    expand: Tensor
    """`(N,)` int64, which of the different ones each trained token is, in the micro-batch's order."""
    layout: Layout

    def to(self, device: torch.device | str) -> Packing:
        """Returns the packing with its tensors on `device`."""
        buckets = (
            Bucket(b.tokens.to(device), b.seen.to(device), None if b.visible is None else b.visible.to(device))
            for b in self.layout.buckets
        )
        layout = Layout(tuple(buckets), self.layout.order.to(device))
        return Packing(
            self.token_ids.to(device),
            self.position_ids.to(device),
            self.predictors.to(device),
            self.targets.to(device),
            self.expand.to(device),
            layout,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed by everything but attention."""
        return self.token_ids.numel()


def needed(loss_mask: Sequence[bool]) -> int:
    """Returns how many tokens of a sequence are inputs to anything that is trained: those before the last trained one.

    >>> needed([False, True, False, True, False]), needed([False, False])
    (3, 0)
    """
    return max((i for i, trained in enumerate(loss_mask) if trained), default=0)


def plan_packed(sequences: Sequence[tuple[int, ...]], token_budget: int) -> list[list[int]]:
    """Deals sequences to micro-batches of at most `token_budget` packed tokens, what is common counted once in each.

    Those that begin alike stay together. Largest first, so that memory peaks at once and not an hour into the run.

    Args:
        sequences: The tokens of each that have to be computed.
        token_budget: Packed tokens at most; a single sequence may be longer.

    Returns:
        Lists of indices; every index appears exactly once.

    Raises:
        ConfigError: The budget is not positive.

    >>> plan_packed([(1,) * 20, (2,) * 9, (1,) * 18 + (3,) * 4], token_budget=24)
    [[0, 2], [1]]
    """
    if token_budget < 1:
        raise ConfigError(f"tokens_per_micro_batch must be at least 1, got {token_budget}")
    parts: list[list[int]] = []
    sizes: list[int] = []
    tree = PackedSize()
    for index in sorted(range(len(sequences)), key=lambda i: sequences[i]):
        size = tree.add(sequences[index])
        if parts and size <= token_budget:
            parts[-1].append(index)
            sizes[-1] = size
        else:
            tree = PackedSize()
            parts.append([index])
            sizes.append(tree.add(sequences[index]))
    return [sorted(parts[i]) for i in sorted(range(len(parts)), key=lambda i: -sizes[i])]


def pack_tokens(token_ids: Sequence[tuple[int, ...]], loss_masks: Sequence[Sequence[bool]]) -> Packing:
    """Packs sequences; what two or more of them begin with is laid down once.

    Args:
        token_ids: The sequences.
        loss_masks: True on their trained tokens; never on the first.

    Returns:
        A packing of at least one token.
    """
    inputs = [ids[: needed(mask)] for ids, mask in zip(token_ids, loss_masks, strict=True)]
    if not any(inputs):  # nothing is trained: one token, so that there is something to go forward and backward with
        inputs = [token_ids[0][:1]]
    order = sorted(range(len(inputs)), key=lambda i: inputs[i])
    rows = [inputs[i] for i in order]
    tokens: list[int] = []
    positions: list[int] = []
    paths: list[list[int]] = [[] for _ in rows]  # the packed tokens of each row
    parts: list[tuple[list[int], list[int]]] = []  # context and own tokens
    for segment in segments(rows):
        context = list(paths[segment.first])
        own = list(range(len(tokens), len(tokens) + segment.end - segment.start))
        tokens += rows[segment.first][segment.start : segment.end]
        positions += range(segment.start, segment.end)
        for row in range(segment.first, segment.last):
            paths[row] += own
        parts.append((context, own))
    places: dict[tuple[int, int], int] = {}
    expand: list[int] = []
    path_of = {index: paths[row] for row, index in enumerate(order)}
    for index, (ids, mask) in enumerate(zip(token_ids, loss_masks, strict=True)):
        path = path_of[index]
        expand += [
            places.setdefault((path[place - 1], ids[place]), len(places))
            for place, trained in enumerate(mask)
            if trained
        ]
    return Packing(
        _int(tokens),
        _int(positions),
        _int([predictor for predictor, _ in places]),
        _int([target for _, target in places]),
        _int(expand),
        _layout(parts, len(tokens)),
    )


def _layout(segments: list[tuple[list[int], list[int]]], total: int) -> Layout:
    alike: dict[tuple[bool, int], list[int]] = {}
    for number, (before, own) in enumerate(segments):
        alike.setdefault((bool(before), len(own).bit_length()), []).append(number)
    buckets = []
    order = torch.empty(total, dtype=torch.long)
    offset = 0
    for key in sorted(alike):
        members = [segments[number] for number in alike[key]]
        tokens, real = _padded([own for _, own in members])
        context, known = _padded([before for before, _ in members])
        visible = None
        if context.shape[1]:
            height = tokens.shape[1]
            causal = torch.ones(height, height, dtype=torch.bool).tril()
            parts = [known[:, None].expand(-1, height, -1), causal.expand(len(members), -1, -1)]
            visible = torch.cat(parts, dim=-1).unsqueeze(1)
        buckets.append(Bucket(tokens, torch.cat([context, tokens], dim=1), visible))
        order[tokens[real]] = offset + real.flatten().nonzero()[:, 0]
        offset += tokens.numel()
    return Layout(tuple(buckets), order)


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Pads lists on the right with 0; returns them and which values are real, both `(rows, longest)`."""
    lengths = _int([len(row) for row in rows])
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    values = torch.zeros(real.shape, dtype=torch.long)
    values[real] = _int([value for row in rows for value in row])
    return values, real


def _int(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.long)
