"""A bounded, thread-safe store of results, least recently used first out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A snapshot of how a cache has been used."""

    hits: int
    misses: int
    size: int
    capacity: int

    @property
    def hit_rate(self) -> float:
        """Share of look-ups that were answered, in [0, 1]; 0 before the first look-up."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


class LRUCache(Generic[V]):
    """Maps keys to values and forgets the least recently used beyond its capacity.

    It stores what it is given: whoever calls `put` must not put a failure.

    Args:
        capacity: Largest total weight; 0 stores nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._hits = 0
        self._misses = 0

    def get(self, key: Hashable) -> V | None:
        """Returns the value, or `None` where there is none, and counts the look-up."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return entry[0]

    def put(self, key: Hashable, value: V, weight: int = 1) -> None:
        """Stores a value; one that is heavier than the whole capacity is not kept.

        Args:
            key: Replaces the value it had.
            value: Never `None`.
            weight: Its share of the capacity, at least 0.
        """
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._weight -= old[1]
            if weight > self.capacity:
                return
            self._entries[key] = (value, weight)
            self._weight += weight
            while self._weight > self.capacity:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._weight -= dropped

    def clear(self) -> None:
        """Forgets all values and sets the counters to zero."""
        with self._lock:
            self._entries.clear()
            self._weight = self._hits = self._misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def statistics(self) -> CacheStatistics:
        """Hits, misses and size up to now."""
        with self._lock:
            return CacheStatistics(self._hits, self._misses, len(self._entries), self.capacity)
