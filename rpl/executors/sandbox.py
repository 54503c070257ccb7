"""The executor that runs programs in restricted worker processes and serves their primitives from a library.

Three layers: the program language (an allow-list, and RestrictedPython as a second gate with guards on every step), the
interpreter (an audit hook refuses opening, importing, connecting and starting while a program runs), and the process
(scrubbed environment, resource limits, hard kill).

Covered:

- imports, files, sockets, processes, environment variables, attribute walks, `str.format`, frames, exception objects;
- endless loops and recursion (fuel, depth), huge numbers, texts and lists (bounded operations), print floods;
- memory (address space), processor and wall-clock time (the worker is killed), hanging retrieval, crashed workers;
- state between programs: each starts with fresh globals, passages are read-only, messages are JSON and checked;
- gold: a job holds the program and the question, nothing else.

NOT covered:

- a flaw in CPython itself: whoever gains native code is held by the process limits alone. There is no seccomp filter,
  name space or container; run untrusted policies inside one;
- as root, processes can be started past the process limit (the system exempts root);
- the worker's user can read what that user can read, should all language and interpreter layers fall;
- memory on systems without /proc (macOS): only the bounds on values hold there;
- side channels such as timing;
- equal traces where a program runs into the wall-clock limit, or loops over a set that holds `None` or functions.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

from rpl.errors import ConfigError, ExecutorError
from rpl.executors.base import ExecutionLimits, Executor, TokenCounter
from rpl.executors.observation import build_observation
from rpl.executors.pool import WorkerPool
from rpl.executors.service import LibraryService
from rpl.executors.session import Session
from rpl.types import Trace

if TYPE_CHECKING:
    from rpl.retrieval.library import Library

RECYCLE_AFTER = 2_000
"""Programs after which a worker is replaced."""

_WORDS = re.compile(r"\w+|[^\w\s]")


def count_words(text: str) -> int:
    """Counts words and punctuation marks: the token counter until `RestrictedExecutor.connect` sets a real one.

    >>> count_words("[p1] Lyon: a city.")
    8
    """
    return len(_WORDS.findall(text))


class RestrictedExecutor(Executor):
    """Runs programs in sandboxed worker processes.

    Args:
        limits: Budgets of each program.
        workers: Worker processes, and so programs that run at once.
        infra_retries: How often a failed retrieval call is tried again before the run is void.
    """

    def __init__(
        self,
        limits: ExecutionLimits = ExecutionLimits(),
        workers: int = 2,
        infra_retries: int = 2,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        if infra_retries < 0:
            raise ConfigError(f"infra_retries must be at least 0, got {infra_retries}")
        self.limits = limits
        self.workers = workers
        self.infra_retries = infra_retries
        self._library: Library | None = None
        self._count_tokens: TokenCounter = count_words
        self._count_lock = threading.Lock()  # fast tokenizers do not like to be shared by threads
        start = {
            "type": "start",
            "wall_s": limits.wall_s,
            "memory_mb": limits.memory_mb,
            "limits": {name: asdict(limits)[name] for name in ("calls", "passages", "fuel", "source_chars")},
        }
        self._pool = WorkerPool(start, workers, RECYCLE_AFTER)
        weakref.finalize(self, self._pool.close)

    def attach(self, library: Library) -> None:
        """Sets the library that serves the primitives."""
        self._library = library

    def connect(self, count_tokens: TokenCounter) -> None:
        """See `Executor.connect`."""
        self._count_tokens = count_tokens

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """See `Executor.run_many`.

        Raises:
            ExecutorError: No library is attached.
        """
        if self._library is None:
            raise ExecutorError("no library is attached; call attach(library) before running programs")
        if len(jobs) <= 1 or self.workers == 1:
            return [self._run_one(source, question) for source, question in jobs]
        with ThreadPoolExecutor(min(self.workers, len(jobs)), thread_name_prefix="rpl-sandbox") as threads:
            return list(threads.map(lambda job: self._run_one(*job), jobs))

    def close(self) -> None:
        """See `Executor.close`."""
        self._pool.close()

    def _run_one(self, source: str, question: str) -> Trace:
        started = time.monotonic()
        assert self._library is not None
        service = LibraryService(self._library, self.infra_retries)
        try:
            session = self._attempt(service, source, question)
            if session.died:
                # Was it the program, or did something from outside end the worker? The program does it again.
                session = self._attempt(service, source, question)
        except ExecutorError as error:
            return Trace(source, "", infra_error=str(error), seconds=time.monotonic() - started)
        finally:
            service.close()
        return self._trace(source, session, time.monotonic() - started)

    def _attempt(self, service: LibraryService, source: str, question: str) -> Session:
        with self._pool.lend() as worker:
            session = Session(worker, service, self.limits)
            session.run(source, question)
            if session.retire:
                worker.kill()
        return session

    def _trace(self, source: str, session: Session, seconds: float) -> Trace:
        calls = tuple(session.calls)
        if session.infra_error is not None:
            return Trace(source, "", calls=calls, infra_error=session.infra_error, seconds=seconds)
        with self._count_lock:
            seen = build_observation(session.items, session.error, self.limits.printed_tokens, self._count_tokens)
        return Trace(
            source=source,
            observation=seen.text,
            printed_ids=seen.printed_ids,
            printed_tokens=seen.tokens,
            omitted=seen.omitted,
            calls=calls,
            error=session.error,
            fuel=session.fuel,
            seconds=seconds,
        )
