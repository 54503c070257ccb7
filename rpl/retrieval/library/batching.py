"""Micro-batching: searches that are asked for at the same time become one search of many queries.

An encoder reads sixty-four short queries in a few times the time of one, and an index is scanned once for all of them.
Nobody waits for company: while one batch is searched, what arrives meanwhile gathers, and that is the next batch. One
thread at a time owns the search, because neither an index nor a model is promised to be safe under concurrent use. It
ends when nothing is asked: a thread that ran a model keeps a team of OpenMP threads for as long as it lives, and with
more of those than cores every parallel loop of the process gets slower.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from rpl.core.errors import RetrieverError
from rpl.core.records import Passage

Search = Callable[[Sequence[str], int], list[list[Passage]]]
"""As `Retriever.search`."""

MAX_BATCH = 256
"""Queries in one search."""

IDLE_S = 0.1
"""How long the owner waits for more work before it ends."""


class MicroBatcher:
    """Gathers concurrent searches; safe to call from any number of threads.

    A query gets the same answer in any company: lists are cut from longer ones (a shorter list is the start of a longer
    one, see `Retriever.search`), and where a batch fails each of its queries is tried alone, so that one that the
    backend cannot take does not take the others with it.

    Args:
        search: Called by one thread only.
        name: Of the primitive, for the thread and for messages.
        max_batch: Queries in one search, at least 1.
        on_batch: Told the number of queries of each search; must not raise.
    """

    def __init__(
        self, search: Search, name: str, max_batch: int = MAX_BATCH, on_batch: Callable[[int], None] | None = None
    ) -> None:
        self._search, self._name, self._max_batch = search, name, max_batch
        self.on_batch = on_batch
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._owner: threading.Thread | None = None
        self._closed = False

    def search(self, requests: Sequence[tuple[str, int]]) -> list[list[Passage] | Exception]:
        """Returns one outcome a request, in order: its passages, or why there are none.

        Args:
            requests: Pairs of query and k.

        Raises:
            RetrieverError: The library was closed.
        """
        if not requests:
            return []
        job = _Job(requests)
        with self._changed:
            if self._closed:
                raise RetrieverError(f"{self._name}: the library is closed")
            self._waiting.append(job)
            if self._owner is None:
                self._owner = threading.Thread(target=self._own, name=f"rpl-{self._name}", daemon=True)
                self._owner.start()
            self._changed.notify()
        job.finished.wait()
        return job.outcomes

    def close(self, timeout: float = 5.0) -> None:
        """Lets what was asked for finish and ends the thread; one that hangs is left behind after `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            owner = self._owner
        if owner is not None:
            owner.join(timeout)

    def _own(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._closed:
                    self._changed.wait(IDLE_S)
                if not self._waiting:
                    self._owner = None
                    return
                jobs = self._take()
            self._run(jobs)

    def _take(self) -> list[_Job]:
        jobs = [self._waiting.popleft()]
        size = len(jobs[0].requests)
        while self._waiting and size + len(self._waiting[0].requests) <= self._max_batch:
            jobs.append(self._waiting.popleft())
            size += len(jobs[-1].requests)
        return jobs

    def _run(self, jobs: Sequence[_Job]) -> None:
        depths: dict[str, int] = {}
        for job in jobs:
            for query, k in job.requests:
                depths[query] = max(k, depths.get(query, 0))
        found: dict[str, list[Passage] | Exception] = {}
        queries = list(depths)
        for start in range(0, len(queries), self._max_batch):
            part = queries[start : start + self._max_batch]
            found |= self._find(part, max(depths[query] for query in part))
        for job in jobs:
            for query, k in job.requests:
                answer = found[query]
                job.outcomes.append(answer if isinstance(answer, Exception) else answer[:k])
            job.finished.set()

    def _find(self, queries: Sequence[str], k: int) -> dict[str, list[Passage] | Exception]:
        if self.on_batch is not None:
            self.on_batch(len(queries))
        try:
            lists = self._search(queries, k)
            if len(lists) != len(queries):
                raise RetrieverError(f"{self._name} gave {len(lists)} lists for {len(queries)} queries")
            return dict(zip(queries, lists, strict=True))
        except Exception as error:  # handed to whoever asked
            if len(queries) == 1:
                return {queries[0]: error}
        found: dict[str, list[Passage] | Exception] = {}
        for query in queries:
            found |= self._find([query], k)
        return found


class _Job:
    """The searches of one caller."""

    def __init__(self, requests: Sequence[tuple[str, int]]) -> None:
        self.requests = requests
        self.finished = threading.Event()
        self.outcomes: list[list[Passage] | Exception] = []
