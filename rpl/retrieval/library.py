"""Everything a program can reach: one corpus, its search backends and a cache of their results.

`Library.call` is the only door. It tells two kinds of failure apart: a program that asks for something impossible
gets a `PrimitiveError` (which it may read and mend), and a backend that fails raises `RetrieverError` (which voids
the rollout). Only results that are fully right are cached.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rpl.errors import PrimitiveError, ProgramError, RetrieverError
from rpl.files import digest
from rpl.retrieval.base import MAX_K, Reranker, Retriever
from rpl.retrieval.cache import LRUCache
from rpl.retrieval.config import LibraryConfig
from rpl.retrieval.corpus import Corpus, is_encodable
from rpl.retrieval.links import LinkGraph
from rpl.types import Passage

__all__ = ["MAX_QUERY_CHARS", "MAX_RERANK", "CallResult", "Library", "LibraryConfig", "open_library"]

DEFAULT_K = 10
"""The `k` of a search that does not name one."""

MAX_QUERY_CHARS = 2_000
"""The longest query a program may send; the encoders read far less of it."""

MAX_RERANK = 200
"""The most passages one call of `rerank` accepts."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one primitive call returned."""

    passages: tuple[Passage, ...]
    cached: bool
    """Whether the result came from the cache, so that no backend did any work."""


class Library:
    """A corpus with its search backends. Safe to call from several threads.

    Args:
        corpus: The passages.
        bm25: Serves `bm25`.
        dense: Serves `dense`; `None` where the library has no embeddings.
        reranker: Serves `rerank`; `None` where it is off.
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
        settings: str = "",
        cache_size: int = 50_000,
    ) -> None:
        self.corpus = corpus
        self.bm25 = bm25
        self.dense = dense
        self.reranker = reranker
        self.link_graph = LinkGraph(corpus)
        self.fingerprint = digest("library", corpus.fingerprint, settings)
        """Equal for libraries that answer every call alike: corpus, backends and their settings."""
        self.cache: LRUCache[tuple[Passage, ...]] = LRUCache(cache_size)
        self._primitives: dict[str, Callable[[dict[str, Any]], list[Passage]]] = {
            "bm25": lambda args: self.bm25.search([args["query"]], args["k"])[0],
            "dense": self._dense,
            "rerank": self._rerank,
            "read": lambda args: [self.corpus.get(args["passage_id"])],
            "links": lambda args: self.link_graph.links(args["passage"], args["k"]),
        }

    @property
    def primitives(self) -> tuple[str, ...]:
        """Names of the primitives that work in this library."""
        missing = {"dense"} if self.dense is None else set()
        missing |= {"rerank"} if self.reranker is None else set()
        return tuple(name for name in self._primitives if name not in missing)

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
        checked = self._check(name, args)
        key = (name, json.dumps(checked, sort_keys=True), self.fingerprint)
        found = self.cache.get(key)
        if found is not None:
            return CallResult(found, cached=True)
        started = time.perf_counter()
        try:
            passages = tuple(self._primitives[name](checked))
        except (ProgramError, RetrieverError):
            raise
        except Exception as error:
            # The boundary of retrieval: whatever a backend raises is an infrastructure fault to its caller.
            seconds = time.perf_counter() - started
            raise RetrieverError(f"{name} failed after {seconds:.1f} s: {type(error).__name__}: {error}") from error
        if not all(math.isfinite(p.score) for p in passages):
            raise RetrieverError(
                f"{name} returned a score that is not a finite number; the index or encoder is damaged"
            )
        self.cache.put(key, passages)
        return CallResult(passages, cached=False)

    def close(self) -> None:
        """Frees caches and backends; the library must not be called afterwards."""
        self.cache.clear()
        for backend in (self.bm25, self.dense, self.reranker):
            close = getattr(backend, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _dense(self, args: dict[str, Any]) -> list[Passage]:
        assert self.dense is not None
        return self.dense.search([args["query"]], args["k"])[0]

    def _rerank(self, args: dict[str, Any]) -> list[Passage]:
        assert self.reranker is not None
        passages = [self.corpus.get(id_) for id_ in args["passages"]]
        return self.reranker.rerank(args["query"], passages)[: args["k"]] if passages else []

    def _check(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments with defaults filled in; raises `PrimitiveError` where one is not allowed."""
        if name not in self._primitives:
            raise PrimitiveError(f"unknown primitive {name!r}; this library offers {', '.join(self.primitives)}")
        if name not in self.primitives:
            raise PrimitiveError(f"{name} is not available in this library")
        takes = _PARAMETERS[name]
        surplus = [key for key in args if key not in takes]
        if surplus:
            raise PrimitiveError(f"{name} takes {', '.join(takes)}; it does not take {', '.join(map(repr, surplus))}")
        checked: dict[str, Any] = {}
        for key in takes:
            value = args.get(key)
            if key == "query":
                checked[key] = _query(name, value)
            elif key == "k":
                checked[key] = _count(name, value, None if name == "rerank" else DEFAULT_K)
            elif key == "passages":
                checked[key] = self._ids(name, value)
            else:
                checked[key] = self._id(name, value)
        return checked

    def _id(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise PrimitiveError(f"{name} needs a passage id (a string), got {_show(value)}")
        if value not in self.corpus:
            raise PrimitiveError(f"{name}: there is no passage with id {_show(value)}")
        return value

    def _ids(self, name: str, value: Any) -> list[str]:
        if not isinstance(value, list | tuple):
            raise PrimitiveError(f"{name} needs a list of passages, got {_show(value)}")
        ids = list(dict.fromkeys(self._id(name, item) for item in value))
        if len(ids) > MAX_RERANK:
            raise PrimitiveError(f"{name} accepts at most {MAX_RERANK} passages, got {len(ids)}")
        return ids


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "bm25": ("query", "k"),
    "dense": ("query", "k"),
    "rerank": ("query", "passages", "k"),
    "read": ("passage_id",),
    "links": ("passage", "k"),
}


def _query(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PrimitiveError(f"{name} needs a query (a string), got {_show(value)}")
    query = " ".join(value.split())
    if not query:
        raise PrimitiveError(f"{name}: the query is empty")
    if len(query) > MAX_QUERY_CHARS:
        raise PrimitiveError(f"{name}: the query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed")
    if not is_encodable(query):
        raise PrimitiveError(f"{name}: the query is not valid Unicode text")
    return query


def _count(name: str, value: Any, default: int | None) -> int | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise PrimitiveError(f"{name}: k must be a whole number from 1 to {MAX_K}, got {_show(value)}")
    if not 1 <= value <= MAX_K:
        raise PrimitiveError(f"{name}: k must be from 1 to {MAX_K}, got {value}")
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def open_library(config: LibraryConfig, progress: Callable[[str], None] | None = None) -> Library:
    """Opens the library that a config describes; builds its index first where there is none yet.

    Args:
        config: What to open.
        progress: Receives one line of text per step that may take a while (estimates, builds, loads).

    Raises:
        ConfigError: A setting does not fit (unknown corpus or encoder, index built with other settings).
        DataError: The corpus or the index is damaged or stale.
        MissingDependencyError: A package or model that the config needs is not installed.
        RetrieverError: The index does not find its own passages.
    """
    from rpl.retrieval.opening import open_from_config

    return open_from_config(config, progress)
