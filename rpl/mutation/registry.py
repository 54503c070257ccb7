"""Program mutation: nearby programs, one edit each, always within the grammar. Nothing is executed here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rpl.core.errors import ConfigError, ProgramError
from rpl.mutation.donors import Donors
from rpl.mutation.operators import composed, loops, queries, structure
from rpl.mutation.sites import Edit, called, unbound_names
from rpl.programs.grammar import Program, parse
from rpl.programs.printing import unparse

Operator = Callable[[Program, Donors], Iterator[Edit]]
"""Yields edits of a program, the most promising first; leaves the program as it is."""

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "query_edit": queries.query_edit,
        "bridge": loops.bridge,
        "union": loops.union,
        "spread": composed.spread,
        "path": composed.path,
        "sift": composed.sift,
        "change_k": queries.change_k,
        "print_passage": loops.print_passage,
        "crossover": structure.crossover,
        "primitive_swap": queries.primitive_swap,
        "add_filter": loops.add_filter,
        "insert_rerank": queries.insert_rerank,
        "fuse": queries.fuse_query,
        "change_filter": loops.change_filter,
        "print_budget": loops.print_budget,
        "branch_guard": queries.branch_guard,
        "unfuse": queries.unfuse,
        "remove_rerank": queries.remove_rerank,
        "loop_bound": loops.loop_bound,
        "delete": structure.delete,
        "hoist": structure.hoist,
    }
)
"""Name -> operator, in the order in which they take turns."""


@dataclass(frozen=True)
class Mutant:
    """A program one edit away from its parent."""

    program: Program
    operator: str
    """Key of `OPERATORS`."""
    edit: str
    """What was done, in one line; line numbers are those of the parent's canonical text."""


def mutate(
    program: Program,
    donors: Donors,
    operators: Collection[str] | None = None,
    *,
    without: Collection[str] = (),
) -> Iterator[Mutant]:
    """Yields the neighbours of a program, each once, never the program itself.

    The operators take turns, and each yields its most promising edits first, so any prefix is a balanced sample.

    Args:
        program: The parent; it stays as it is.
        donors: What edits may insert.
        operators: Names of the operators to use, all by default. They take turns in the order of `OPERATORS`.
        without: Primitives that edits must not introduce, such as `dense` where no dense index is loaded.

    Raises:
        ConfigError: There is no operator of that name.

    >>> seed = parse("for p in bm25(question, k=1): print(p)")
    >>> next(mutate(seed, Donors(queries=("Lyon",)))).edit
    "line 1: query question -> 'Lyon'"
    """
    chosen = set(OPERATORS if operators is None else operators)
    if unknown := chosen - set(OPERATORS):
        raise ConfigError(f"unknown mutation operators {sorted(unknown)}; there are {', '.join(OPERATORS)}")
    return _take_turns(program, donors, [name for name in OPERATORS if name in chosen], frozenset(without))


def _take_turns(program: Program, donors: Donors, names: list[str], without: frozenset[str]) -> Iterator[Mutant]:
    tree = program.tree
    unbound = unbound_names(tree)
    barred = without - _called_names(tree)
    seen = {program}
    streams = [(name, OPERATORS[name](program, donors)) for name in names]
    while streams:
        running = []
        for name, stream in streams:
            for edit in stream:
                child = _checked(edit.tree, unbound, barred)
                if child is not None and child not in seen:
                    seen.add(child)
                    running.append((name, stream))
                    yield Mutant(child, name, edit.text)
                    break
        streams = running


def _checked(tree: ast.Module, unbound: set[str], barred: frozenset[str]) -> Program | None:
    """The program of an edited tree; `None` if it is outside the grammar or reads names that nothing binds."""
    try:
        program = parse(unparse(tree))
    except ProgramError:
        return None  # an edit at the limits of depth or length: no such neighbour
    edited = program.tree
    if unbound_names(edited) - unbound or barred & _called_names(edited):
        return None
    return program


def _called_names(tree: ast.AST) -> frozenset[str]:
    return frozenset(name for node in ast.walk(tree) if (name := called(node)) is not None)
