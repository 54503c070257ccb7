"""An executor whose retrieval is watched: checked before the first program, asked canary queries while programs run.

What comes out of it is a trace that can be trusted or a trace with `infra_error`. Programs that infrastructure failed
are run again once retrieval answers canary queries, and the run pauses until it does, for at most
`HealthConfig.wait_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rpl.core.errors import RetrieverError
from rpl.core.records import Trace
from rpl.executors.base import Executor, TokenCounter
from rpl.retrieval.library.counting import CallCounts
from rpl.retrieval.library.health import HealthWatch


class WatchedExecutor(Executor):
    """Runs programs in another executor and answers for the retrieval behind it.

    Args:
        inner: Runs the programs.
        watch: Of the library that serves them.

    Raises:
        RetrieverError: Retrieval does not work: nothing is run at all.
    """

    def __init__(self, inner: Executor, watch: HealthWatch) -> None:
        self._inner, self._watch = inner, watch
        self._gave_up = False
        self._verified = watch.library.counter.total
        watch.preflight()

    def connect(self, count_tokens: TokenCounter) -> None:
        """See `Executor.connect`."""
        self._inner.connect(count_tokens)

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """See `Executor.run_many`."""
        traces = self._inner.run_many(jobs)
        if self._watch.due:
            try:
                self._watch.verify()
            except RetrieverError as error:
                traces = [_void(trace, f"retrieval cannot be trusted: {error}") for trace in traces]
        for _ in range(self._watch.config.reruns):
            void = [number for number, trace in enumerate(traces) if trace.infra_error is not None]
            if not void:
                break
            cause = self._recover()
            if cause is not None:
                for number in void:
                    traces[number] = replace(traces[number], infra_error=f"{traces[number].infra_error}; {cause}")
                break
            for number, trace in zip(void, self._inner.run_many([jobs[number] for number in void]), strict=True):
                traces[number] = trace
        return traces

    def verify(self) -> str | None:
        """See `Executor.verify`."""
        asked = self._watch.library.counter.total
        if asked == self._verified:
            return None
        try:
            self._watch.verify()
        except RetrieverError as error:
            self._watch.wait()
            self._verified = self._watch.library.counter.total
            return f"retrieval could not be trusted when its programs had run: {error}"
        self._verified = asked
        return None

    @property
    def counts(self) -> CallCounts:
        """See `Executor.counts`."""
        return self._watch.library.counter.total

    def close(self) -> None:
        """See `Executor.close`."""
        self._inner.close()

    def _recover(self) -> str | None:
        """Waits until retrieval works; returns why it does not, at once where the wait was in vain before."""
        try:
            if self._gave_up:
                self._watch.verify()
            else:
                self._watch.wait()
        except RetrieverError as error:
            self._gave_up = True
            return str(error)
        self._gave_up = False
        return None


def _void(trace: Trace, cause: str) -> Trace:
    """A trace that asked nothing of retrieval stays as it is."""
    if not trace.calls or trace.infra_error is not None:
        return trace
    return Trace(trace.source, "", calls=trace.calls, infra_error=cause, seconds=trace.seconds)
