"""The scores of evaluation rollouts, as sum states that survive uneven shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn
from torchmetrics import Metric

from rpl.core.records import Question, Rollout
from rpl.modules.parts.question_metrics import (
    AllGold,
    EvidenceF1,
    EvidencePrecision,
    EvidenceRecall,
    ExactMatch,
    MeanPerQuestion,
    TokenF1,
)

_EVIDENCE = {
    "evidence_precision": EvidencePrecision,
    "evidence_recall": EvidenceRecall,
    "evidence_f1": EvidenceF1,
    "all_gold": AllGold,
}
_MEANS = ("turns", "calls", "printed_tokens", "completion_tokens", "invalid_rate", "program_error_rate")


class RolloutMetrics(nn.Module):
    """EM, F1, evidence, cost and failure rates over questions; void rollouts count only in `void_rate`."""

    def __init__(self) -> None:
        super().__init__()
        metrics: dict[str, Metric] = {"em": ExactMatch(), "f1": TokenF1()}
        metrics |= {name: kind() for name, kind in _EVIDENCE.items()}
        metrics |= {name: MeanPerQuestion() for name in (*_MEANS, "void_rate")}
        self.metrics = nn.ModuleDict(metrics)

    def update(self, rollouts: Sequence[Rollout], questions: Sequence[Question]) -> None:
        """Adds one rollout a question.

        Args:
            rollouts: In the order of the questions; void ones may be among them.
            questions: The questions, with answers and gold ids.
        """
        m: Any = self.metrics
        m["void_rate"].update([float(r.infra_error is not None) for r in rollouts])
        pairs = [(r, q) for r, q in zip(rollouts, questions, strict=True) if r.infra_error is None]
        answers = [r.answer for r, _ in pairs]
        accepted = [q.answers for _, q in pairs]
        m["em"].update(answers, accepted)
        m["f1"].update(answers, accepted)
        for name in _EVIDENCE:
            m[name].update([r.printed_ids for r, _ in pairs], [q.gold_docs for _, q in pairs])
        m["turns"].update([float(len(r.turns)) for r, _ in pairs])
        m["calls"].update([float(r.num_calls) for r, _ in pairs])
        m["printed_tokens"].update([float(r.printed_tokens) for r, _ in pairs])
        m["completion_tokens"].update([float(sum(r.completion_mask)) for r, _ in pairs])
        m["invalid_rate"].update([float(r.invalid is not None) for r, _ in pairs])
        m["program_error_rate"].update([float(t.error is not None) for r, _ in pairs for t in r.traces])

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
