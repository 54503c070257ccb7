"""Places in a program where an edit can go, each addressed by its path from the module down."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[tuple[str, int | None], ...]
"""Steps from a node to one below it: a field, and the position in it where the field is a list."""


@dataclass(frozen=True)
class Site:
    """A node in a tree with the place it stands in."""

    node: Any
    """An `ast` node; which class, the predicate that found it says."""
    path: Path
    """Where it stands in the tree that was searched; empty for the tree itself."""
    ancestors: tuple[ast.AST, ...]
    """From the top of the tree down to the parent."""

    @property
    def parent(self) -> ast.AST:
        """The node that it stands in."""
        return self.ancestors[-1]

    @property
    def field(self) -> str:
        """The field of the parent that it stands in."""
        return self.path[-1][0]

    @property
    def line(self) -> int:
        """Line in the canonical text."""
        return next((n.lineno for n in (self.node, *reversed(self.ancestors)) if hasattr(n, "lineno")), 1)

    def within(self, line: int) -> bool:
        """Whether the node is, or stands in, a statement that begins in a line."""
        return any(isinstance(n, ast.stmt) and n.lineno == line for n in (*self.ancestors, self.node))

    @property
    def is_statement(self) -> bool:
        """Whether the node is a statement in a block."""
        return isinstance(self.node, ast.stmt) and self.path[-1][1] is not None

    @property
    def block(self) -> list[ast.stmt]:
        """The list of statements that a statement stands in."""
        statements: list[ast.stmt] = getattr(self.parent, self.field)
        return statements


def sites(tree: ast.AST, wanted: Callable[[Site], bool]) -> list[Site]:
    """Returns the places below a node that are wanted, in source order (pre-order)."""
    return [site for site in _walk(Site(tree, (), ())) if wanted(site)]


def _walk(site: Site) -> Iterator[Site]:
    ancestors = (*site.ancestors, site.node)
    for field, value in ast.iter_fields(site.node):
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST):
                below = Site(child, (*site.path, (field, index)), ancestors)
                yield below
                yield from _walk(below)


def replaced(tree: ast.AST, path: Path, nodes: Sequence[ast.AST]) -> Any:
    """Returns a tree that has other nodes at a path; the given tree stays as it is.

    Args:
        tree: The tree; whatever lies off the path is shared with the result.
        path: The place, as `sites` gives it.
        nodes: What to put there: one node, or any number where the place is a list.
    """
    if not path:
        [node] = nodes
        return node
    (field, index), *rest = path
    edited, value = copy.copy(tree), getattr(tree, field)
    if index is None:
        setattr(edited, field, replaced(value, tuple(rest), nodes))
    else:
        within = [replaced(value[index], tuple(rest), nodes)] if rest else nodes
        setattr(edited, field, [*value[:index], *within, *value[index + 1 :]])
    return edited
