"""Places in a program where an edit can go, and the tools that make the edit on a fresh tree."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rpl.programs.checks import bound_names
from rpl.programs.grammar import Program
from rpl.programs.printing import unparse
from rpl.programs.tables import BUILTINS, GLOBALS, PRIMITIVES

SEARCHES = ("bm25", "dense")
"""Primitives that take a query and need no passages."""
PASSAGE_LISTS = ("bm25", "dense", "fuse", "rerank", "links", "unique")
"""Primitives that return a list of passages."""
_K_POSITION = {"bm25": 1, "dense": 1, "links": 1, "rerank": 2}
_FRESH_NAMES = ("p", "q", "r", "s", "t", "u", "v", "w")


class Edit(NamedTuple):
    """One edit: the edited tree (not yet checked against the grammar) and a line that says what was done."""

    tree: ast.Module
    text: str


@dataclass(frozen=True)
class Site:
    """A node in a tree with the place it stands in."""

    node: Any
    """An `ast` node; which class, the predicate that found it says."""
    field: str
    index: int | None
    ancestors: tuple[ast.AST, ...]
    """From the module down to the parent."""

    def splice(self, nodes: list[ast.AST]) -> None:
        """Puts nodes in place of this one; more or fewer than one only where the place is a list."""
        parent = self.ancestors[-1]
        if self.index is None:
            [node] = nodes
            setattr(parent, self.field, node)
        else:
            getattr(parent, self.field)[self.index : self.index + 1] = nodes

    @property
    def line(self) -> int:
        """Line in the canonical text."""
        return next((n.lineno for n in (self.node, *reversed(self.ancestors)) if hasattr(n, "lineno")), 1)

    @property
    def block(self) -> list[ast.stmt]:
        """The list of statements that a statement stands in."""
        statements: list[ast.stmt] = getattr(self.ancestors[-1], self.field)
        return statements


Wanted = Callable[[Site], bool]


def sites(tree: ast.AST, wanted: Wanted) -> list[Site]:
    """Returns the places whose node is wanted, in source order (pre-order)."""
    return [site for site in _walk(tree, ()) if wanted(site)]


def _walk(parent: ast.AST, ancestors: tuple[ast.AST, ...]) -> Iterator[Site]:
    ancestors = (*ancestors, parent)
    for field, value in ast.iter_fields(parent):
        if isinstance(value, ast.AST):
            yield Site(value, field, None, ancestors)
            yield from _walk(value, ancestors)
        elif isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield Site(child, field, index, ancestors)
                    yield from _walk(child, ancestors)


def rewrite(program: Program, wanted: Wanted, number: int, build: Callable[..., object], *args: object) -> ast.Module:
    """Edits one place on a fresh tree.

    Args:
        program: The parent; it stays as it is.
        wanted: Selects places.
        number: Which of them, from 0.
        build: Gets the node there, which it may reuse, and `args`; returns the node (or, in lists of statements, a list
            of nodes) to put in its place.
        *args: More arguments for `build`.
    """
    tree = program.tree
    site = sites(tree, wanted)[number]
    built = build(site.node, *args)
    nodes: list[Any] = built if isinstance(built, list) else [built]
    site.splice(nodes)
    return tree


def put(old: ast.AST, new: object) -> object:
    """For `rewrite`: puts something new in place of the old."""
    return new


def called(node: object) -> str | None:
    """Returns the name of the primitive or builtin that a node calls, `None` for any other node."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return None


def is_search(site: Site) -> bool:
    """Whether the node is a call of `bm25` or `dense` with a query."""
    return called(site.node) in SEARCHES and argument(site.node, "query") is not None


def is_statement(site: Site) -> bool:
    """Whether the node is a statement in a block."""
    return isinstance(site.node, ast.stmt) and site.index is not None


def argument(call: ast.AST, name: str) -> ast.expr | None:
    """Returns an argument of a call of a primitive, however it was passed."""
    assert isinstance(call, ast.Call)
    primitive = called(call)
    if primitive is None or primitive not in PRIMITIVES:
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    position = list(PRIMITIVES[primitive].parameters).index(name)
    if primitive == "fuse" or position >= len(call.args) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    return call.args[position]


def with_argument(call: ast.AST, name: str, value: ast.expr | None) -> ast.Call:
    """Returns the call with an argument set in place, or left out if `value` is `None`."""
    assert isinstance(call, ast.Call)
    old = argument(call, name)
    call.keywords = [k for k in call.keywords if k.arg != name or k.value is old]
    for i, arg in enumerate(call.args):
        if arg is old:
            call.args[i : i + 1] = [] if value is None else [value]
            return call
    call.keywords = [k for k in call.keywords if k.arg != name]
    if value is not None:
        call.keywords.append(ast.keyword(arg=name, value=value))
    return call


def constant_k(call: ast.AST) -> int | None:
    """Returns the `k` of a call if it is a literal or the default, else `None`."""
    value = argument(call, "k")
    if value is None:
        primitive = called(call)
        default = PRIMITIVES[primitive].parameters["k"].default if primitive is not None else None
        return default if isinstance(default, int) else None
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    return None


def expression(text: str) -> ast.expr:
    """Parses an expression."""
    return ast.parse(text, mode="eval").body


def statements(text: str) -> list[ast.stmt]:
    """Parses statements."""
    return ast.parse(text).body


def show(node: ast.AST | None) -> str:
    """Prints the head of a node on one line, for edit texts."""
    line = "" if node is None else unparse(node).splitlines()[0]
    return line if len(line) <= 80 else line[:77] + "..."


def contains(node: ast.AST, names: Iterable[str]) -> bool:
    """Whether a call of one of the named functions is in the node."""
    wanted = frozenset(names)
    return any(called(inner) in wanted for inner in ast.walk(node))


def fresh_name(tree: ast.AST, number: int = 0) -> str:
    """Returns a short name that the program does not bind or read; `number` asks for the second (1), third, … one."""
    taken = bound_names(tree) | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    numbered = (f"p{i}" for i in range(1, 1000))
    free = (name for name in (*_FRESH_NAMES, *numbered) if name not in taken)
    return next(itertools.islice(free, number, None))


def unbound_names(tree: ast.Module) -> set[str]:
    """Returns the names that a program reads and nothing binds."""
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return read - bound_names(tree) - BUILTINS - GLOBALS - PRIMITIVES.keys()


def passage_loop(site: Site) -> bool:
    """Whether the node is a `for` loop over passages with one loop variable."""
    node = site.node
    if not (isinstance(node, ast.For) and isinstance(node.target, ast.Name)):
        return False
    if called(node.iter) in PASSAGE_LISTS or contains(node.iter, ("bm25", "dense", "fuse", "rerank", "links")):
        return True
    if contains(node.iter, ("range", "enumerate", "zip")):
        return False
    name = node.target.id
    return any(_prints(inner, name) or _reads_passage(inner, name) for inner in node.body)


def _prints(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and called(inner) == "print"
        and any(isinstance(a, ast.Name) and a.id == name for a in inner.args)
        for inner in ast.walk(node)
    )


def _reads_passage(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == name
        and inner.attr in ("id", "text", "score", "rank")
        for inner in ast.walk(node)
    )


def prints(site: Site, name: str) -> bool:
    """Whether the statement or one inside it prints the named value."""
    return _prints(site.node, name)
