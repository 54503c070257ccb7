"""Walks a syntax tree and refuses what lies outside the program language."""

from __future__ import annotations

import ast
import math

from rpl.core.errors import ForbiddenConstruct, ProgramSyntaxError
from rpl.programs.primitives import PRIMITIVES
from rpl.programs.refusals import MODULE_HINT, MODULES, REFUSED_ARGUMENTS, REFUSED_BUILTINS, REFUSED_NODES
from rpl.programs.tables import (
    ALLOWED_NODES,
    ATTRIBUTES,
    BUILTINS,
    GENERATOR_READERS,
    MAX_DEPTH,
    MAX_INT,
    MAX_LOOP_DEPTH,
    MAX_STRING_CHARS,
)

_ANY_ATTRIBUTE = frozenset[str]().union(*ATTRIBUTES.values())
_NOT_COUNTED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


def bound_names(tree: ast.AST) -> set[str]:
    """Returns the names that the program itself binds anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


class Checker:
    """Walks a tree with its depth and line; raises at the first construct outside the language.

    Attributes:
        size: Nodes that were seen, operators not counted.
        has_fstrings: Whether an f-string was among them.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.bound = bound_names(tree)
        self.size = 0
        self.has_fstrings = False
        self.loops = 0  # loop statements around the node, within its function
        self.functions = 0

    def visit(self, node: ast.AST, depth: int = 0, line: int = 1) -> None:
        """Checks a node and all below it.

        Raises:
            ProgramSyntaxError: It is nested too deeply, or Python's compiler would refuse it.
            ForbiddenConstruct: It is outside the language.
        """
        kind = type(node).__name__
        line = getattr(node, "lineno", line)
        if depth > MAX_DEPTH:
            raise ProgramSyntaxError(f"the program is nested too deeply (at most {MAX_DEPTH} levels)", line)
        if kind not in ALLOWED_NODES:
            what, hint = REFUSED_NODES.get(kind, (kind, "it is not on the list of allowed constructs"))
            raise _forbidden(what, hint, line)
        if isinstance(node, _NOT_COUNTED):
            return
        self.size += 1
        check = getattr(self, f"_check_{kind.lower()}", None)
        if check is not None:
            check(node, line)
        outer = self.loops, self.functions
        is_loop, is_function = kind in ("For", "While"), kind == "FunctionDef"
        for name in node._fields:
            value = getattr(node, name, None)
            if is_loop:
                self.loops = outer[0] + (name == "body")
            elif is_function and name == "body":
                self.loops, self.functions = 0, outer[1] + 1
            for child in value if type(value) is list else (value,):
                if isinstance(child, ast.AST):
                    _check_place(node, name, child, line)
                    self.visit(child, depth + 1, line)
        self.loops, self.functions = outer

    def _check_for(self, node: ast.For | ast.While, line: int) -> None:
        if self.loops >= MAX_LOOP_DEPTH:
            raise ProgramSyntaxError(f"loops are nested too deeply (at most {MAX_LOOP_DEPTH} levels)", line)

    _check_while = _check_for

    def _check_break(self, node: ast.Break | ast.Continue, line: int) -> None:
        if not self.loops:
            raise ProgramSyntaxError(f"'{type(node).__name__.lower()}' stands outside a loop", line)

    _check_continue = _check_break

    def _check_return(self, node: ast.Return, line: int) -> None:
        if not self.functions:
            raise ProgramSyntaxError("'return' stands outside a function; print what should be seen", line)

    def _check_functiondef(self, node: ast.FunctionDef, line: int) -> None:
        if node.decorator_list:
            raise _forbidden("a decorator", "call the function on the value instead", node.decorator_list[0].lineno)
        if node.returns is not None:
            raise _forbidden("a type annotation", "leave it out", line)
        _check_binding(node.name, line)

    def _check_arguments(self, node: ast.arguments, line: int) -> None:
        for name, (what, hint) in REFUSED_ARGUMENTS.items():
            if getattr(node, name):
                raise _forbidden(what, hint, line)
        names = [arg.arg for arg in node.args]
        for name in names:
            if names.count(name) > 1:
                raise ProgramSyntaxError(f"parameter {name!r} stands twice in a function definition", line)

    def _check_arg(self, node: ast.arg, line: int) -> None:
        if node.annotation is not None:
            raise _forbidden("a type annotation", "leave it out", line)
        _check_binding(node.arg, line)

    def _check_augassign(self, node: ast.AugAssign, line: int) -> None:
        if not isinstance(node.target, ast.Name):
            raise _forbidden("augmented assignment to an item", "write d[k] = d[k] + 1", line)

    def _check_name(self, node: ast.Name, line: int) -> None:
        if isinstance(node.ctx, ast.Store):
            _check_binding(node.id, line)
            return
        _check_name(node.id, line)
        if node.id in REFUSED_BUILTINS and node.id not in self.bound:
            hint = REFUSED_BUILTINS[node.id] or f"the built-in functions are {', '.join(sorted(BUILTINS))}"
            raise _forbidden(f"the name {node.id!r}", hint, line)

    def _check_attribute(self, node: ast.Attribute, line: int) -> None:
        _check_name(node.attr, line)
        if isinstance(node.value, ast.Name) and node.value.id in MODULES and node.value.id not in self.bound:
            raise _forbidden(f"the module {node.value.id}", MODULE_HINT, line)
        if not isinstance(node.ctx, ast.Load):
            raise _forbidden("assignment to an attribute", "assign to a name", line)
        if node.attr not in _ANY_ATTRIBUTE:
            hint = "a Passage has .id .title .text .score .rank; str, list, dict and set have their common methods"
            if node.attr in ("format", "format_map"):
                hint = "write an f-string"
            raise _forbidden(f"the attribute .{node.attr}", hint, line)

    def _check_call(self, node: ast.Call, line: int) -> None:
        names = [keyword.arg for keyword in node.keywords]
        for name in names:
            if name is None:
                raise _forbidden("**-unpacking", "write the arguments out", line)
            _check_name(name, line)
            if names.count(name) > 1:
                raise ProgramSyntaxError(f"argument {name!r} is given twice", line)

    def _check_dict(self, node: ast.Dict, line: int) -> None:
        if None in node.keys:
            raise _forbidden("**-unpacking", "use d.update(other)", line)

    def _check_dictcomp(self, node: ast.DictComp, line: int) -> None:
        if getattr(node, "value", None) is None:  # `{**d for d in dicts}`, from Python 3.15 on
            raise _forbidden("**-unpacking", "use d.update(other) in a loop", line)

    def _check_comprehension(self, node: ast.comprehension, line: int) -> None:
        if node.is_async:
            raise _forbidden(*REFUSED_NODES["AsyncFor"], line)

    def _check_joinedstr(self, node: ast.JoinedStr, line: int) -> None:
        self.has_fstrings = True
        for value in node.values:  # positions inside f-strings differ between Python versions
            if isinstance(value, ast.FormattedValue):
                if value.format_spec is not None:
                    raise _forbidden("an f-string format such as {x:.2f}", "write {round(x, 2)}", line)
                if value.conversion != -1:
                    raise _forbidden("an f-string conversion such as {x!r} or {x=}", "write {x}", line)
            for inner in ast.walk(value):
                if hasattr(inner, "lineno"):
                    inner.lineno = line
                if isinstance(inner, ast.JoinedStr):
                    raise _forbidden("an f-string within an f-string", "assign the inner one to a name first", line)

    def _check_constant(self, node: ast.Constant, line: int) -> None:
        value = node.value
        node.kind = None  # u'...' is '...'
        if isinstance(value, str):
            if len(value) > MAX_STRING_CHARS:
                raise _forbidden("so long a string", f"at most {MAX_STRING_CHARS} characters are allowed", line)
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise _forbidden("half of a surrogate pair", "write the character itself", line)
        elif isinstance(value, int):
            if value > MAX_INT:
                raise _forbidden("so large a number", f"at most {MAX_INT} is allowed", line)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _forbidden("an infinite number", f"use at most {MAX_INT}", line)
        elif value is not None:
            what = "..." if value is Ellipsis else f"a {type(value).__name__} literal"
            raise _forbidden(what, "use strings and real numbers", line)


def _check_place(parent: ast.AST, slot: str, child: ast.AST, line: int) -> None:
    """Refuses constructs that are allowed in some places only."""
    line = getattr(child, "lineno", line)
    if isinstance(child, ast.GeneratorExp) and not (
        isinstance(parent, ast.Call) and slot == "args" and _reads_generator(parent, child)
    ):
        raise _forbidden("a generator here", "write a list comprehension in [ ]", line)
    if isinstance(child, ast.Starred):
        in_display = isinstance(parent, ast.List | ast.Tuple) and isinstance(parent.ctx, ast.Load)
        if not (in_display or isinstance(parent, ast.Call)):
            raise _forbidden("*-unpacking here", "it may stand in calls, list and tuple displays", line)
    if isinstance(parent, ast.Subscript) and isinstance(child, ast.Tuple):
        for item in child.elts:
            if isinstance(item, ast.Starred | ast.Slice):
                raise _forbidden("a subscript of several slices", "take one slice at a time", line)


def _reads_generator(call: ast.Call, argument: ast.GeneratorExp) -> bool:
    """Whether a call reads the generator that it is given. What keeps or returns it would let generators nest."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", None)
    if name in ("min", "max"):  # of several values they return one
        return len(call.args) == 1
    return name in GENERATOR_READERS and (name not in ("sum", "enumerate") or argument is call.args[0])


def _check_binding(name: str, line: int) -> None:
    _check_name(name, line)
    if name in PRIMITIVES or name in BUILTINS:
        raise _forbidden(f"assignment to {name!r}", "it names a function of the language; choose another name", line)


def _check_name(name: str, line: int) -> None:
    if name.startswith("_"):
        raise _forbidden(f"the name {name!r}", "names must not start with an underscore", line)
    if not name.isascii():
        raise _forbidden(f"the name {name!r}", "use ASCII letters and digits in names", line)


def _forbidden(what: str, hint: str, line: int) -> ForbiddenConstruct:
    return ForbiddenConstruct(f"{what} is not part of the program language; {hint}", line)
