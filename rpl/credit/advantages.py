"""Turns the rewards of a group into advantages. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rpl.core.errors import ConfigError

AdvantageKind = Literal["grpo", "dr_grpo", "rloo", "reinforce"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """What `group_advantages` found, aligned with the rewards it was given."""

    values: Tensor
    """`(N,)` float64; 0 where `keep` is False."""
    keep: Tensor
    """`(N,)` bool; False where the group's rewards are all equal, so that nothing can be learnt from it."""


def group_advantages(
    rewards: Sequence[float],
    group_ids: Sequence[str],
    kind: AdvantageKind = "grpo",
    eps: float = 1e-6,
    batch_rewards: Sequence[float] | None = None,
) -> Advantages:
    """Compares each reward with the others of its group.

    With `r` the rewards of a group of size G, its mean `m` and its sample standard deviation `s` (divisor G - 1):

    - `grpo`: `(r - m) / (s + eps)`, eq. 3 of arXiv:2402.03300.
    - `dr_grpo`: `r - m`, arXiv:2503.20783.
    - `rloo`: `r` minus the mean of the *other* G - 1 rewards, arXiv:2402.14740.
    - `reinforce`: `r` minus the mean over the whole batch. Groups play no part, so a group size of 1 is allowed;
      a rollout is dropped only when all rewards of the batch are equal.

    A group whose rewards are all *exactly* equal gets advantage 0 and `keep` False, whatever rounding makes of
    `r - m`; a group of one is such a group. Void rollouts must have been removed before.

    Args:
        rewards: N rewards.
        group_ids: N explicit group names. Equal names are one group, wherever they stand.
        kind: The formula.
        eps: Added to the standard deviation in `grpo`.
        batch_rewards: The rewards that the baseline of `reinforce` is the mean of, for instance those of all ranks;
            defaults to `rewards`.

    Returns:
        Advantages and keep mask, both of shape `(N,)`.

    Raises:
        ValueError: The lengths differ, or a reward is not finite.
        ConfigError: `kind` is unknown.

    >>> group_advantages([1.0, 0.0, 0.0, 0.0, 2.0, 2.0], ["a", "a", "a", "a", "b", "b"], "dr_grpo").values.tolist()
    [0.75, -0.25, -0.25, -0.25, 0.0, 0.0]
    """
    if kind not in get_args(AdvantageKind):
        raise ConfigError(f"advantage must be one of {', '.join(get_args(AdvantageKind))}; got {kind!r}")
    if len(rewards) != len(group_ids):
        raise ValueError(f"got {len(rewards)} rewards but {len(group_ids)} group ids")
    r = torch.tensor(rewards, dtype=torch.float64)
    if not torch.isfinite(r).all():
        raise ValueError("a reward is not finite")
    if r.numel() == 0:
        return Advantages(r, torch.zeros(0, dtype=torch.bool))

    if kind == "reinforce":
        batch = r if batch_rewards is None else torch.tensor(batch_rewards, dtype=torch.float64)
        differs = bool(batch.max() > batch.min())
        return Advantages(r - batch.mean() if differs else torch.zeros_like(r), torch.full(r.shape, differs))

    numbers = {name: number for number, name in enumerate(dict.fromkeys(group_ids))}
    index = torch.tensor([numbers[name] for name in group_ids])
    zeros = torch.zeros(len(numbers), dtype=torch.float64)
    count = zeros.index_add(0, index, torch.ones_like(r))[index]
    mean = zeros.index_add(0, index, r)[index] / count
    highest = zeros.scatter_reduce(0, index, r, "amax", include_self=False)[index]
    lowest = zeros.scatter_reduce(0, index, r, "amin", include_self=False)[index]
    keep = highest > lowest

    centred = r - mean
    others = (count - 1).clamp(min=1)
    if kind == "rloo":
        values = centred * count / others
    elif kind == "grpo":
        variance = zeros.index_add(0, index, centred**2)[index] / others
        values = centred / (variance.sqrt() + eps)
    else:
        values = centred
    return Advantages(torch.where(keep, values, torch.zeros_like(values)), keep)
