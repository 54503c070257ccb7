"""The tables of the program language: its nodes, names, attributes and literal limits."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rpl.programs.primitives import PRIMITIVES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_SOURCE_CHARS = 20_000
"""Longest text that is parsed at all; executors set a tighter limit of their own."""
MAX_DEPTH = 40
"""Deepest nesting of syntax nodes."""
MAX_LOOP_DEPTH = 8
"""Deepest nesting of `for` and `while` statements."""
MAX_STRING_CHARS = 2_000
"""Longest string literal."""
MAX_INT = 10**12
"""Largest integer literal."""

BUILTINS: frozenset[str] = _words(
    "len range enumerate zip sorted reversed min max sum any all abs round int float str bool list dict set tuple print"
)
"""Names of Python's builtins that a program may use."""

GLOBALS: frozenset[str] = frozenset({"question"})
"""Names that are bound to values when a program starts."""

ATTRIBUTES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "str": _words(
            "lower upper strip lstrip rstrip split rsplit splitlines join replace startswith endswith find rfind "
            "index count title capitalize casefold isdigit isalpha isalnum isnumeric isupper islower isspace "
            "removeprefix removesuffix partition rpartition"
        ),
        "list": _words("append extend insert pop remove clear index count sort reverse copy"),
        "dict": _words("get keys values items pop setdefault update clear copy"),
        "set": _words(
            "add discard remove clear union intersection difference symmetric_difference update issubset "
            "issuperset isdisjoint copy"
        ),
        "Passage": _words("id title text score rank"),
    }
)
"""Exact type of a value -> the attributes that a program may read from it. None can be assigned to."""

ALLOWED_NODES: frozenset[str] = _words(
    "Module Assign AugAssign Expr If For While Break Continue Pass FunctionDef Return "
    "Constant JoinedStr FormattedValue Name Attribute Subscript Slice Call keyword Starred "
    "List Tuple Dict Set ListComp SetComp DictComp GeneratorExp comprehension Lambda arguments arg IfExp "
    "BoolOp And Or BinOp Add Sub Mult Div FloorDiv Mod BitOr BitAnd BitXor UnaryOp Not USub UAdd "
    "Compare Eq NotEq Lt LtE Gt GtE In NotIn Is IsNot Load Store"
)
"""Names of the `ast` classes of the language."""

GENERATOR_READERS: frozenset[str] = _words(
    "any all sum min max sorted list tuple set dict enumerate zip "
    "join extend update union intersection difference symmetric_difference issubset issuperset isdisjoint"
) | {name for name, primitive in PRIMITIVES.items() if primitive.named("passages", "lists")}
"""Functions and methods that read a generator to its end or hand it on to a loop, and never keep it."""
