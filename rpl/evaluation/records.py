"""What an evaluation keeps of each question, and the metrics that are computed from those records.

Metrics are functions of the records alone, so that a file of records can be aggregated, compared and plotted again
without running anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rpl.core.answers import exact_match, token_f1
from rpl.core.evidence import evidence_scores
from rpl.core.records import Question, Rollout, to_dict
from rpl.evaluation.statistics import NOTHING, Estimate, macro_mean_interval, mean_intervals, rate_interval
from rpl.retrieval.library.counting import CallCounts


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """The outcome of one question under one system. Scores are in [0, 1]."""

    question_id: str
    question: str
    answers: tuple[str, ...]
    dataset: str
    type: str
    prediction: str | None
    """The answer that was given; `None` when there was none."""
    em: float
    f1: float
    printed_ids: tuple[str, ...]
    """Ids of the passages that reached the context, in order."""
    precision: float | None
    """Evidence precision; this and the next three are `None` where no gold passage is known."""
    recall: float | None
    evidence_f1: float | None
    all_gold: float | None
    printed_tokens: int
    completion_tokens: int
    """Tokens that the model wrote."""
    turns: int
    calls: int
    """Primitive calls."""
    invalid: str | None
    """Why there is no answer (`forgery`, `truncated`, `no_action`, `turn_budget`, `context`, …)."""
    programs: tuple[str, ...]
    """The programs that ran."""
    error_kinds: tuple[str, ...]
    """Kinds of the errors that programs ended with, one a failed program."""
    seconds: float
    """Wall-clock time of the question's batch, shared evenly among its questions."""
    void: str | None = None
    """Why infrastructure failed the question, so that no metric counts it; `None` where it was answered or not."""


def record(question: Question, rollout: Rollout, seconds: float) -> QuestionRecord:
    """Scores one rollout.

    Args:
        question: The question with its accepted answers and gold ids.
        rollout: What the system did. One with an infrastructure error makes a void record.
        seconds: Its share of wall-clock time.
    """
    evidence = evidence_scores(rollout.printed_ids, question.gold_docs)
    return QuestionRecord(
        question_id=question.id,
        question=question.question,
        answers=question.answers,
        dataset=question.dataset,
        type=question.type,
        prediction=rollout.answer,
        em=exact_match(rollout.answer, question.answers),
        f1=token_f1(rollout.answer, question.answers),
        printed_ids=rollout.printed_ids,
        precision=None if evidence is None else evidence.precision,
        recall=None if evidence is None else evidence.recall,
        evidence_f1=None if evidence is None else evidence.f1,
        all_gold=None if evidence is None else evidence.all_gold,
        printed_tokens=rollout.printed_tokens,
        completion_tokens=sum(len(turn.completion_ids) for turn in rollout.turns),
        turns=len(rollout.turns),
        calls=rollout.num_calls,
        invalid=rollout.invalid,
        programs=tuple(trace.source for trace in rollout.traces),
        error_kinds=tuple(trace.error.kind for trace in rollout.traces if trace.error is not None),
        seconds=seconds,
        void=rollout.infra_error,
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """A number per question, and how its interval is computed."""

    name: str
    label: str
    kind: Literal["rate", "mean"]
    """`rate`: zeros and ones, Wilson's interval; `mean`: percentile bootstrap."""
    value: Callable[[QuestionRecord], float | None]
    """`None` where the question cannot be measured (no gold passages known)."""
    digits: int = 3
    """Decimals to show."""
    shows_interval: bool = True
    """False where values are shared within a batch, so that an interval over questions would be too narrow."""


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("em", "EM", "rate", lambda r: r.em),
        Metric("f1", "F1", "mean", lambda r: r.f1),
        Metric("recall", "evidence recall", "mean", lambda r: r.recall),
        Metric("precision", "evidence precision", "mean", lambda r: r.precision),
        Metric("evidence_f1", "evidence F1", "mean", lambda r: r.evidence_f1),
        Metric("all_gold", "all gold", "rate", lambda r: r.all_gold),
        Metric("printed_tokens", "printed tokens", "mean", lambda r: float(r.printed_tokens), 1),
        Metric("completion_tokens", "written tokens", "mean", lambda r: float(r.completion_tokens), 1),
        Metric("turns", "turns", "mean", lambda r: float(r.turns), 2),
        Metric("calls", "calls", "mean", lambda r: float(r.calls), 2),
        Metric("invalid", "invalid", "rate", lambda r: float(r.invalid is not None)),
        Metric("program_errors", "program errors", "rate", lambda r: float(bool(r.error_kinds))),
        Metric("printed_nothing", "printed nothing", "rate", lambda r: float(bool(r.programs) and not r.printed_ids)),
        Metric("seconds", "seconds", "mean", lambda r: r.seconds, 2, shows_interval=False),
    )
}
"""All metrics by name. `em` … `all_gold` are better when higher; the others are costs and symptoms."""


def aggregate(records: Sequence[QuestionRecord]) -> dict[str, Estimate]:
    """Returns every metric with its interval over the questions on which it can be measured; void ones are left out."""
    records = [r for r in records if r.void is None]
    out: dict[str, Estimate] = {}
    means: dict[tuple[int, ...], list[str]] = defaultdict(list)  # metrics over the same questions share resamples
    columns: dict[str, list[float]] = {}
    for metric in METRICS.values():
        pairs = [(i, v) for i, v in enumerate(map(metric.value, records)) if v is not None]
        columns[metric.name] = [value for _, value in pairs]
        out[metric.name] = NOTHING
        if metric.kind == "rate":
            out[metric.name] = rate_interval(columns[metric.name])
        else:
            means[tuple(i for i, _ in pairs)].append(metric.name)
    for names in means.values():
        estimates = mean_intervals([columns[name] for name in names])
        out.update(zip(names, estimates, strict=True))
    return out


@dataclass(frozen=True)
class EvalResult:
    """All records of one system on one set of questions; metrics are computed on demand."""

    name: str
    """The system, for example `policy` or `fixed bm25 k=3`."""
    records: tuple[QuestionRecord, ...]
    """In the order of the questions."""
    phase: str = ""
    """After which training phase the weights were taken."""
    settings: Mapping[str, Any] | None = None
    """What must be equal for two results to be comparable: k, budget, style, checkpoint, …"""
    path: Path | None = None
    """The file of records."""
    retrieval: CallCounts = field(default_factory=CallCounts)
    """Calls of retrieval that were attempted, and what became of them."""

    @property
    def label(self) -> str:
        """Name and phase, for tables and comparisons."""
        return f"{self.name} ({self.phase})" if self.phase else self.name

    @property
    def num_void(self) -> int:
        """Questions that infrastructure failed and that no metric counts."""
        return sum(item.void is not None for item in self.records)

    def metrics(self) -> dict[str, Estimate]:
        """Returns every metric over all questions."""
        return aggregate(self.records)

    def by(self, field: Literal["type", "dataset"]) -> dict[str, dict[str, Estimate]]:
        """Returns every metric for each question type or data set, in alphabetical order."""
        groups: dict[str, list[QuestionRecord]] = defaultdict(list)
        for item in self.records:
            groups[getattr(item, field) or "unnamed"].append(item)
        return {name: aggregate(groups[name]) for name in sorted(groups)}

    def macro(self, metric: str) -> Estimate:
        """Returns the unweighted mean of a metric over data sets, the average that papers report."""
        groups: dict[str, list[float]] = defaultdict(list)
        for item in self.records:
            value = METRICS[metric].value(item)
            if value is not None and item.void is None:
                groups[item.dataset].append(value)
        return macro_mean_interval(groups)

    def row(self) -> dict[str, Any]:
        """Returns the row of `results.json`; see `rpl.reports.results` for its layout."""
        row: dict[str, Any] = {
            "name": self.name,
            "phase": self.phase,
            "metrics": estimates_json(self.metrics()),
            "by_type": {name: estimates_json(values) for name, values in self.by("type").items()},
            "settings": dict(self.settings or {}),
            "void": self.num_void,
            "retrieval": {**to_dict(self.retrieval), "attempted": self.retrieval.attempted},
            "records": None if self.path is None else str(self.path),
        }
        if len({item.dataset for item in self.records}) > 1:
            row["by_dataset"] = {name: estimates_json(values) for name, values in self.by("dataset").items()}
            row["macro"] = estimates_json({name: self.macro(name) for name in ("em", "f1", "recall", "all_gold")})
        return row


def estimates_json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float | int | None]]:
    """Returns estimates as JSON values."""
    return {name: estimate.to_json() for name, estimate in estimates.items()}
