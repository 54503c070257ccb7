"""How many calls a library was asked, and what became of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import Literal

Outcome = Literal["ok", "empty", "refused", "failed"]
"""What became of a call: passages, none that match, a fault of the program, or a fault of retrieval."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Numbers of calls. A call that failed and was tried again counts twice."""

    ok: int = 0
    """Answered with at least one passage."""
    empty: int = 0
    """Answered rightly with none."""
    refused: int = 0
    """Not made: its arguments were the program's fault."""
    failed: int = 0
    """Retrieval itself failed."""
    cached: int = 0
    """Those of `ok` that the cache answered."""

    @property
    def attempted(self) -> int:
        """All calls with right arguments."""
        return self.ok + self.empty + self.failed

    def __add__(self, other: CallCounts) -> CallCounts:
        return CallCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: CallCounts) -> CallCounts:
        return CallCounts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        return (
            f"{self.attempted} calls attempted, {self.ok + self.empty} succeeded ({self.empty} of them empty), "
            f"{self.failed} failed"
        )


class CallCounter:
    """Counts calls by primitive. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, CallCounts] = {}

    def add(self, name: str, outcome: Outcome, cached: bool = False) -> None:
        """Counts one call of a primitive."""
        one = CallCounts(**{outcome: 1}, cached=int(cached))
        with self._lock:
            self._counts[name] = self._counts.get(name, CallCounts()) + one

    def snapshot(self) -> dict[str, CallCounts]:
        """Returns the counts so far by primitive."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> CallCounts:
        """The counts so far over all primitives."""
        return sum(self.snapshot().values(), CallCounts())
