"""Programs that fail again and again in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from rpl.core.records import Trace

Failure = tuple[str, str, str]
"""A program without its white space, and the kind and text of its error."""


def failure(trace: Trace) -> Failure | None:
    """Returns what two failures must have in common to be the same one, or `None` for a program that did not fail."""
    if trace.error is None:
        return None
    return "".join(trace.source.split()), trace.error.kind, trace.error.message


def repeated_failures(traces: Sequence[Trace]) -> int:
    """Counts the programs of a rollout that failed as an earlier one of the same rollout had failed."""
    failures = [found for trace in traces if (found := failure(trace)) is not None]
    return len(failures) - len(set(failures))
