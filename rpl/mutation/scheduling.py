"""What the search tries first: operators by failure class, and the price by which verified repairs are compared.

Nothing here is random, so that questions of one kind are repaired by programs of one shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rpl.mutation.donors import Donors, string_literals
from rpl.mutation.edits import CLASSES
from rpl.mutation.localise import Failure
from rpl.mutation.registry import OPERATORS, Mutant, mutate
from rpl.programs.grammar import Program

PREFERENCES: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        kind: (
            tuple(operator.name for operator in OPERATORS.values() if kind in operator.first),
            tuple(operator.name for operator in OPERATORS.values() if kind in operator.second),
        )
        for kind in CLASSES
    }
)
"""Failure class -> tiers of operators. `never_fetched` is split by whether any gold was fetched at all. Operators of
one tier take turns; those that are not named follow at the end, so that every edit stays possible."""

_WORD = re.compile(r"\w+")


def neighbours(
    program: Program, failure: Failure, donors: Donors, without: frozenset[str], unwritable: set[str] | None = None
) -> Iterator[Mutant]:
    """Yields all mutants of a failed program, those that can cure its failure first.

    Args:
        program: The failed program.
        failure: Where it lost its evidence.
        donors: What edits may insert.
        without: Primitives that the library does not offer.
        unwritable: Collects what cannot be written in a transcript; see `mutate`.
    """
    tiers = PREFERENCES.get(failure_class(failure), ())
    named = {name for tier in tiers for name in tier}
    rest = tuple(name for name in OPERATORS if name not in named)
    for tier in (*tiers, rest):
        yield from mutate(program, donors, tier, without=without, lines=failure.lines, unwritable=unwritable)


def failure_class(failure: Failure) -> str:
    """Returns the key of `PREFERENCES` for a failure."""
    if failure.kind == "never_fetched":
        return "part_fetched" if failure.fetched else "nothing_fetched"
    return failure.kind


def foreign_words(program: Program, question: str) -> int:
    """Counts the words in string literals that the question does not contain.

    A policy that sees only the question cannot know where such words come from, so they are hard to learn.

    >>> from rpl.programs.grammar import parse
    >>> foreign_words(parse("print(bm25('currency of Chad'))"), "What is the currency of Chad?")
    0
    """
    known = set(_WORD.findall(question.lower()))
    literals = string_literals(program.tree)
    return sum(word not in known for literal in literals for word in _WORD.findall(literal.lower()))
