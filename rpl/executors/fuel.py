"""Fuel: the deterministic measure of how much a program did.

Standard library only: the worker imports this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rpl.errors import BudgetExceeded


class Fuel:
    """Counts loop steps and calls against a limit.

    Attributes:
        used: Units burnt so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def burn(self, units: int = 1) -> None:
        """Burns fuel.

        Raises:
            BudgetExceeded: `budget_fuel`: the limit is passed.
        """
        self.used += units
        if self.used > self.limit:
            self.used = self.limit
            raise BudgetExceeded("fuel", f"the program took more than {self.limit:,} steps")

    def steps(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the values, one unit of fuel each."""
        for value in values:
            self.burn()
            yield value
