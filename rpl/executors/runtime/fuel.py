"""Fuel: the deterministic measure of how much a program did.

A loop step and a call cost one unit, and one more for every hundred syntax nodes that they run. An operation on a
large value costs in proportion to what it reads or writes, and is paid before it is done. So a unit is never more than
some tens of microseconds of work, and fuel stops a program long before the clock does: how it ends does not depend on
the machine. Standard library only: the worker imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rpl.core.errors import BudgetExceeded
from rpl.executors.runtime.values import Lazy, iteration

NODES_PER_UNIT = 100
"""Syntax nodes of the body of a loop or function that one unit pays for."""

GUARDED_NODES = 4
"""As how many of them a node counts that calls a guard: an operator, a comparison, an attribute, an item, a part of an
f-string, a display of keys."""

CHARS_PER_UNIT = 1_000
"""Characters that one unit pays for, where an operation reads or writes a text once."""

ITEMS_PER_UNIT = 1_000
"""Items that one unit pays for, where an operation copies or moves them."""

SCANNED_PER_UNIT = 50
"""Items that one unit pays for, where an operation compares each with one simple value."""

MATCHES_PER_UNIT = 100_000
"""Single-character comparisons that one unit pays for, where a search may need length times length of them."""

COLLECT_EVERY = 1_000
"""Units after which values that hold each other in a circle are freed for the first time: what is large does not make
Python's own collector run, because it counts values. The time between two collections grows with what was done, so that
looking through what a program keeps takes no more time than making it."""

COLLECT_AFTER = 8_000
"""Most units between two collections: so much fuel buys some tens of MiB of such values."""


class Fuel:
    """Counts loop steps, calls and the cost of large values against a limit.

    Args:
        limit: Units that may be burnt.
        collect: Called again and again; frees what values hold in circles.

    Attributes:
        used: Units burnt so far, at most the limit.
    """

    def __init__(self, limit: int, collect: Callable[[], object] = int) -> None:
        self.limit = limit
        self._collect = collect
        self.used = 0
        self._next_look = 0
        self._look()

    def burn(self, units: int = 1) -> None:
        """Burns fuel.

        Raises:
            BudgetExceeded: `budget_fuel`: the limit is passed.
        """
        self.used += units
        if self.used >= self._next_look:
            self._look()

    def _look(self) -> None:
        """Ends the program at the limit; else frees what it holds in circles, which Python would do too late."""
        if self.used > self.limit:
            self.used = self.limit
            raise BudgetExceeded("fuel", f"the program took more than {self.limit:,} steps")
        if self.used:
            self._collect()
        self._next_look = min(self.limit + 1, self.used + min(max(COLLECT_EVERY, self.used // 2), COLLECT_AFTER))

    def steps(self, values: Iterable[Any] | Lazy, cost: int = 1) -> Iterator[Any]:
        """Yields the values, each for `cost` units of fuel; sets in an order that is the same in every process."""
        for value in iteration(values, self.burn):
            self.used += cost
            if self.used >= self._next_look:
                self._look()
            yield value
