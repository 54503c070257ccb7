"""A library that fails on purpose, to show that failures of retrieval never turn into rewards."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from rpl.errors import ConfigError, RetrieverError
from rpl.retrieval.library import CallResult, Library


class FaultInjection(Library):
    """Answers like the library it wraps, except that every n-th call raises `RetrieverError`.

    Args:
        library: Whose backends, cache and fingerprint it shares.
        fail_every: The n of every n-th call; 1 fails always.
        primitives: Which primitives count and fail; empty means all.
        skip: Calls that are let through before the counting starts.
    """

    def __init__(self, library: Library, fail_every: int, primitives: Collection[str] = (), skip: int = 0) -> None:
        if fail_every < 1:
            raise ConfigError(f"fail_every must be at least 1, got {fail_every}")
        super().__init__(library.corpus, library.bm25, library.dense, library.reranker)
        self.fingerprint = library.fingerprint
        self.cache = library.cache
        self.fail_every = fail_every
        self.calls = 0
        """Calls that counted, failed ones included."""
        self.failures = 0
        self._primitives_that_fail = frozenset(primitives)
        self._skip = skip
        self._counting = threading.Lock()

    def call(self, name: str, args: Mapping[str, Any]) -> CallResult:
        """Runs one primitive, or raises `RetrieverError` where it is this call's turn to fail."""
        if not self._primitives_that_fail or name in self._primitives_that_fail:
            with self._counting:
                self.calls += 1
                number = self.calls
                fails = number > self._skip and (number - self._skip) % self.fail_every == 0
                self.failures += fails
            if fails:
                raise RetrieverError(f"injected fault in {name} (call {number})")
        return super().call(name, args)
