"""Program mutation: nearby programs, one edit each, always within the grammar. Nothing is executed here."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import rpl.mutation.operators as _operators
from rpl.core.errors import ConfigError, ProgramError
from rpl.core.tags import writable
from rpl.mutation.donors import Donors
from rpl.mutation.edits import REGISTERED, Edit, Operator
from rpl.mutation.sites import replaced
from rpl.mutation.syntax import called_names, unbound_names
from rpl.programs.grammar import Program, parse_tree
from rpl.programs.printing import unparse

for _module in pkgutil.iter_modules(_operators.__path__, f"{_operators.__name__}."):
    importlib.import_module(_module.name)

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {operator.name: operator for operator in sorted(REGISTERED.values(), key=lambda operator: operator.turn)}
)
"""Name -> operator, in the order in which they take turns; every module of `rpl/mutation/operators` adds its own."""


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
    lines: Sequence[int] = (),
    unwritable: set[str] | None = None,
) -> Iterator[Mutant]:
    """Yields the neighbours of a program, each once, never the program itself.

    The operators take turns, and each yields its most promising edits first, so any prefix is a balanced sample.

    Args:
        program: The parent; it stays as it is.
        donors: What edits may insert.
        operators: Names of the operators to use, all by default. They take turns in the order of `OPERATORS`.
        without: Primitives that edits must not introduce, such as `dense` where no dense index is loaded.
        lines: Lines of the parent's canonical text; each operator edits the statements that begin there first.
        unwritable: Collects the texts that are no neighbours because they cannot be written inside the tags of a
            transcript: no policy could learn to write them.

    Raises:
        ConfigError: There is no operator of that name.

    >>> from rpl.programs.grammar import parse
    >>> seed = parse("for p in bm25(question, k=1): print(p)")
    >>> next(mutate(seed, Donors(queries=("Lyon",)))).edit
    "line 1: query question -> 'Lyon'"
    """
    chosen = set(OPERATORS if operators is None else operators)
    if unknown := chosen - set(OPERATORS):
        raise ConfigError(f"unknown mutation operators {sorted(unknown)}; there are {', '.join(OPERATORS)}")
    names = [name for name in OPERATORS if name in chosen]
    return _take_turns(program, donors, names, frozenset(without), lines, set() if unwritable is None else unwritable)


def _take_turns(
    program: Program,
    donors: Donors,
    names: list[str],
    without: frozenset[str],
    lines: Sequence[int],
    unwritable: set[str],
) -> Iterator[Mutant]:
    tree = program.tree
    unbound = unbound_names(tree)
    barred = without - called_names(tree)
    seen = {program}
    streams = [(name, _ranked(OPERATORS[name].edits(program, donors), lines)) for name in names]
    while streams:
        running = []
        for name, stream in streams:
            for edit in stream:
                child = _applied(tree, edit, unbound, barred)
                if child is not None and child not in seen:
                    seen.add(child)
                    if not writable(child.source):
                        unwritable.add(child.source)
                        continue
                    running.append((name, stream))
                    yield Mutant(child, name, edit.text)
                    break
        streams = running


def _ranked(edits: Iterator[Edit], lines: Sequence[int]) -> Iterator[Edit]:
    """Puts the edits within the statements of some lines first, line by line; keeps the order otherwise."""
    if not lines:
        return edits
    return iter(
        sorted(edits, key=lambda edit: next((i for i, at in enumerate(lines) if edit.site.within(at)), len(lines)))
    )


def _applied(tree: ast.Module, edit: Edit, unbound: set[str], barred: frozenset[str]) -> Program | None:
    """The edited program; `None` if it is outside the grammar or reads names that nothing binds."""
    nodes = [edit.replacement] if isinstance(edit.replacement, ast.AST) else edit.replacement
    try:
        program, edited = parse_tree(unparse(replaced(tree, edit.site.path, nodes)))
    except ProgramError:
        return None  # an edit at the limits of depth or length: no such neighbour
    if unbound_names(edited) - unbound or barred & called_names(edited):
        return None
    return program
