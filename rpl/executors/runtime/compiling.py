"""Compiles a checked program: the second gate behind `rpl.programs.grammar`, and the place where guards are woven in.

RestrictedPython rewrites attribute access, subscripts, iteration and unpacking to guard calls. The policy here adds:
arithmetic, comparisons, keys and f-strings go through guards that bound their cost and results, `while` bodies and
function bodies burn fuel, `print` is an ordinary name, and what the program language does not have is refused again.
"""

# ruff: noqa: N802 - visitors are named after the classes of syntax nodes

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from RestrictedPython import RestrictingNodeTransformer, compile_restricted_exec
from RestrictedPython.transformer import IOPERATOR_TO_STR, copy_locations

from rpl.core.errors import ForbiddenConstruct, ProgramSyntaxError
from rpl.executors.runtime.fuel import GUARDED_NODES, NODES_PER_UNIT
from rpl.executors.runtime.values import source_error
from rpl.programs.grammar import parse_tree

FILENAME = "<program>"
"""The file name in tracebacks, by which lines of the program are told from lines of the sandbox."""

_CONSTANTS = (str, int, float, bool, type(None))
_COMPILED_WORDS = """
    Module Assign AugAssign Expr If For While Break Continue Pass FunctionDef Return
    Constant JoinedStr FormattedValue Name Attribute Subscript Slice Call keyword Starred
    List Tuple Dict Set ListComp SetComp DictComp GeneratorExp comprehension Lambda arguments arg IfExp
    BoolOp And Or BinOp Add Sub Mult Div FloorDiv Mod BitOr BitAnd BitXor UnaryOp Not USub UAdd
    Compare Eq NotEq Lt LtE Gt GtE In NotIn Is IsNot Load Store
"""
_COMPILED = frozenset(_COMPILED_WORDS.split())
"""The nodes that this gate knows how to guard: a list of its own, so that a slip in the grammar's opens nothing."""

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_GUARDED = (ast.BinOp, ast.Compare, ast.Attribute, ast.Subscript, ast.FormattedValue, ast.Set, ast.Dict, ast.Lambda)
_ERROR = re.compile(r"Line (\d+): (.*)", re.DOTALL)


class ProgramPolicy(RestrictingNodeTransformer):  # type: ignore[misc, unused-ignore]
    """RestrictedPython's policy, narrowed to the program language and with bounded arithmetic."""

    def visit(self, node: ast.AST) -> Any:
        """Refuses what the language does not have, whatever the grammar said; passes the rest on."""
        if type(node).__name__ not in _COMPILED:
            self.not_allowed(node)
            return node
        return super().visit(node)

    def check_name(self, node: Any, name: str | None, allow_magic_methods: bool = False) -> None:
        """Refuses reserved names; `print` and `printed` are ordinary here because we have no print collector."""
        if name not in ("print", "printed"):
            super().check_name(node, name, allow_magic_methods=False)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Passes names through, without RestrictedPython's special `print`."""
        self.check_name(node, node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Lets texts, numbers, truth values and `None` pass; refuses bytes, complex numbers and `...`."""
        if not isinstance(node.value, _CONSTANTS):
            self.error(node, f"{type(node.value).__name__} literals are not allowed.")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Guards reading of attributes; refuses to write them."""
        if not isinstance(node.ctx, ast.Load):
            self.error(node, "Attributes cannot be assigned.")
            return node
        return super().visit_Attribute(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Turns `a + b` into `_binop_('+', a, b)`."""
        node = self.node_contents_visit(node)
        return _call(node, "_binop_", ast.Constant(_operator(node.op)), node.left, node.right)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Turns `a < b` into `_compare_(a, '<', b)`, and what follows in a chain into functions that compute it."""
        node = self.node_contents_visit(node)
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        if all(_is_cheap(left, op, right) for left, op, right in pairs):
            return node
        args = [node.left]
        for number, (op, value) in enumerate(zip(node.ops, node.comparators, strict=True)):
            args += [ast.Constant(_COMPARISONS[type(op)]), value if number == 0 else _thunk(value)]
        return _call(node, "_compare_", *args)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Guards the keys of a display."""
        node = self.node_contents_visit(node)
        node.keys = [key and _key(key) for key in node.keys]
        return node

    def visit_Set(self, node: ast.Set) -> ast.AST:
        """Guards the items of a display."""
        node = self.node_contents_visit(node)
        node.elts = [_key(item) for item in node.elts]
        return node

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        """Makes every step pay for what it runs."""
        return self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        """Makes every step pay for what it runs."""
        return self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        """Guards the items of a comprehension."""
        visited = self._comprehension(node)
        visited.elt = _key(visited.elt)
        return visited

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        """Guards the keys of a comprehension."""
        visited = self._comprehension(node)
        visited.key = _key(visited.key)
        return visited

    def _comprehension(self, node: Any) -> Any:
        cost = _cost(node)
        visited = getattr(super(), f"visit_{type(node).__name__}")(node)
        for part in visited.generators:
            _charge(part.iter, cost)
        return visited

    def visit_For(self, node: ast.For) -> Any:
        """Makes every turn of a loop pay for what it runs."""
        cost = _cost(*node.body)
        visited: Any = super().visit_For(node)
        _charge(visited.iter, cost)
        return visited

    def visit_List(self, node: ast.List) -> ast.AST:
        """Makes `[a, b] = …` what `a, b = …` is, because only that is guarded."""
        node = self.node_contents_visit(node)
        if isinstance(node.ctx, ast.Store):
            return ast.copy_location(ast.Tuple(node.elts, node.ctx), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Turns `f"a{b}"` into `_fstring_('a', b)`."""
        parts: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                if value.format_spec is not None or value.conversion != -1:
                    self.error(node, "Formats and conversions are not allowed in f-strings.")
                    return node
                value = value.value
            parts.append(self.visit(value))
        return _call(node, "_fstring_", *parts)

    def visit_Starred(self, node: ast.Starred) -> Any:
        """Turns `*values` into `*_spread_(values)`, in displays and in calls."""
        node = self.node_contents_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = _call(node.value, "_spread_", node.value)
        return node

    def visit_While(self, node: ast.While) -> Any:
        """Burns fuel on every turn of a loop."""
        cost = _cost(node.test, *node.body)
        node = self.node_contents_visit(node)
        node.body.insert(0, _statement(node, "_tick_", cost))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Burns fuel on every call of a program's function; no print collector is injected."""
        self.check_name(node, node.name)
        self.check_function_argument_names(node)
        if node.decorator_list:
            self.error(node, "Decorators are not allowed.")
        cost = _cost(*node.body)
        node = self.node_contents_visit(node)
        node.body.insert(0, _statement(node, "_enter_", cost))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """Burns fuel on every call of a lambda: `_enter_() or body`, where the former is always `None`."""
        self.check_function_argument_names(node)
        cost = _cost(node.body)
        node = self.node_contents_visit(node)
        body = ast.BoolOp(ast.Or(), [_call(node.body, "_enter_", ast.Constant(cost)), node.body])
        copy_locations(body, node.body)
        node.body = body
        return node

    def visit_Module(self, node: ast.Module) -> Any:
        """Visits the program; no print collector is injected."""
        return self.node_contents_visit(node)


def _operator(op: ast.operator) -> str:
    return str(IOPERATOR_TO_STR[type(op)])[:-1]


def _call(at: Any, name: str, *args: ast.expr) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), list(args), [])
    copy_locations(call, at)
    return call


def _key(node: ast.expr) -> ast.expr:
    return node if isinstance(node, ast.Constant | ast.Starred) else _call(node, "_key_", node)


def _thunk(node: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.copy_location(ast.Lambda(nothing, node), node)


def _is_cheap(left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
    """Whether Python itself may compare: identities, and comparisons with a literal, which is small."""
    if isinstance(op, ast.Is | ast.IsNot):
        return True
    if isinstance(op, ast.In | ast.NotIn):
        return isinstance(right, ast.Constant) or (
            isinstance(right, ast.List | ast.Tuple) and all(isinstance(item, ast.Constant) for item in right.elts)
        )
    return isinstance(left, ast.Constant) or isinstance(right, ast.Constant)


def _cost(*nodes: ast.AST) -> int:
    inner = (inner for node in nodes for inner in ast.walk(node))
    return 1 + sum(GUARDED_NODES if isinstance(node, _GUARDED) else 1 for node in inner) // NODES_PER_UNIT


def _charge(iteration: ast.Call, cost: int) -> None:
    """Makes the guard of an iteration burn more than one unit a step."""
    if cost > 1:
        iteration.args.append(ast.copy_location(ast.Constant(cost), iteration))


def _statement(at: ast.stmt, guard: str, cost: int) -> ast.Expr:
    statement = ast.Expr(_call(at, guard, ast.Constant(cost)))
    copy_locations(statement, at)
    return statement


@dataclass(frozen=True)
class Compiled:
    """A program, ready to run."""

    code: CodeType
    """Its code. The line number of an instruction is the number of a syntax node, counted from 1."""
    lines: tuple[int, ...]
    """The line in the text as it was written, for each of those nodes."""


@lru_cache(maxsize=128)  # groups share programs, and searches run one on many questions; code objects hold no state
def compile_program(source: str, max_chars: int) -> Compiled:
    """Checks and compiles a program.

    The code is made from the canonical text, and texts that share it share the code; only the line numbers are those
    of `source` as it was written. The last programs are kept: at some tens of KiB each, a small part of the memory that
    a program may use.

    Raises:
        BudgetExceeded: `budget_source`: the text is longer than `max_chars`.
        ProgramSyntaxError: It is not Python.
        ForbiddenConstruct: It is outside the program language.
    """
    if len(source) > max_chars:
        raise source_error(len(source), max_chars)
    try:
        program, tree = parse_tree(source)
        lines = tuple(node.lineno for node in _located(tree))
        code = _compile(program.source)
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError("the program is nested too deeply") from None
    except _RefusedNode as error:
        line = None if error.node is None else lines[error.node - 1]
        raise (ProgramSyntaxError if error.syntax else ForbiddenConstruct)(error.message, line) from None
    return Compiled(code, lines)


class _RefusedNode(Exception):  # noqa: N818 - the name says what happened
    def __init__(self, message: str, node: int | None, syntax: bool) -> None:
        super().__init__(message)
        self.message, self.node, self.syntax = message, node, syntax


@lru_cache(maxsize=128)
def _compile(canonical: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubtful comparisons are not worth a warning
        tree = ast.parse(canonical)
        for number, node in enumerate(_located(tree), start=1):
            node.lineno = node.end_lineno = number
            node.col_offset = node.end_col_offset = 0
        try:
            result = compile_restricted_exec(tree, FILENAME, policy=ProgramPolicy)
        except SyntaxError as error:  # found by the compiler only
            raise _RefusedNode(error.msg, error.lineno, syntax=True) from None
    if result.code is None:
        match = _ERROR.match(result.errors[0])
        raise _RefusedNode(match[2] if match else result.errors[0], int(match[1]) if match else None, syntax=False)
    return result.code


def _located(tree: ast.Module) -> Iterator[Any]:
    """Yields the nodes that have a line, in an order that only the structure determines."""
    return (node for node in ast.walk(tree) if hasattr(node, "lineno"))
