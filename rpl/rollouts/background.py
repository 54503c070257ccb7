"""Runs programs on a thread of its own, so that sampling goes on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from rpl.core.records import Trace
from rpl.executors.base import Executor

Job = tuple[str, str]
"""A program's source and the text of the question."""


class BackgroundPrograms:
    """Runs one batch of programs at a time in the background.

    Equal jobs give equal traces and a group often writes the same program, so each different job is run once; a trace
    that infrastructure failed is not kept.

    Args:
        executor: Runs the programs; called by one thread at a time.
    """

    def __init__(self, executor: Executor) -> None:
        self.seconds = 0.0
        """Time in which programs ran."""
        self._executor = executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rpl-programs")
        self._known: dict[Job, Trace] = {}
        self._jobs: list[Job] = []
        self._new: list[Job] = []
        self._future: Future[list[Trace]] | None = None

    def start(self, jobs: Sequence[Job]) -> None:
        """Starts a batch; the batch before must have been waited for."""
        assert not self._jobs
        self._jobs = list(jobs)
        self._new = [job for job in dict.fromkeys(jobs) if job not in self._known]
        self._future = self._thread.submit(self._run, self._new) if self._new else None

    def wait(self) -> list[Trace]:
        """Waits for the batch that was started.

        Returns:
            One trace a job, in order.

        Raises:
            BaseException: What the executor raised, as it is.
        """
        jobs, self._jobs = self._jobs, []
        fresh: dict[Job, Trace] = {}
        if self._future is not None:
            fresh = dict(zip(self._new, self._future.result(), strict=True))
            self._known |= {job: trace for job, trace in fresh.items() if trace.infra_error is None}
        return [fresh[job] if job in fresh else self._known[job] for job in jobs]

    def _run(self, jobs: list[Job]) -> list[Trace]:
        start = time.perf_counter()
        try:
            return self._executor.run_many(jobs)
        finally:
            self.seconds += time.perf_counter() - start

    def close(self) -> None:
        """Waits for programs that still run and ends the thread."""
        self._thread.shutdown(wait=True)

    def __enter__(self) -> BackgroundPrograms:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
