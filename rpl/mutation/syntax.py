"""What operators ask about syntax trees, and the small trees that they put into programs. Changes no tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator

from rpl.mutation.sites import Site
from rpl.programs.checks import bound_names
from rpl.programs.primitives import PASSAGE_LISTS, PRIMITIVES, SEARCHES, SERVED
from rpl.programs.printing import unparse
from rpl.programs.tables import BUILTINS, GLOBALS

SOURCES = tuple(name for name in SERVED if not PRIMITIVES[name].named("passages"))
"""Primitives that fetch passages by a text or an id, and need no list of them."""
COUNTED = tuple(name for name in SERVED if PRIMITIVES[name].named("count"))
"""Primitives that fetch as many passages as they are asked for."""
QUERIED = tuple(name for name in PRIMITIVES if PRIMITIVES[name].named("query"))
"""Primitives that take a query."""
K_VALUES = (1, 2, 3, 5, 8, 10, 20)
"""The numbers of passages, and of rounds, that mutations choose from."""

_FRESH_NAMES = ("p", "q", "r", "s", "t", "u", "v", "w")


def called(node: object) -> str | None:
    """Returns the name of the primitive or builtin that a node calls, `None` for any other node."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return None


def called_names(tree: ast.AST) -> frozenset[str]:
    """Returns the names of all functions that are called by name."""
    return frozenset(name for node in ast.walk(tree) if (name := called(node)) is not None)


def contains(node: ast.AST, names: Iterable[str]) -> bool:
    """Whether a call of one of the named functions is in the node."""
    return not called_names(node).isdisjoint(names)


def unbound_names(tree: ast.Module) -> set[str]:
    """Returns the names that a program reads and nothing binds."""
    return _read_names(tree) - bound_names(tree) - BUILTINS - GLOBALS - PRIMITIVES.keys()


def _read_names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def fresh_names(tree: ast.AST) -> Iterator[str]:
    """Yields short names that the program neither binds nor reads."""
    taken = bound_names(tree) | _read_names(tree)
    return (name for name in (*_FRESH_NAMES, *(f"p{i}" for i in range(1, 1000))) if name not in taken)


def argument(call: ast.AST, name: str) -> ast.expr | None:
    """Returns an argument of a call of a primitive, however it was passed."""
    assert isinstance(call, ast.Call)
    primitive = called(call)
    if primitive is None or primitive not in PRIMITIVES:
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    parameters = PRIMITIVES[primitive].signature.parameters
    position = list(parameters).index(name)
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if takes_any_number or position >= len(call.args) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    return call.args[position]


def with_argument(call: ast.AST, name: str, value: ast.expr) -> ast.Call:
    """Returns a call with another value for an argument, passed as it was, else by name."""
    assert isinstance(call, ast.Call)
    old = argument(call, name)
    if any(arg is old for arg in call.args):
        return ast.Call(call.func, [value if arg is old else arg for arg in call.args], list(call.keywords))
    others = [keyword for keyword in call.keywords if keyword.arg != name]
    return ast.Call(call.func, list(call.args), [*others, ast.keyword(arg=name, value=value)])


def constant_k(call: ast.AST) -> int | None:
    """Returns the `k` of a call if it is a literal or the default, else `None`."""
    value = argument(call, "k")
    if value is None:
        primitive = called(call)
        default = PRIMITIVES[primitive].signature.parameters["k"].default if primitive is not None else None
        return default if isinstance(default, int) else None
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    return None


def name(text: str) -> ast.Name:
    """Returns a name that is read."""
    return ast.Name(id=text, ctx=ast.Load())


def calling(function: str, *args: ast.expr, k: ast.expr | None = None) -> ast.Call:
    """Returns a call, `k` passed by name."""
    return ast.Call(name(function), list(args), [] if k is None else [ast.keyword(arg="k", value=k)])


def expression(text: str) -> ast.expr:
    """Parses an expression."""
    return ast.parse(text, mode="eval").body


def statements(text: str) -> list[ast.stmt]:
    """Parses statements."""
    return ast.parse(text).body


def with_body(loop: ast.For, body: list[ast.stmt]) -> ast.For:
    """Returns a loop with another body."""
    edited = copy.copy(loop)
    edited.body = body
    return edited


def show(node: ast.AST | None) -> str:
    """Prints the head of a node on one line, for edit texts."""
    line = "" if node is None else unparse(node).splitlines()[0]
    return line if len(line) <= 80 else line[:77] + "..."


def is_search(site: Site) -> bool:
    """Whether the node is a call of a search with a query."""
    return called(site.node) in SEARCHES and argument(site.node, "query") is not None


def is_searching_loop(site: Site) -> bool:
    """Whether the node is a `for` statement straight over a search, with one loop variable."""
    node = site.node
    if not (site.is_statement and isinstance(node, ast.For) and isinstance(node.target, ast.Name)):
        return False
    return called(node.iter) in SEARCHES and argument(node.iter, "query") is not None


def printed(site: Site) -> list[ast.expr]:
    """Returns the arguments of a statement that prints; none for any other node."""
    node = site.node
    if not (site.is_statement and isinstance(node, ast.Expr) and called(node.value) == "print"):
        return []
    assert isinstance(node.value, ast.Call)
    return node.value.args


def prints(node: ast.AST, variable: str) -> bool:
    """Whether the node or one inside it prints the named value."""
    return any(
        isinstance(inner, ast.Call)
        and called(inner) == "print"
        and any(isinstance(a, ast.Name) and a.id == variable for a in inner.args)
        for inner in ast.walk(node)
    )


def is_passage_loop(site: Site) -> bool:
    """Whether the node is a `for` loop over passages with one loop variable."""
    return loops_over_passages(site.node)


def loops_over_passages(node: ast.AST) -> bool:
    """As `is_passage_loop`, of a node."""
    if not (isinstance(node, ast.For) and isinstance(node.target, ast.Name)):
        return False
    if contains(node.iter, PASSAGE_LISTS):
        return True
    if contains(node.iter, ("range", "enumerate", "zip")):
        return False
    variable = node.target.id
    return any(prints(inner, variable) or _reads_passage(inner, variable) for inner in node.body)


def _reads_passage(node: ast.AST, variable: str) -> bool:
    return any(
        isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == variable
        and inner.attr in ("id", "text", "score", "rank")
        for inner in ast.walk(node)
    )
