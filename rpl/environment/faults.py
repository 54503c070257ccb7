"""Decides what happens when infrastructure fails: which programs are run again, when a run waits, when it stops.

1. Before the first program, every primitive is asked for what it must find. Where that fails, nothing is run.
2. A program that retrieval or the sandbox failed is run again: at once the first time, and after that when retrieval
   answers canary queries, for which the run pauses for at most `health.wait_s`. A program is run at most
   1 + `infra_retries` times, and nothing below tries a failed call again (the sandbox replaces, once, a worker that
   something outside has ended). What fails on every try leaves a trace with
   `infra_error`, which makes its rollout void.
3. Canary queries are sent every `health.canary_every_s` and before rollouts are used. Where they find something else
   than they must, what programs have found meanwhile is void; `run_rollouts` makes those rollouts once more.
4. A void rollout is not a wrong answer: it enters no loss, no baseline and no score. More of them than
   `max_void_rate` explains stop the run with their cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.records import Rollout, Trace
from rpl.executors.base import Executor, TokenCounter
from rpl.retrieval.library.counting import CallCounts
from rpl.retrieval.library.health import HealthWatch

_CHANCE = 0.001


class FaultTolerantExecutor(Executor):
    """Runs programs in another executor and answers for the retrieval behind it.

    What comes out is a trace that can be trusted or a trace with `infra_error`.

    Args:
        inner: Runs the programs.
        watch: Of the library that serves them.
        retries: How often a program that infrastructure failed is run again.

    Raises:
        RetrieverError: Retrieval does not work: nothing is run at all.
    """

    def __init__(self, inner: Executor, watch: HealthWatch, retries: int) -> None:
        self._inner, self._watch, self._retries = inner, watch, retries
        self._gave_up = False
        self._verified = watch.library.counter.total
        watch.preflight()

    def connect(self, count_tokens: TokenCounter) -> None:
        """See `Executor.connect`."""
        self._inner.connect(count_tokens)

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """See `Executor.run_many`."""
        traces = self._inner.run_many(jobs)
        pauses = False
        if self._watch.due:
            try:
                self._watch.verify()
            except RetrieverError as error:
                pauses = True
                traces = [_void(trace, f"retrieval cannot be trusted: {error}") for trace in traces]
        tries, cause = 1, ""
        while tries <= self._retries and (failed := _failed(traces)):
            if pauses and (cause := self._pause()):
                break
            pauses = True
            tries += 1
            for number, trace in zip(failed, self._inner.run_many([jobs[number] for number in failed]), strict=True):
                traces[number] = trace
        for number in _failed(traces):
            text = f"{traces[number].infra_error} ({tries} {'try' if tries == 1 else 'tries'})"
            traces[number] = replace(traces[number], infra_error=f"{text}; {cause}" if cause else text)
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

    def _pause(self) -> str:
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
        return ""


def _failed(traces: Sequence[Trace]) -> list[int]:
    return [number for number, trace in enumerate(traces) if trace.infra_error is not None]


def _void(trace: Trace, cause: str) -> Trace:
    """A trace that asked nothing of retrieval stays as it is."""
    if not trace.calls or trace.infra_error is not None:
        return trace
    return Trace(trace.source, "", calls=trace.calls, infra_error=cause, seconds=trace.seconds)


class VoidRate:
    """Counts void rollouts and raises past a rate.

    The rule is a test, so that one fault in a small batch is forgiven and a dead retriever is not: the run stops when
    so many void rollouts would come about by chance with probability below 0.001 if the true rate were `max_rate`. At
    the default rate that is the third of 32 rollouts, or the seventh of 256.

    Args:
        max_rate: Largest tolerated share of void rollouts, in [0, 1].
    """

    def __init__(self, max_rate: float = 0.005) -> None:
        if not 0.0 <= max_rate <= 1.0:
            raise ConfigError(f"max_rate must be in [0, 1], got {max_rate}")
        self.max_rate = max_rate
        self.seen = 0
        self.void = 0

    @property
    def rate(self) -> float:
        """Share of void rollouts so far; 0 before the first."""
        return self.void / self.seen if self.seen else 0.0

    def check(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Counts a batch and returns the rollouts that are not void.

        Raises:
            RetrieverError: All rollouts of the batch are void, or too many since the start for the allowed rate.
        """
        causes = [r.infra_error for r in rollouts if r.infra_error is not None]
        self.seen += len(rollouts)
        self.void += len(causes)
        if causes and len(causes) == len(rollouts):
            raise RetrieverError(f"all {len(causes)} rollouts of a batch are void: {_summary(causes)}")
        if self.void and binomial_tail(self.void, self.seen, self.max_rate) < _CHANCE:
            raise RetrieverError(
                f"{self.void} of {self.seen} rollouts are void ({self.rate:.2%}, allowed {self.max_rate:.2%}); "
                f"the latest: {_summary(causes)}"
            )
        return [r for r in rollouts if r.infra_error is None]


def binomial_tail(count: int, trials: int, rate: float) -> float:
    """Probability of at least `count` successes in `trials` independent trials of probability `rate`.

    >>> round(binomial_tail(1, 2, 0.5), 6)
    0.75
    """
    from scipy.stats import binom

    return float(binom.sf(count - 1, trials, rate))


def _summary(causes: Sequence[str]) -> str:
    if not causes:
        return "none in this batch"
    counts = {cause: causes.count(cause) for cause in dict.fromkeys(causes)}
    worst = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{cause} ({count}×)" for cause, count in worst)
