"""Finds the step at which a program lost its evidence, from the calls on its trace.

The class says which edits can help at all: no print edit finds a passage that was never fetched, and no query edit
helps a passage that was fetched and dropped. Reads gold ids, hence train time only. Pure: executes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from rpl.core.evidence import NO_GOLD, evidence_scores
from rpl.core.records import PrimitiveCall, Question, Trace
from rpl.programs.primitives import PRIMITIVES

FailureKind = Literal["crashed", "never_fetched", "lost_in_rerank", "not_printed", "over_budget", "none"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The first stage at which evidence was lost."""

    kind: FailureKind
    """`crashed`: the program failed before all gold was printed; `never_fetched`: some gold id is in no call's
    results; `lost_in_rerank`: a call received a gold passage and dropped it; `over_budget`: all gold was fetched,
    some is missing, and printed items did not fit; `not_printed`: fetched, never printed; `none`: all printed."""
    missing: tuple[str, ...]
    """Gold ids that did not reach the context."""
    fetched: float
    """Share of gold ids that some call returned, in [0, 1]."""
    printed: float
    """Share of gold ids that reached the context, in [0, 1]."""
    lines: tuple[int, ...] = ()
    """Lines of the calls by which the evidence can be had, the most promising first. Where some was never fetched, the
    calls that found gold, from which the rest may be reached; else those that dropped a missing passage which they
    received, or were the last to return it."""


def localise(question: Question, trace: Trace) -> Failure:
    """Finds the stage at which a program lost its gold passages.

    Args:
        question: With gold ids; without any, only `crashed` and `none` can be told apart.
        trace: One execution of the program for this question.
    """
    gold = tuple(dict.fromkeys(question.gold_docs))
    fetched = set(trace.fetched_ids)
    missing = tuple(i for i in gold if i not in trace.printed_ids)
    return Failure(
        kind=_kind(missing, fetched, trace),
        missing=missing,
        fetched=(evidence_scores(fetched, gold) or NO_GOLD).recall,
        printed=(evidence_scores(trace.printed_ids, gold) or NO_GOLD).recall,
        lines=_lines(gold, missing, trace),
    )


def _kind(missing: tuple[str, ...], fetched: set[str], trace: Trace) -> FailureKind:
    if trace.error is not None:
        return "crashed"
    if not missing:
        return "none"
    if any(i not in fetched for i in missing):
        return "never_fetched"
    if any(i in _received(call) and i not in call.result_ids for call in trace.calls for i in missing):
        return "lost_in_rerank"
    return "over_budget" if trace.omitted else "not_printed"


def _received(call: PrimitiveCall) -> tuple[str, ...]:
    return PRIMITIVES[call.name].passage_ids(call.args) if call.name in PRIMITIVES else ()


def _lines(gold: tuple[str, ...], missing: tuple[str, ...], trace: Trace) -> tuple[int, ...]:
    if not set(missing).issubset(trace.fetched_ids):
        calls = [call for call in trace.calls if not set(gold).isdisjoint(call.result_ids)]
        return tuple(dict.fromkeys(call.line for call in calls if call.line is not None))
    lost: Counter[int | None] = Counter()
    for id_ in missing:
        dropped = [call for call in trace.calls if id_ in _received(call) and id_ not in call.result_ids]
        returned = [call for call in trace.calls if id_ in call.result_ids]
        lost.update({call.line for call in dropped[:1] or returned[-1:]})
    return tuple(line for line, _ in lost.most_common() if line is not None)
