"""What repair yields, against its control: the `repair` section of `results.json`.

Both arms attempt the same failed programs with the same budget, so everything is paired by question. McNemar's
discordant pairs are each arm's reach: what only mutation repairs, and what only the control does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import read_appended
from rpl.core.records import Benefit, Repair, from_dict
from rpl.evaluation.comparison import Comparison
from rpl.evaluation.statistics import (
    Estimate,
    mcnemar_exact,
    mean_interval,
    paired_difference,
    rate_interval,
    ratio_of_means,
)
from rpl.reports.results import set_repair

Readings = Mapping[str, Mapping[str, float]]
"""Question id to values by metric: what the fixed answerer made of one arm's evidence."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One arm's attempt at one failed program."""

    question_id: str
    repaired: bool
    executions: int
    """Program executions it took, verification included."""


def attempts_of(repairs: Iterable[Repair]) -> list[Attempt]:
    """Reads attempts from repair records, leaving out what was no failure or could not be verified."""
    return [
        Attempt(repair.question_id, repair.verdict == "repaired", repair.executions)
        for repair in repairs
        if repair.attempted
    ]


def report_repairs(run_dir: Path, repairs: Path) -> None:
    """Writes the repair section of `results.json`: all failures, and mutation against its control where that ran.

    Args:
        run_dir: The run folder.
        repairs: The repairs file of a harvest.
    """
    records = [from_dict(Repair, line) for line in read_appended(repairs)]
    controlled = [(r, r.control) for r in records if r.control is not None]
    summary = repair_summary({"mutation": attempts_of(records)}, verdicts=[r.verdict for r in records])
    if controlled:
        arms = {
            "mutation": attempts_of(record for record, _ in controlled),
            "resample control": [Attempt(r.question_id, c.repaired, c.executions) for r, c in controlled],
        }
        paired = repair_summary(arms, benefit=_readings([record for record, _ in controlled]))
        paired["arms"] = [
            *({**arm, "name": f"{arm['name']}, all failures"} for arm in summary["arms"]),
            *({**arm, "name": f"{arm['name']}, where the control ran"} for arm in paired["arms"]),
        ]
        summary = {**paired, "failures": summary["failures"], "verdicts": summary["verdicts"]}
    set_repair(run_dir, summary)


def _readings(records: Sequence[Repair]) -> dict[str, Readings] | None:
    measured = [(r.question_id, r.benefit) for r in records if r.benefit is not None]
    if not measured:
        return None
    arms = {"mutation": "repaired", "resample control": "resampled", "failed program": "original"}
    return {name: {id_: _metrics(getattr(benefit, arm)) for id_, benefit in measured} for name, arm in arms.items()}


def _metrics(benefit: Benefit) -> dict[str, float]:
    return {"em": benefit.em, "gold_logprob": benefit.gold_logprob}


def repair_summary(
    arms: Mapping[str, Sequence[Attempt]],
    *,
    verdicts: Iterable[str] = (),
    benefit: Mapping[str, Readings] | None = None,
) -> dict[str, Any]:
    """Summarises repair for `results.json`.

    Args:
        arms: Attempts by arm. The first arm (mutation) is compared with each of the others; all must have attempted
            the same questions, each once.
        verdicts: Verdicts of all repair records, to be counted.
        benefit: Readings by arm. The first is compared with each of the others on the questions that both have.

    Raises:
        DataError: Two arms attempted different questions, or an arm attempted one twice.
    """
    tables = {name: _by_question(name, attempts) for name, attempts in arms.items()}
    first, *others = tables or [""]
    for name in others:
        if tables[name].keys() != tables[first].keys():
            odd = sorted(tables[name].keys() ^ tables[first].keys())
            raise DataError(
                f"{first} and {name} cannot be compared: {len(odd)} question(s) were attempted by only one of them, "
                f"for example {odd[0]!r}"
            )
    readings = benefit or {}
    summary: dict[str, Any] = {
        "failures": len(tables[first]) if tables else 0,
        "verdicts": dict(Counter(verdicts).most_common()),
        "arms": [_arm(name, list(table.values())) for name, table in tables.items()],
        "comparisons": [_share(first, name, tables).to_json() for name in others if tables[first]],
    }
    if readings:
        reference, *rest = readings
        summary["benefit"] = [{"name": name, "metrics": _means(values)} for name, values in readings.items()]
        summary["benefit_comparisons"] = [
            comparison.to_json() for name in rest for comparison in _benefits(reference, name, readings)
        ]
    return summary


def _by_question(arm: str, attempts: Sequence[Attempt]) -> dict[str, Attempt]:
    table: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt.question_id in table:
            raise DataError(f"{arm} attempted question {attempt.question_id!r} twice; one attempt a question is paired")
        table[attempt.question_id] = attempt
    return table


def _arm(name: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
    executions, repaired = [float(a.executions) for a in attempts], [float(a.repaired) for a in attempts]
    return {
        "name": name,
        "repaired": rate_interval(repaired).to_json(),
        "executions": int(sum(executions)),
        "executions_per_repair": ratio_of_means(executions, repaired).to_json() if any(repaired) else None,
    }


def _share(first: str, other: str, tables: Mapping[str, Mapping[str, Attempt]]) -> Comparison:
    a = [float(attempt.repaired) for attempt in tables[first].values()]
    b = [float(tables[other][question].repaired) for question in tables[first]]
    return _compare(first, other, "share repaired", a, b, rates=True)


def _means(readings: Readings) -> dict[str, dict[str, float | int | None]]:
    columns = _columns(readings, list(readings))
    return {name: _estimate(name, values).to_json() for name, values in columns.items()}


def _estimate(metric: str, values: Sequence[float]) -> Estimate:
    return rate_interval(values) if metric == "em" else mean_interval(values)


def _benefits(first: str, other: str, readings: Mapping[str, Readings]) -> list[Comparison]:
    shared = [question for question in readings[first] if question in readings[other]]
    a, b = _columns(readings[first], shared), _columns(readings[other], shared)
    return [
        _compare(first, other, metric, a[metric], b[metric], rates=metric == "em")
        for metric in a
        if metric in b and shared
    ]


def _columns(readings: Readings, questions: Sequence[str]) -> dict[str, list[float]]:
    names = dict.fromkeys(name for question in questions for name in readings[question])
    return {name: [readings[question][name] for question in questions] for name in names}


def _compare(a: str, b: str, metric: str, left: Sequence[float], right: Sequence[float], *, rates: bool) -> Comparison:
    return Comparison(
        a,
        b,
        metric,
        paired_difference(left, right),
        ratio_of_means(left, right) if rates and any(right) else None,
        mcnemar_exact(left, right) if rates else None,
    )
