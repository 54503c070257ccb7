"""What a mutation operator is: a function that yields edits, registered with its turn and with what it can cure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rpl.mutation.donors import Donors
from rpl.mutation.sites import Site
from rpl.programs.grammar import Program

CLASSES = ("crashed", "nothing_fetched", "part_fetched", "lost_in_rerank", "not_printed", "over_budget")
"""The classes of failure by which operators are chosen."""


@dataclass(frozen=True)
class Edit:
    """One edit: other nodes in place of a site's."""

    site: Site
    replacement: ast.AST | Sequence[ast.AST]
    """One node, or where statements stand any number of them; none deletes. It may share nodes with the program."""
    what: str
    """What is done, in one line."""
    line: int | None = None
    """Line of the parent's canonical text that the edit is about, where that is not the site's."""

    @property
    def text(self) -> str:
        """What is done, and in which line."""
        return f"line {self.line or self.site.line}: {self.what}"


Edits = Callable[[Program, Donors], Iterator[Edit]]
"""Yields the edits of a program, the most promising first; changes neither program nor donors."""


@dataclass(frozen=True)
class Operator:
    """A mutation operator."""

    name: str
    edits: Edits
    turn: int
    """Operators that are tried together take turns in this order."""
    first: tuple[str, ...]
    """Classes of failure for which it is among the first to be tried."""
    second: tuple[str, ...]
    """Classes for which it is tried next; for all others it comes at the end."""


REGISTERED: dict[str, Operator] = {}
"""Name -> operator, in no order; `rpl.mutation.registry.OPERATORS` has them all, in turn."""


def operator(turn: int, *, first: str = "", second: str = "", name: str = "") -> Callable[[Edits], Edits]:
    """Registers a function as a mutation operator.

    Args:
        turn: Its place in the order in which operators take turns; no two operators share one.
        first: The classes of failure (see `CLASSES`), separated by spaces, for which it is among the first to be tried.
        second: Those for which it is tried next.
        name: What configurations and records call it; by default the function's name.

    Raises:
        ValueError: The name or the turn is taken, or a class does not exist.

    >>> @operator(turn=999, first="crashed")
    ... def keep(program, donors):
    ...     yield from ()
    >>> REGISTERED.pop("keep").first
    ('crashed',)
    """

    def register(edits: Edits) -> Edits:
        made = Operator(name or edits.__name__, edits, turn, tuple(first.split()), tuple(second.split()))
        if unknown := {*made.first, *made.second}.difference(CLASSES):
            raise ValueError(f"{made.name}: unknown classes {sorted(unknown)}; there are {', '.join(CLASSES)}")
        for other in REGISTERED.values():
            if other.name == made.name or other.turn == turn:
                raise ValueError(f"{made.name}: {other.name} has turn {other.turn} already")
        REGISTERED[made.name] = made
        return edits

    return register
