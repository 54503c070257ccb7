"""Turns a checked program into the text that the Monty interpreter runs, and its places back into lines of the program.

The text differs from the program in four ways: loops, comprehensions and functions burn fuel (`_tick_`), primitives and
`print` go to the host through `_out_` and `_in_`, names that the language does not have stay undefined although Monty
knows them, and the value of the whole is the fuel it burnt. `monty_prelude` defines these names; programs cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from rpl.executors.runtime.reading import reading
from rpl.programs.checks import bound_names
from rpl.programs.grammar import BUILTINS, GLOBALS, PRIMITIVES, parse_tree
from rpl.programs.printing import unparse

HOST_CALLS = frozenset(PRIMITIVES) | {"print"}
"""Functions of the language that the host serves."""

N = TypeVar("N", bound=ast.AST)

_LANGUAGE = BUILTINS | GLOBALS | frozenset(PRIMITIVES)


@dataclass(frozen=True)
class MontySource:
    """What is fed to Monty.

    Attributes:
        text: The instrumented program.
        places: Start and end (line from 1, byte column) of each syntax node in `text`, and the node's line in the
            program; outer nodes come before inner ones.
    """

    text: str
    places: tuple[tuple[tuple[int, int], tuple[int, int], int], ...]

    def line(self, row: int, column: int) -> int | None:
        """Returns the line of the program that a place in `text` comes from.

        Args:
            row: Line in `text`, from 1.
            column: Bytes before the place on that line.
        """
        found = None
        for start, end, line in self.places:
            if start <= (row, column) <= end:
                found = line
        return found

    def line_at(self, offset: int) -> int | None:
        """Returns the line of the program that a byte of `text` comes from."""
        before = self.text.encode()[:offset]
        start = before.rfind(b"\n") + 1
        return self.line(before.count(b"\n") + 1, len(before) - start)


@lru_cache(maxsize=1_024)
def instrument(source: str, max_chars: int) -> MontySource:
    """Checks a program and prepares it for Monty.

    Raises:
        BudgetExceeded: `budget_source`: the text is longer than `max_chars`.
        ProgramSyntaxError: It is not Python.
        ForbiddenConstruct: It is outside the program language.
    """
    with reading(source, max_chars):
        _, tree = parse_tree(source)
        instrumented = ast.fix_missing_locations(_Instrumenter(bound_names(tree)).visit(tree))
        text = unparse(instrumented)
        places = tuple(_places(instrumented, ast.parse(text)))
    return MontySource(text, places)


def _places(
    instrumented: ast.AST, printed: ast.AST, line: int = 1
) -> Iterator[tuple[tuple[int, int], tuple[int, int], int]]:
    line = getattr(instrumented, "lineno", line)
    if isinstance(printed, ast.stmt | ast.expr):
        assert printed.end_lineno is not None
        assert printed.end_col_offset is not None
        yield (printed.lineno, printed.col_offset), (printed.end_lineno, printed.end_col_offset), line
    if isinstance(printed, ast.JoinedStr):
        return  # positions inside f-strings differ between Python versions
    children = ast.iter_child_nodes(instrumented), ast.iter_child_nodes(printed)
    for inner, inner_printed in zip(*children, strict=True):
        yield from _places(inner, inner_printed, line)


class _Instrumenter(ast.NodeTransformer):
    def __init__(self, bound: set[str]) -> None:
        self.known = bound | _LANGUAGE

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self.generic_visit(node)
        node.body.append(_at(node.body[-1], ast.Expr(ast.Name("_burnt_", ast.Load()))))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id not in self.known:
            return _call(node, "_undefined_", ast.Constant(node.id))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in HOST_CALLS):
            return node
        # Called by name, as nearly always, it suspends at this very place, and so its line is known.
        name = node.func.id
        values = _at(node, ast.List(node.args, ast.Load()))
        keys: list[ast.expr | None] = [_at(node, ast.Constant(keyword.arg)) for keyword in node.keywords]
        named = _at(node, ast.Dict(keys, [keyword.value for keyword in node.keywords]))
        node.args = [_at(node, ast.Starred(_call(node, "_out_", values, named), ast.Load()))]
        node.keywords = []
        node.func = _at(node.func, ast.Name(f"_{name}_", ast.Load()))
        return node if name == "print" else _call(node, "_in_", node)

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        # Monty tells no place for a name that is unbound here; it does where the name stands alone.
        read = _at(node, ast.Expr(_at(node.target, ast.Name(node.target.id, ast.Load()))))
        return [read, node]

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._ticking(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._ticking(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._ticking(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = _at(node.body, ast.BoolOp(ast.And(), [_call(node.body, "_tick_"), node.body]))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs.insert(0, _call(node.iter, "_tick_"))
        return node

    def _ticking(self, node: ast.For | ast.While | ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, _at(node, ast.Expr(_call(node, "_tick_"))))
        return node


def _call(at: ast.AST, name: str, *args: ast.expr) -> ast.Call:
    return _at(at, ast.Call(_at(at, ast.Name(name, ast.Load())), list(args), []))


def _at(at: ast.AST, node: N) -> N:
    return ast.copy_location(node, at)
