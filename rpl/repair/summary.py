"""Counts over the records of a harvest. Raw rates and paired counts; intervals belong to the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

from rpl.core.records import Benefits, Control, Repair


def summarise(records: Sequence[Repair]) -> dict[str, Any]:
    """Summarises a harvest.

    Returns:
        JSON values: `verdicts`; `repair` (share of the searched failures that was repaired, in [0, 1], and what that
        cost); the same `by_type`, `by_failure` and counts `by_operator`; and, on the questions that the control ran on,
        `control`, `paired` (a table of what each arm repaired: its off-diagonal counts are each arm's reach) and
        `benefit` (means by arm over the questions that all arms have).
    """
    attempted = [record for record in records if record.attempted]
    controlled = [(record, record.control) for record in attempted if record.control is not None]
    summary: dict[str, Any] = {
        "questions": len(records),
        "verdicts": dict(sorted(Counter(record.verdict for record in records).items())),
        "repair": _yield(attempted),
        "by_type": _grouped(attempted, lambda record: record.type),
        "by_failure": _grouped(attempted, lambda record: record.failure),
        "by_operator": dict(Counter(op for record in attempted for op in record.operators).most_common()),
    }
    if controlled:
        summary["control"] = _control(controlled)
        summary["paired"] = _paired(controlled)
        if readings := [record.benefit for record, _ in controlled if record.benefit is not None]:
            summary["benefit"] = _benefit(readings)
    return summary


def _is_repaired(record: Repair) -> bool:
    return record.verdict == "repaired"


def _yield(records: Sequence[Repair]) -> dict[str, Any]:
    repaired = [record for record in records if _is_repaired(record)]
    executions = sum(record.executions for record in records)
    calls = sum(record.uncached_calls for record in records)
    return {
        "failures": len(records),
        "repaired": len(repaired),
        "share": _ratio(len(repaired), len(records)),
        "executions": executions,
        "executions_mean": _average(mean, [record.executions for record in records]),
        "executions_median": _average(median, [record.executions for record in records]),
        "repairs_per_execution": _ratio(len(repaired), executions),
        "repairs_per_uncached_call": _ratio(len(repaired), calls),
        "uncached_calls": calls,
        "edits_mean": _average(mean, [len(record.edits) for record in repaired]),
        "edit_distance_mean": _average(mean, [record.edit_distance for record in repaired]),
        "printed_tokens_mean": _average(mean, [r.trace.printed_tokens for r in repaired if r.trace is not None]),
    }


def _grouped(records: Sequence[Repair], key: Callable[[Repair], str]) -> dict[str, Any]:
    groups: dict[str, list[Repair]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: _yield(groups[name]) for name in sorted(groups)}


Controlled = Sequence[tuple[Repair, Control]]


def _control(pairs: Controlled) -> dict[str, Any]:
    controls = [control for _, control in pairs]
    repaired = [control for control in controls if control.repaired]
    executions = sum(control.executions for control in controls)
    calls = sum(control.uncached_calls for control in controls)
    # The same success counts only if it came before the repair's own calls were used up.
    within_calls = [
        record for record, control in pairs if control.repaired and control.uncached_calls <= record.uncached_calls
    ]
    return {
        "failures": len(controls),
        "repaired": len(repaired),
        "share": _ratio(len(repaired), len(controls)),
        "share_within_uncached_calls": _ratio(len(within_calls), len(controls)),
        "executions": executions,
        "executions_mean": _average(mean, [control.executions for control in controls]),
        "executions_median": _average(median, [control.executions for control in controls]),
        "repairs_per_execution": _ratio(len(repaired), executions),
        "repairs_per_uncached_call": _ratio(len(repaired), calls),
        "uncached_calls": calls,
        "draws": sum(control.draws for control in controls),
        "tokens": sum(control.tokens for control in controls),
        "coverage_mean": _average(mean, [control.coverage for control in controls]),
        "mutation": _yield([record for record, _ in pairs]),
    }


def _paired(pairs: Controlled) -> dict[str, int]:
    table = Counter((_is_repaired(record), control.repaired) for record, control in pairs)
    return {
        "both": table[True, True],
        "only_mutation": table[True, False],
        "only_control": table[False, True],
        "neither": table[False, False],
    }


def _benefit(readings: Sequence[Benefits]) -> dict[str, Any]:
    arms = ("repaired", "resampled", "original")
    return {
        "questions": len(readings),
        "arms": {
            arm: {
                metric: _average(mean, [getattr(getattr(reading, arm), metric) for reading in readings])
                for metric in ("em", "gold_logprob")
            }
            for arm in arms
        },
    }


def _ratio(count: int, of: int) -> float | None:
    return round(count / of, 6) if of else None


def _average(how: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return round(float(how(values)), 6) if values else None
