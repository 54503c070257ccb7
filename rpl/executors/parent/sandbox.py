"""The executor that runs programs in sandboxed worker processes and serves their primitives from a library.

Model-written programs are hostile code. Four layers stand between one and the machine, each tested alone:

1. the grammar (`programs.grammar`): an allow-list of syntax, names and attributes;
2. the guards (`policy`, `guards`, `functions`): RestrictedPython as a second gate, every step through fuel, every
   result bounded before it is computed;
3. the worker process (`worker`, `hardening`): no environment, two pipes, resource limits, no new privileges, an audit
   hook in the interpreter, namespaces, Landlock, a system-call filter (`layers` names them);
4. the parent (`session`, `requests`, `crew`): deadlines, hard kill, JSON whose size is checked before it is parsed,
   primitives with checked arguments and a deadline of their own.

Covered:

- imports, files, sockets, processes, environment variables, attribute walks, `str.format`, frames, exception objects;
- endless loops and recursion (fuel, depth), huge numbers, texts and lists (bounded operations), print floods;
- memory (address space), processor and wall-clock time (the worker is killed), hanging retrieval, crashed workers;
- state between programs: each starts with fresh globals, passages are read-only, messages are JSON and checked;
- a worker that a program took over: it can compute, and answer its own questions wrongly, and no more;
- gold: a job holds the program and the question, nothing else.

NOT covered:

- a flaw in the kernel, within the two dozen system calls that a worker may make;
- a layer that the machine does not offer: `rpl doctor` lists them, a log line names those that are missing, and
  `environment.require_layers` makes that an error. Without seccomp a worker of root can start processes past its limit;
- the programs that a worker runs after one that took it over (until it is replaced): their traces are what it says;
- memory on systems without /proc (macOS): only the bounds on values hold there;
- side channels such as timing;
- equal traces where a program runs into the wall-clock or memory limit.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rpl.core.errors import ConfigError, ExecutorError
from rpl.core.records import Trace, TraceError
from rpl.executors.base import ExecutionLimits, Executor, TokenCounter
from rpl.executors.isolation.layers import unknown
from rpl.executors.parent.observation import build_observation
from rpl.executors.parent.pool import WorkerPool
from rpl.executors.parent.service import LibraryService
from rpl.executors.parent.session import Result, Session
from rpl.executors.parent.threads import Crew, Task
from rpl.executors.runtime.values import source_error

if TYPE_CHECKING:
    from rpl.retrieval.library.library import Library

RECYCLE_AFTER = 2_000
"""Programs after which a worker is replaced."""

_WORDS = re.compile(r"\w+|[^\w\s]")


def count_words(text: str) -> int:
    """Counts words and punctuation marks: the token counter until `SandboxExecutor.connect` sets a real one.

    >>> count_words("[p1] Lyon: a city.")
    8
    """
    return len(_WORDS.findall(text))


class SandboxExecutor(Executor):
    """Runs programs in sandboxed worker processes: CPython behind the grammar and RestrictedPython's guards.

    Args:
        limits: Budgets of each program.
        workers: Worker processes, and so programs that run at once.
        require_layers: Layers of `layers.LAYERS` without which nothing runs; one that is missing here and not required
            is named in a log line.
    """

    def __init__(
        self,
        limits: ExecutionLimits = ExecutionLimits(),
        workers: int = 2,
        require_layers: Sequence[str] = (),
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        if unknown(require_layers):
            raise ConfigError(f"require_layers: {unknown(require_layers)}")
        self.limits = limits
        self.workers = workers
        self._service: LibraryService | None = None
        self._count_tokens: TokenCounter = count_words
        start = {
            "type": "start",
            "wall_s": limits.wall_s,
            "memory_mb": limits.memory_mb,
            "limits": {name: asdict(limits)[name] for name in ("calls", "passages", "fuel", "source_chars")},
        }
        self._pool = WorkerPool(start, workers, RECYCLE_AFTER, require_layers)
        self._crew = Crew(workers, self._pool.refill)
        weakref.finalize(self, _close, self._crew, self._pool)

    def layers(self) -> dict[str, str | None]:
        """Returns for each layer `None` where it holds the workers here, or why it does not; may start a worker.

        Raises:
            ExecutorError: No worker can be started.
            ConfigError: A layer of `require_layers` does not hold.
        """
        return self._pool.layers()

    def attach(self, library: Library) -> None:
        """Sets the library that serves the primitives."""
        self._service = LibraryService(library)

    def connect(self, count_tokens: TokenCounter) -> None:
        """See `Executor.connect`; programs that run at once count at once."""
        count_tokens("")  # a fast tokenizer allows that unless an option of it changes meanwhile; this sets the option
        self._count_tokens = count_tokens

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """See `Executor.run_many`.

        Raises:
            ExecutorError: No library is attached.
        """
        if self._service is None:
            raise ExecutorError("no library is attached; call attach(library) before running programs")
        runs = [_Run(self._service, self._pool, self.limits, self._trace, *job) for job in jobs]
        return self._crew.run(runs, min(self.limits.call_s, self.limits.wall_s))

    def close(self) -> None:
        """See `Executor.close`."""
        _close(self._crew, self._pool)

    def _trace(self, source: str, result: Result, started: float) -> Trace:
        calls = tuple(result.calls)
        if result.infra_error is not None:
            seconds = time.monotonic() - started
            return Trace(source, "", calls=calls, infra_error=result.infra_error, seconds=seconds)
        seen = build_observation(result.items, result.error, self.limits.printed_tokens, self._count_tokens)
        return Trace(
            source=source,
            observation=seen.text,
            printed_ids=seen.printed_ids,
            printed_tokens=seen.tokens,
            omitted=seen.omitted,
            calls=calls,
            error=result.error,
            fuel=result.fuel,
            seconds=time.monotonic() - started,
        )


class _Run(Task[Trace]):
    def __init__(
        self,
        service: LibraryService,
        pool: WorkerPool,
        limits: ExecutionLimits,
        trace: Callable[[str, Result, float], Trace],
        source: str,
        question: str,
    ) -> None:
        self._service = service
        self._pool = pool
        self._limits = limits
        self._trace = trace
        self._source = source
        self._question = question
        self._session: Session | None = None
        self._started = 0.0

    def work(self) -> Trace:
        started = self._started = time.monotonic()
        result = Result(error=self._too_long())
        if result.error is None:
            try:
                result = self._attempt()
                if result.interrupted:  # something outside ended or stopped the worker
                    result = self._attempt()
                if result.interrupted:
                    result.infra_error = f"the sandbox was disturbed twice: {result.interrupted}"
            except ExecutorError as error:
                result = Result(infra_error=str(error))
        return self._trace(self._source, result, started)

    def _too_long(self) -> TraceError | None:
        if len(self._source) <= self._limits.source_chars:
            return None
        error = source_error(len(self._source), self._limits.source_chars)
        return TraceError(error.kind, error.message)

    @property
    def look_at(self) -> float:
        return float("inf") if self._session is None else self._session.look_at

    def give_up(self) -> Trace | None:
        session = self._session
        if session is None or not session.give_up():
            return None
        session.worker.kill()
        return self._trace(self._source, session, self._started)

    def _attempt(self) -> Session:
        with self._pool.lend() as worker:
            session = self._session = Session(worker, self._service, self._limits)
            session.run(self._source, self._question)
            if session.retire:
                worker.kill()
        return session


def _close(crew: Crew, pool: WorkerPool) -> None:
    crew.close()
    pool.close()
