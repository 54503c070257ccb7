"""Everything a program can reach: one corpus, its search backends and a cache of their results.

`Library.call` is the only door, whether the corpus is in this process (`LocalLibrary`) or on a server
(`rpl.retrieval.library.remote`). It tells two kinds of failure apart: a program that asks for something impossible gets
a `PrimitiveError` (which it may read and mend), and a backend that fails raises `RetrieverError` (which voids the
rollout). Only results with passages are cached: a failure never is, and an empty result costs little to ask for again
and might have been a fault that nobody noticed.
"""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from cachetools import LRUCache

from rpl.core.errors import PrimitiveError, ProgramError, RetrieverError
from rpl.core.files import digest
from rpl.core.records import Passage
from rpl.programs.primitives import MAX_RERANK, SEARCHES, SERVED
from rpl.retrieval.base import MAX_QUERY_CHARS, Reranker, Retriever
from rpl.retrieval.canary import canary_sample
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.library.arguments import check_arguments
from rpl.retrieval.library.batching import MicroBatcher
from rpl.retrieval.library.counting import CallCounter

if TYPE_CHECKING:
    from rpl.retrieval.links.links import LinkGraph

__all__ = [
    "MAX_QUERY_CHARS",
    "MAX_RERANK",
    "Call",
    "CallResult",
    "Library",
    "LocalLibrary",
]

Call = tuple[str, Mapping[str, Any]]
"""A primitive's name and its JSON arguments."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one primitive call returned."""

    passages: tuple[Passage, ...]
    cached: bool
    """Whether the result came from the cache, so that no backend did any work."""

    @property
    def status(self) -> Literal["ok", "empty"]:
        """`empty` where nothing matches; a failure is a `RetrieverError` and no result."""
        return "ok" if self.passages else "empty"


class Library(ABC):
    """What serves the primitives. Safe to call from several threads.

    Args:
        fingerprint: Equal for libraries that answer every call alike: corpus, backends and their settings.
        cache_size: Results kept for repeated calls; 0 turns the cache off.
    """

    def __init__(self, fingerprint: str, cache_size: int = 50_000) -> None:
        self.fingerprint = fingerprint
        self.identity: dict[str, Any] = {"library": fingerprint}
        """What the fingerprint is made of, by name, so that a message can say what differs; JSON values."""
        self.cache: LRUCache[tuple[str, ...], tuple[Passage, ...]] = LRUCache(cache_size)
        self.cache_lock = threading.Lock()
        self.counter = CallCounter()
        """What became of the calls so far."""

    @property
    @abstractmethod
    def primitives(self) -> tuple[str, ...]:
        """Names of the primitives that work in this library."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of passages; `None` where a server does not say."""

    @abstractmethod
    def passage(self, id_: str) -> Passage:
        """Returns a passage by its id.

        Raises:
            KeyError: There is no such passage.
            RetrieverError: A server failed.
        """

    @abstractmethod
    def missing(self, ids: Iterable[str]) -> frozenset[str] | None:
        """Returns those ids that no passage has; `None` where a server cannot tell.

        Raises:
            RetrieverError: A server failed.
        """

    @abstractmethod
    def canaries(self) -> list[Passage]:
        """Returns passages, at least one, that must be found by their own words; see `rpl.retrieval.canary`."""

    @abstractmethod
    def check(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call with defaults filled in.

        Raises:
            PrimitiveError: One is not allowed.
        """

    @abstractmethod
    def serve(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """Runs calls whose arguments were checked; returns the passages of each, or why there are none."""

    def call(self, name: str, args: Mapping[str, Any]) -> CallResult:
        """Runs one primitive.

        Args:
            name: `bm25`, `dense`, `rerank`, `read` or `links`.
            args: JSON values. `bm25` and `dense` take `query` and `k`; `rerank` takes `query`, `passages` (ids) and
                `k` (may be `None`); `read` takes `passage_id`; `links` takes `passage` (an id) and `k`.

        Raises:
            PrimitiveError: The call is the program's fault; the message says what is allowed.
            RetrieverError: A backend failed.
        """
        (outcome,) = self.call_many([(name, args)])
        if isinstance(outcome, CallResult):
            return outcome
        raise outcome

    def call_many(self, calls: Sequence[Call]) -> list[CallResult | ProgramError | RetrieverError]:
        """Runs several calls, those of one index as one search; one outcome a call, in order. See `call`."""
        outcomes: dict[int, CallResult | ProgramError | RetrieverError] = {}
        missing: list[tuple[int, tuple[str, str, str], tuple[str, dict[str, Any]]]] = []
        for number, (name, args) in enumerate(calls):
            try:
                checked = self.check(name, args)
            except ProgramError as error:
                self.counter.add(name if name in SERVED else "unknown", "refused")
                outcomes[number] = error
                continue
            key = (self.fingerprint, name, json.dumps(checked, sort_keys=True))
            with self.cache_lock:
                found = self.cache.get(key)
            if found is None:
                missing.append((number, key, (name, checked)))
            else:
                self.counter.add(name, "ok", cached=True)
                outcomes[number] = CallResult(found, cached=True)
        for (number, key, (name, _)), outcome in zip(missing, self._ask([c for *_, c in missing]), strict=True):
            if isinstance(outcome, CallResult):
                self.counter.add(name, outcome.status)
                if outcome.passages and self.cache.maxsize:
                    with self.cache_lock:
                        self.cache[key] = outcome.passages
            else:
                self.counter.add(name, "refused" if isinstance(outcome, ProgramError) else "failed")
            outcomes[number] = outcome
        return [outcomes[number] for number in range(len(calls))]

    def ask(self, name: str, args: Mapping[str, Any]) -> tuple[Passage, ...]:
        """Runs one primitive past the cache and without counting it, as canary queries must be asked; see `call`."""
        return self.ask_many([(name, args)])[0]

    def ask_many(self, calls: Sequence[Call]) -> list[tuple[Passage, ...]]:
        """Runs several calls as `ask` runs one; the first error among them is raised."""
        results = []
        for outcome in self._ask([(name, self.check(name, args)) for name, args in calls]):
            if not isinstance(outcome, CallResult):
                raise outcome
            results.append(outcome.passages)
        return results

    def close(self) -> None:
        """Frees caches and backends; the library must not be called afterwards."""
        with self.cache_lock:
            self.cache.clear()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[CallResult | ProgramError | RetrieverError]:
        # No word matches an empty query, whatever a backend would make of it.
        asked = [call for call in calls if not _is_empty_search(*call)]
        started = time.perf_counter()
        try:
            served = self.serve(asked) if asked else []
        except Exception as error:  # see `_outcome`
            served = [error] * len(asked)
        seconds = time.perf_counter() - started
        answers = (_outcome(name, answer, seconds) for (name, _), answer in zip(asked, served, strict=True))
        return [CallResult((), cached=False) if _is_empty_search(*call) else next(answers) for call in calls]


class LocalLibrary(Library):
    """A corpus in this process with its search backends. Concurrent dense searches are gathered into one.

    Args:
        corpus: The passages.
        bm25: Serves `bm25`.
        dense: Serves `dense`; `None` where the library has no embeddings.
        reranker: Serves `rerank`; `None` where it is off.
        links: Serves `links`; `None` prepares the titles in memory, at the first call.
        settings: Everything besides the corpus that changes results (encoder, BM25 constants, …), in one string.
        cache_size: Results kept for repeated calls; 0 turns the cache off.
    """

    def __init__(
        self,
        corpus: Corpus,
        bm25: Retriever,
        dense: Retriever | None = None,
        reranker: Reranker | None = None,
        *,
        links: LinkGraph | None = None,
        settings: str = "",
        cache_size: int = 50_000,
    ) -> None:
        super().__init__(digest("library", corpus.fingerprint, settings), cache_size)
        named = json.loads(settings) if settings.startswith("{") else {"library": settings}
        self.identity = {"corpus_digest": corpus.fingerprint, **named}
        self.corpus = corpus
        self.bm25 = bm25
        self.dense = dense
        self.reranker = reranker
        self.link_graph = links or _in_memory(corpus)
        self.batchers: dict[str, MicroBatcher] = {
            # The backend is looked up at each search, so that one that is replaced takes over.
            name: MicroBatcher(lambda queries, k, name=name: getattr(self, name).search(queries, k), name)  # type: ignore[misc]
            for name, backend in (("bm25", bm25), ("dense", dense))
            if backend is not None and backend.gather
        }

    @property
    def primitives(self) -> tuple[str, ...]:
        """See `Library.primitives`."""
        missing = {"dense"} if self.dense is None else set()
        missing |= {"rerank"} if self.reranker is None else set()
        return tuple(name for name in SERVED if name not in missing)

    @property
    def size(self) -> int:
        """See `Library.size`."""
        return len(self.corpus)

    def passage(self, id_: str) -> Passage:
        """See `Library.passage`."""
        return self.corpus.get(id_)

    def missing(self, ids: Iterable[str]) -> frozenset[str]:
        """See `Library.missing`."""
        return self.corpus.missing(ids)

    def canaries(self) -> list[Passage]:
        """See `Library.canaries`."""
        return canary_sample(self.corpus)

    def check(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """See `Library.check`."""
        return check_arguments(name, args, self.primitives, self.corpus)

    def serve(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """See `Library.serve`."""
        outcomes: dict[int, Sequence[Passage] | Exception] = {}
        for name in ("bm25", "dense"):
            numbers = [number for number, (called, _) in enumerate(calls) if called == name]
            requests = [(calls[number][1]["query"], calls[number][1]["k"]) for number in numbers]
            outcomes.update(zip(numbers, self._search(name, requests), strict=True))
        for number, (name, args) in enumerate(calls):
            if number not in outcomes:
                try:
                    outcomes[number] = getattr(self, f"_serve_{name}")(**args)
                except Exception as error:  # one call's failure is not the others'
                    outcomes[number] = error
        return [outcomes[number] for number in range(len(calls))]

    def close(self) -> None:
        """See `Library.close`."""
        super().close()
        for batcher in self.batchers.values():
            batcher.close()
        for backend in (self.bm25, self.dense, self.reranker):
            close = getattr(backend, "close", None)
            if close is not None:
                close()

    def _search(self, name: str, requests: Sequence[tuple[str, int]]) -> Sequence[Sequence[Passage] | Exception]:
        if name in self.batchers:
            return self.batchers[name].search(requests)
        outcomes: list[Sequence[Passage] | Exception] = []
        for query, k in requests:
            try:
                outcomes.append(getattr(self, name).search([query], k)[0])
            except Exception as error:  # one call's failure is not the others'
                outcomes.append(error)
        return outcomes

    def _serve_read(self, passage_id: str) -> Sequence[Passage]:
        return [self.corpus.get(passage_id)]

    def _serve_links(self, passage: str, k: int) -> Sequence[Passage]:
        return self.link_graph.links(passage, k)

    def _serve_rerank(self, query: str, passages: Sequence[str], k: int | None) -> Sequence[Passage]:
        assert self.reranker is not None
        found = [self.corpus.get(id_) for id_ in passages]
        return self.reranker.rerank(query, found)[:k] if found else []


def _in_memory(corpus: Corpus) -> LinkGraph:
    # Settings and remote libraries, which import this file, do without numpy.
    from rpl.retrieval.links.links import LinkGraph

    return LinkGraph(corpus)


def _is_empty_search(name: str, args: Mapping[str, Any]) -> bool:
    return name in SEARCHES and not args["query"]


def _outcome(
    name: str, answer: Sequence[Passage] | Exception, seconds: float
) -> CallResult | ProgramError | RetrieverError:
    """The boundary of retrieval: whatever a backend raises is an infrastructure fault to its caller."""
    if isinstance(answer, PrimitiveError | RetrieverError):
        return answer
    if isinstance(answer, Exception):
        failure = RetrieverError(f"{name} failed after {seconds:.1f} s: {type(answer).__name__}: {answer}")
        failure.__cause__ = answer
        return failure
    if not all(math.isfinite(p.score) for p in answer):
        return RetrieverError(f"{name} returned a score that is not a finite number; the index or encoder is damaged")
    return CallResult(tuple(answer), cached=False)
