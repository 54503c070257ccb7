"""A torchmetric of means over questions, which survives uneven shards: it keeps a sum and a count.

One that has counted no question computes NaN: the mean of nothing is not a score. It does not warn either, because a
process that got none of the questions is a normal state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanPerQuestion(Metric):
    """Mean over questions of a number that is already at hand (primitive calls, printed tokens, a reward term)."""

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def update_called(self) -> bool:
        """Always true: no question is a state like any other, see the module's docstring."""
        return True

    def update(self, values: Sequence[float]) -> None:
        """Adds one finite number a question; the sequence may be empty."""
        self.total += float(sum(values))
        self.count += len(values)

    def compute(self) -> Tensor:
        """Returns the mean over all questions so far, shape (), or NaN where there was none."""
        return (self.total / self.count).float()
