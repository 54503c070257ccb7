"""The scores of validation and test: the records and metrics of `rpl.evaluation`, as means over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from rpl.core.records import Question, Rollout
from rpl.evaluation.records import METRICS, record
from rpl.modules.parts.question_metrics import MeanPerQuestion

LOGGED_AS = {
    **{name: name for name in METRICS if name != "seconds"},
    "recall": "evidence_recall",
    "precision": "evidence_precision",
    "invalid": "invalid_rate",
}
"""How the log calls a metric of `rpl.evaluation.records`. Seconds are logged as `time/`."""


class RolloutMetrics(nn.Module):
    """All metrics of an evaluation over questions; void rollouts count only in `void_rate`."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = nn.ModuleDict({name: MeanPerQuestion() for name in (*LOGGED_AS.values(), "void_rate")})

    def update(self, rollouts: Sequence[Rollout], questions: Sequence[Question]) -> None:
        """Adds one rollout a question.

        Args:
            rollouts: In the order of the questions; void ones may be among them.
            questions: The questions, with answers and gold ids.
        """
        metrics: Any = self.metrics
        records = [record(q, rollout, seconds=0.0) for q, rollout in zip(questions, rollouts, strict=True)]
        metrics["void_rate"].update([float(item.void is not None) for item in records])
        for name, logged in LOGGED_AS.items():
            values = [METRICS[name].value(item) for item in records if item.void is None]
            metrics[logged].update([value for value in values if value is not None])

    def compute(self) -> dict[str, float]:
        """Returns the means over all questions of all ranks (collective), leaving out those of nothing."""
        metrics: Any = self.metrics
        values = {name: float(metric.compute()) for name, metric in metrics.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def reset(self) -> None:
        """Forgets everything."""
        metrics: Any = self.metrics
        for metric in metrics.values():
            metric.reset()
