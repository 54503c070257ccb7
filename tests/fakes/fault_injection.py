"""A library that fails on purpose, to show that failures of retrieval never turn into rewards."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rpl.core.errors import ConfigError, ProgramError, RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.library.library import Call, CallResult, Library


class FaultInjection(Library):
    """Answers like the library it wraps, except that every n-th call of a program raises `RetrieverError`.

    Canary queries are let through, as they are where a fault comes and goes.

    Args:
        library: Whose backends, cache, counter and fingerprint it shares.
        fail_every: The n of every n-th call; 1 fails always.
        primitives: Which primitives count and fail; empty means all.
        skip: Calls that are let through before the counting starts.
    """

    def __init__(self, library: Library, fail_every: int, primitives: Collection[str] = (), skip: int = 0) -> None:
        if fail_every < 1:
            raise ConfigError(f"fail_every must be at least 1, got {fail_every}")
        super().__init__(library.fingerprint)
        self.identity = library.identity
        self.cache, self.cache_lock, self.counter = library.cache, library.cache_lock, library.counter
        self.fail_every = fail_every
        self.calls = 0
        """Calls that counted, failed ones included."""
        self.failures = 0
        self._library = library
        self._primitives_that_fail = frozenset(primitives)
        self._skip = skip
        self._counting = threading.Lock()

    @property
    def primitives(self) -> tuple[str, ...]:
        """See `Library.primitives`."""
        return self._library.primitives

    @property
    def size(self) -> int | None:
        """See `Library.size`."""
        return self._library.size

    def passage(self, id_: str) -> Passage:
        """See `Library.passage`."""
        return self._library.passage(id_)

    def missing(self, ids: Iterable[str]) -> frozenset[str] | None:
        """See `Library.missing`."""
        return self._library.missing(ids)

    def canaries(self) -> list[Passage]:
        """See `Library.canaries`."""
        return self._library.canaries()

    def check(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """See `Library.check`."""
        return self._library.check(name, args)

    def serve(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """See `Library.serve`."""
        return self._library.serve(calls)

    def call_many(self, calls: Sequence[Call]) -> list[CallResult | ProgramError | RetrieverError]:
        """Runs primitives, except those whose turn it is to fail."""
        outcomes: list[CallResult | ProgramError | RetrieverError] = []
        for name, args in calls:
            number = self._turn(name)
            if number is None:
                outcomes += super().call_many([(name, args)])
            else:
                self.counter.add(name, "failed")
                outcomes.append(RetrieverError(f"injected fault in {name} (call {number})"))
        return outcomes

    def close(self) -> None:
        """See `Library.close`."""
        self._library.close()

    def _turn(self, name: str) -> int | None:
        """Counts a call; returns its number if it must fail."""
        if self._primitives_that_fail and name not in self._primitives_that_fail:
            return None
        with self._counting:
            self.calls += 1
            fails = self.calls > self._skip and (self.calls - self._skip) % self.fail_every == 0
            self.failures += fails
            return self.calls if fails else None
