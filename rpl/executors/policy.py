"""Compiles a checked program: the second gate behind `rpl.programs.grammar`, and the place where guards are woven in.

RestrictedPython rewrites attribute access, subscripts, iteration and unpacking to guard calls. The policy here adds:
arithmetic and f-strings go through guards that bound their results, `while` bodies and function bodies burn fuel,
`print` is an ordinary name, and whatever the program language does not have is refused again.
"""

# ruff: noqa: N802 - visitors are named after the classes of syntax nodes

from __future__ import annotations

import ast
import re
import warnings
from functools import lru_cache
from types import CodeType
from typing import Any

from RestrictedPython import RestrictingNodeTransformer, compile_restricted_exec
from RestrictedPython.transformer import IOPERATOR_TO_STR, copy_locations

from rpl.errors import BudgetExceeded, ForbiddenConstruct, ProgramSyntaxError
from rpl.programs.grammar import Program, parse
from rpl.programs.printing import unparse

FILENAME = "<program>"
"""The file name in tracebacks, by which lines of the program are told from lines of the sandbox."""

_CONSTANTS = (str, int, float, bool, type(None))
_REFUSED = """
    Import ImportFrom ClassDef With Try TryStar Raise Assert Global Nonlocal Yield YieldFrom Await Delete NamedExpr
    AnnAssign Match AsyncFor AsyncWith AsyncFunctionDef TemplateStr Interpolation Pow MatMult LShift RShift Invert
"""
_REFUSED_NODES = frozenset(_REFUSED.split())
_ERROR = re.compile(r"Line (\d+): (.*)", re.DOTALL)


class ProgramPolicy(RestrictingNodeTransformer):  # type: ignore[misc, unused-ignore]
    """RestrictedPython's policy, narrowed to the program language and with bounded arithmetic."""

    def visit(self, node: ast.AST) -> Any:
        """Refuses what the language does not have, whatever the grammar said; passes the rest on."""
        if type(node).__name__ in _REFUSED_NODES:
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
        node = self.node_contents_visit(node)
        node.body.insert(0, _tick(node))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Burns fuel on every call of a program's function; no print collector is injected."""
        self.check_name(node, node.name)
        self.check_function_argument_names(node)
        if node.decorator_list:
            self.error(node, "Decorators are not allowed.")
        node = self.node_contents_visit(node)
        node.body.insert(0, _tick(node))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """Burns fuel on every call of a lambda: `_tick_() or body`, where the tick is always `None`."""
        self.check_function_argument_names(node)
        node = self.node_contents_visit(node)
        body = ast.BoolOp(ast.Or(), [_call(node.body, "_tick_"), node.body])
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


def _tick(at: ast.stmt) -> ast.Expr:
    tick = ast.Expr(_call(at, "_tick_"))
    copy_locations(tick, at)
    return tick


@lru_cache(maxsize=1_024)  # groups share programs, and searches run one on many questions; code objects hold no state
def compile_program(source: str, max_chars: int) -> CodeType:
    """Checks and compiles a program.

    Line numbers are those of `source` as it was written: the tree that is compiled comes from `source` itself where its
    canonical text is the one that the grammar checked, and from that text otherwise.

    Raises:
        BudgetExceeded: `budget_source`: the text is longer than `max_chars`.
        ProgramSyntaxError: It is not Python.
        ForbiddenConstruct: It is outside the program language.
    """
    if len(source) > max_chars:
        raise BudgetExceeded("source", f"the program has {len(source):,} characters; the limit is {max_chars:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escapes and comparisons are not worth a warning
            tree = _located(source, parse(source))
            result = compile_restricted_exec(tree, FILENAME, policy=ProgramPolicy)
    except SyntaxError as error:  # found by the compiler only, such as `break` outside a loop
        raise ProgramSyntaxError(error.msg, error.lineno) from None
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError("the program is nested too deeply") from None
    except ValueError as error:  # null bytes, lone surrogates
        raise ProgramSyntaxError(str(error)) from None
    if result.code is None:
        match = _ERROR.match(result.errors[0])
        message, line = (match[2], int(match[1])) if match else (result.errors[0], None)
        raise ForbiddenConstruct(message, line)
    return result.code


def _located(source: str, program: Program) -> ast.Module:
    if source == program.source:
        return program.tree
    try:
        written = ast.parse(source)
    except (SyntaxError, ValueError):
        return program.tree
    return written if unparse(written) == program.source else program.tree
