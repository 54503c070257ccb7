"""The service behind the HTTP application: a library with bounds on concurrent and waiting requests.

A request is worked on by one of `threads` threads, or waits its turn in a queue of bounded length, or is sent away. A
request that took too long frees its caller but not its place: work that hangs fills the service up, and it says so,
instead of piling up threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rpl.core.errors import PrimitiveError, ProgramError, RetrieverError
from rpl.retrieval.library.counting import CallCounts
from rpl.retrieval.library.health import HealthConfig, HealthWatch
from rpl.retrieval.library.library import Call, CallResult, Library, LocalLibrary
from rpl.retrieval.library.wire import FORMAT, pack_hit, pack_outcome, pack_passage, read_call
from rpl.retrieval.serving.metrics import ServiceMetrics
from rpl.retrieval.serving.service_config import ServiceConfig

T = TypeVar("T")


class Unavailable(Exception):  # noqa: N818 - the name says what happened
    """The service cannot take a request now.

    Attributes:
        status: The HTTP status that says so.
        retry_after_s: When to ask again.
    """

    def __init__(self, message: str, status: int = 503, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class RetrievalService:
    """Loads a library in the background and serves it.

    Args:
        open_library: Opens the library; may take long.
        config: How requests are treated.
    """

    def __init__(self, open_library: Callable[[], Library], config: ServiceConfig = ServiceConfig()) -> None:
        self.config = config
        self.metrics = ServiceMetrics(self._counts)
        self._open = open_library
        self._library: Library | None = None
        self._watch: HealthWatch | None = None
        self._failure: str | None = None
        self._stopping = False
        self._inside = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="rpl-serve")

    @property
    def failure(self) -> str | None:
        """Why the library could not be opened; `None` while it loads and after it did."""
        return self._failure

    def start(self) -> threading.Thread:
        """Begins to load the library; returns the thread that does."""
        thread = threading.Thread(target=self._load, name="rpl-load", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Takes no more requests; those inside may finish."""
        self._stopping = True

    def close(self) -> None:
        """Frees the library. Requests must have finished or been given up."""
        self.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._library is not None:
            self._library.close()

    @property
    def library(self) -> Library:
        """The library.

        Raises:
            Unavailable: It is not open (any more).
        """
        if self._stopping:
            raise Unavailable("the server is stopping")
        if self._failure is not None:
            raise Unavailable(f"the library cannot be opened: {self._failure}", 500)
        if self._library is None:
            raise Unavailable("the library is loading")
        return self._library

    def about(self) -> dict[str, Any]:
        """Returns what a client must know of the library; see `wire`."""
        library = self.library
        return {
            "format": FORMAT,
            "fingerprint": library.fingerprint,
            "primitives": list(library.primitives),
            "passages": library.size,
            "canaries": [pack_passage(passage) for passage in library.canaries()],
        }

    def require_ready(self) -> None:
        """Asks canary queries, if the latest answers are too old.

        Raises:
            Unavailable: The library is not open, or does not answer them.
        """
        _ = self.library
        assert self._watch is not None
        if self._watch.due:
            try:
                self._watch.verify()
            except RetrieverError as error:
                raise Unavailable(str(error)) from error

    def call(self, calls: Sequence[Any]) -> dict[str, Any]:
        """Runs calls, as they came, and returns the reply; see `wire`."""
        library = self.library
        outcomes: dict[int, PrimitiveError] = {}
        good: list[Call] = []
        for number, value in enumerate(calls):
            try:
                good.append(read_call(value))
            except PrimitiveError as error:
                outcomes[number] = error
        served = iter(library.call_many(good))
        results = [pack_outcome(outcomes.get(number) or next(served)) for number in range(len(calls))]
        return {"fingerprint": library.fingerprint, "results": results}

    def retrieve(self, queries: Sequence[Any], k: int, with_scores: bool) -> dict[str, Any]:
        """Answers queries in Search-R1's form; see `wire`.

        Raises:
            RetrieverError: A search failed. An empty list would say that nothing was found.
        """
        library = self.library
        search = self.config.search
        if search == "auto":
            search = "dense" if "dense" in library.primitives else "bm25"
        lists: list[list[dict[str, Any]]] = []
        errors: dict[str, str] = {}
        for number, outcome in enumerate(library.call_many([(search, {"query": q, "k": k}) for q in queries])):
            if isinstance(outcome, RetrieverError):
                raise RetrieverError(f"query {number}: {outcome}") from outcome
            if isinstance(outcome, ProgramError):
                errors[str(number)] = outcome.message
            passages = outcome.passages if isinstance(outcome, CallResult) else ()
            lists.append([pack_hit(passage, with_scores) for passage in passages])
        return {"result": lists, **({"errors": errors} if errors else {})}

    async def run(self, work: Callable[[], T]) -> T:
        """Runs work on a thread when its turn comes.

        Raises:
            Unavailable: The queue is full, or the work took too long.
        """
        with self._lock:
            if self._inside >= self.config.threads + self.config.queue:
                raise Unavailable(f"the queue is full ({self._inside} requests)")
            self._inside += 1
            self.metrics.waiting.set(self._inside)
        try:
            future = self._threads.submit(work)
        except RuntimeError as error:
            self._leave()
            raise Unavailable("the server is stopping") from error
        future.add_done_callback(lambda _: self._leave())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.config.request_s)
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self.config.request_s:g} s", 504) from error

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            self.metrics.waiting.set(self._inside)

    def _load(self) -> None:
        try:
            library = self._open()
            watch = HealthWatch(library, HealthConfig(canary_every_s=self.config.canary_every_s))
            watch.preflight()
        except Exception as error:  # told to whoever asks, and by the command's exit status
            self._failure = f"{type(error).__name__}: {error}"
            return
        for name, batcher in library.batchers.items() if isinstance(library, LocalLibrary) else ():
            batcher.on_batch = self.metrics.batch.labels(name).observe
        self._watch, self._library = watch, library

    def _counts(self) -> dict[str, CallCounts]:
        return {} if self._library is None else self._library.counter.snapshot()
