"""What every interpreter does about the text of a program before and while it is read: bounds on length and nesting.

Standard library only: workers import this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rpl.core.errors import BudgetExceeded, ProgramSyntaxError


@contextmanager
def reading(source: str, max_chars: int) -> Iterator[None]:
    """Goes around the parsing and compiling of a program.

    Args:
        source: The program text.
        max_chars: Its longest allowed length.

    Raises:
        BudgetExceeded: `budget_source`: the text is longer than `max_chars`.
        ProgramSyntaxError: Reading it ran into the recursion or memory limit.
    """
    if len(source) > max_chars:
        raise BudgetExceeded("source", f"the program has {len(source):,} characters; the limit is {max_chars:,}")
    try:
        yield
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError("the program is nested too deeply") from None
