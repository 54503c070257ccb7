"""The verdict on every syntax node that Python has, from 3.11 to 3.14, each with a program that holds it.

A node that a new Python adds fails a test here until it stands in the table.
"""

from __future__ import annotations

import ast
import sys
import warnings

import pytest

from rpl.core.errors import ForbiddenConstruct, ProgramError, ProgramSyntaxError
from rpl.programs.checks import Checker
from rpl.programs.grammar import ALLOWED_NODES, parse
from rpl.programs.refusals import REFUSED_NODES

ALLOWED = {
    "Module": "x = 1",
    "Assign": "x = y = 1",
    "AugAssign": "x += 1",
    "Expr": "bm25('a')",
    "If": "if x:\n    pass\nelif y:\n    pass",
    "For": "for x in y:\n    pass\nelse:\n    pass",
    "While": "while x:\n    pass",
    "Break": "for x in y:\n    break",
    "Continue": "for x in y:\n    continue",
    "Pass": "pass",
    "FunctionDef": "def f(a, b=1):\n    return a",
    "Return": "def f():\n    return 1",
    "Constant": "x = ['a', 1, 1.5, True, None]",
    "JoinedStr": "f'a{x}'",
    "FormattedValue": "f'a{x}'",
    "Name": "x",
    "Attribute": "x.title",
    "Subscript": "x[0]",
    "Slice": "x[1:2:3]",
    "Call": "print(x)",
    "keyword": "bm25(query='a')",
    "Starred": "print(*x)",
    "List": "[a, b] = [1, 2]",
    "Tuple": "a, b = 1, 2",
    "Dict": "{'a': 1}",
    "Set": "{1}",
    "ListComp": "[x for x in y if x]",
    "SetComp": "{x for x in y}",
    "DictComp": "{x: 1 for x in y}",
    "GeneratorExp": "any(x for x in y)",
    "comprehension": "[x for x in y for z in x]",
    "Lambda": "lambda a, b=1: a",
    "arguments": "def f(a, b=1):\n    pass",
    "arg": "def f(a):\n    pass",
    "IfExp": "1 if x else 2",
    "BoolOp": "x and y or z",
    "And": "x and y",
    "Or": "x or y",
    "BinOp": "x + y",
    "Add": "x + y",
    "Sub": "x - y",
    "Mult": "x * y",
    "Div": "x / y",
    "FloorDiv": "x // y",
    "Mod": "x % y",
    "BitOr": "x | y",
    "BitAnd": "x & y",
    "BitXor": "x ^ y",
    "UnaryOp": "not x",
    "Not": "not x",
    "USub": "-x",
    "UAdd": "+x",
    "Compare": "x < y <= z",
    "Eq": "x == y",
    "NotEq": "x != y",
    "Lt": "x < y",
    "LtE": "x <= y",
    "Gt": "x > y",
    "GtE": "x >= y",
    "In": "x in y",
    "NotIn": "x not in y",
    "Is": "x is None",
    "IsNot": "x is not None",
    "Load": "x",
    "Store": "x = 1",
}

REFUSED = {
    "Import": "import os",
    "ImportFrom": "from os import path",
    "alias": "import os as o",
    "ClassDef": "class A:\n    pass",
    "With": "with x as y:\n    pass",
    "withitem": "with x:\n    pass",
    "AsyncWith": "async def f():\n    async with x:\n        pass",
    "AsyncFor": "async def f():\n    async for x in y:\n        pass",
    "AsyncFunctionDef": "async def f():\n    pass",
    "Await": "async def f():\n    await x",
    "Try": "try:\n    pass\nfinally:\n    pass",
    "TryStar": "try:\n    pass\nexcept* x:\n    pass",
    "ExceptHandler": "try:\n    pass\nexcept x as y:\n    pass",
    "Raise": "raise x",
    "Assert": "assert x",
    "Yield": "def f():\n    yield 1",
    "YieldFrom": "def f():\n    yield from x",
    "Global": "def f():\n    global x",
    "Nonlocal": "def f():\n    x = 1\n    def g():\n        nonlocal x",
    "Delete": "del x[0]",
    "Del": "del x",
    "AnnAssign": "x: int = 1",
    "NamedExpr": "(x := 1)",
    "Match": "match x:\n    case 1:\n        pass",
    "match_case": "match x:\n    case 1:\n        pass",
    "MatchValue": "match x:\n    case 1:\n        pass",
    "MatchSingleton": "match x:\n    case None:\n        pass",
    "MatchSequence": "match x:\n    case [a, b]:\n        pass",
    "MatchMapping": "match x:\n    case {'a': b}:\n        pass",
    "MatchClass": "match x:\n    case str(a):\n        pass",
    "MatchStar": "match x:\n    case [*a]:\n        pass",
    "MatchAs": "match x:\n    case a:\n        pass",
    "MatchOr": "match x:\n    case 1 | 2:\n        pass",
    "Pow": "x ** 2",
    "MatMult": "x @ y",
    "LShift": "x << 2",
    "RShift": "x >> 2",
    "Invert": "~x",
}

LATER = {
    "TypeAlias": ((3, 12), "type x = y"),
    "TypeVar": ((3, 12), "def f[T](x):\n    pass"),
    "TypeVarTuple": ((3, 12), "def f[*T](x):\n    pass"),
    "ParamSpec": ((3, 12), "def f[**T](x):\n    pass"),
    "TemplateStr": ((3, 14), "t'{x}'"),
    "Interpolation": ((3, 14), "t'{x}'"),
}
"""Syntax of a Python later than 3.11: a syntax error in every Python, since programs are read as 3.11 reads them."""

NEVER_PARSED = {"Interactive", "Expression", "FunctionType", "TypeIgnore"}
"""Nodes that the parser does not make of a program."""

GONE = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice", "Suite", "AugLoad", "AugStore", "Param"}
"""Names that `ast` keeps, or kept until 3.14, for code written for older Pythons."""


def node_classes() -> set[str]:
    """The names of all concrete node classes of this Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = {value for value in vars(ast).values() if isinstance(value, type) and issubclass(value, ast.AST)}
        found |= {getattr(ast, name) for name in GONE if hasattr(ast, name)}
    bases = {"AST", "mod", "stmt", "expr", "expr_context", "boolop", "operator", "unaryop", "cmpop", "excepthandler"}
    return {kind.__name__ for kind in found} - bases - {"pattern", "type_ignore", "type_param", "slice"}


def holds(tree: ast.AST, kind: str) -> bool:
    return any(type(node).__name__ == kind for node in ast.walk(tree))


def test_every_node_of_this_python_has_a_verdict() -> None:
    known = ALLOWED.keys() | REFUSED.keys() | LATER.keys() | NEVER_PARSED
    assert node_classes() - GONE - known == set(), "review the new nodes: allow or refuse each"
    assert "IfExp" in node_classes()


def test_the_tables_of_the_language_are_those_of_this_file() -> None:
    assert ALLOWED.keys() == ALLOWED_NODES
    assert REFUSED.keys() | LATER.keys() | NEVER_PARSED == REFUSED_NODES.keys()


@pytest.mark.parametrize("kind", ALLOWED)
def test_an_allowed_node_parses(kind: str) -> None:
    source = ALLOWED[kind]
    assert holds(ast.parse(source), kind)
    assert holds(parse(source).tree, kind)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_node_is_refused_by_name(kind: str) -> None:
    source = REFUSED[kind]
    assert holds(ast.parse(source), kind)
    with pytest.raises(ForbiddenConstruct) as caught:
        parse(source)
    assert str(caught.value).split(" is not part of the program language; ")[1]
    assert caught.value.line is not None


@pytest.mark.parametrize("kind", LATER)
def test_later_syntax_is_a_syntax_error_on_every_python(kind: str) -> None:
    since, source = LATER[kind]
    if sys.version_info >= since:
        assert holds(ast.parse(source), kind)
    with pytest.raises(ProgramSyntaxError):
        parse(source)


@pytest.mark.parametrize("kind", sorted(REFUSED.keys() | NEVER_PARSED))
def test_the_checker_alone_refuses_the_node(kind: str) -> None:
    """Whatever put it into the tree."""
    node = ast.AST.__new__(getattr(ast, kind))  # its fields do not matter
    tree = ast.parse("x = 1")
    tree.body.append(node if isinstance(node, ast.stmt) else ast.Expr(node))
    with pytest.raises(ProgramError, match="not part of the program language"):
        Checker(tree).visit(tree)


def test_a_node_that_no_table_knows_is_refused() -> None:
    class Novelty(ast.expr):
        _fields = ()

    tree = ast.parse("x = 1")
    Checker(tree).visit(tree)
    tree.body[0].value = Novelty()  # type: ignore[attr-defined]
    with pytest.raises(ForbiddenConstruct, match="Novelty is not part of the program language"):
        Checker(tree).visit(tree)
