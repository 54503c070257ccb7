"""Counts the executions and retrieval calls of a question, in the same way for the repair and for its control."""

from __future__ import annotations

import json
from dataclasses import replace

from rpl.core.errors import RetrieverError
from rpl.core.records import Trace
from rpl.programs.primitives import SERVED


class Budget:
    """Counts what one question has cost.

    Uncached calls are counted as from a cold start: each distinct call once a question. The flags on the trace tell
    what the cache of the running process held, which depends on the questions before, and favours whichever arm runs
    second.

    Args:
        executions: Most executions.
    """

    def __init__(self, executions: int) -> None:
        self.limit = executions
        self.executions = 0
        self._calls: set[str] = set()

    @property
    def left(self) -> int:
        """Executions that may still be spent."""
        return self.limit - self.executions

    @property
    def uncached_calls(self) -> int:
        """Distinct retrieval calls so far."""
        return len(self._calls)

    def spend(self, trace: Trace) -> None:
        """Counts one execution and its calls.

        Raises:
            RetrieverError: Retrieval or the sandbox failed, which voids whatever the execution was for.
        """
        if trace.infra_error is not None:
            raise RetrieverError(f"an execution failed for reasons outside the program: {trace.infra_error}")
        self.executions += 1
        self._calls.update(
            json.dumps([call.name, call.args], sort_keys=True) for call in trace.calls if call.name in SERVED
        )

    def waste(self) -> None:
        """Counts a try that came to no execution."""
        self.executions += 1


def timeless(trace: Trace) -> Trace:
    """Returns the trace without what differs from run to run: seconds, and whether a call was in the cache."""
    calls = tuple(replace(call, seconds=0.0, cached=False) for call in trace.calls)
    return replace(trace, calls=calls, seconds=0.0)
