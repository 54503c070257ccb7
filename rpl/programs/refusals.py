"""What the language refuses, in words: the hints of error messages.

Nothing is allowed by being absent here; see `grammar.ALLOWED_NODES`. The tables only make messages useful.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_ASYNC = ("async code", "calls return their results directly")
_WITH = ("a with statement", "there is nothing to open or close; call the primitives directly")
_TRY = ("try", "test the value with if before it is used")
_TYPES = ("a type declaration", "leave it out")
_MATCH = ("a match statement", "use if and elif")
_BITS = ("bit arithmetic", "use + - * / // %")

REFUSED_NODES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Import": ("import", "the primitives are already bound"),
        "ImportFrom": ("import", "the primitives are already bound"),
        "ClassDef": ("a class", "use functions, lists and dicts"),
        "With": _WITH,
        "AsyncWith": _WITH,
        "withitem": _WITH,
        "Try": _TRY,
        "TryStar": _TRY,
        "ExceptHandler": _TRY,
        "Raise": ("raise", "print a message or stop with break"),
        "Assert": ("assert", "test with if"),
        "Yield": ("yield", "collect values in a list and return it"),
        "YieldFrom": ("yield", "collect values in a list and return it"),
        "Await": _ASYNC,
        "AsyncFor": _ASYNC,
        "AsyncFunctionDef": _ASYNC,
        "Global": ("global", "pass values as arguments and return them"),
        "Nonlocal": ("nonlocal", "pass values as arguments and return them"),
        "Delete": ("del", "assign a new value or use list.pop"),
        "AnnAssign": ("a type annotation", "leave it out"),
        "NamedExpr": ("assignment with :=", "assign on a line of its own"),
        "Match": _MATCH,
        "match_case": _MATCH,
        "MatchValue": _MATCH,
        "MatchSingleton": _MATCH,
        "MatchSequence": _MATCH,
        "MatchMapping": _MATCH,
        "MatchClass": _MATCH,
        "MatchStar": _MATCH,
        "MatchAs": _MATCH,
        "MatchOr": _MATCH,
        "Pow": ("**", "multiply instead"),
        "MatMult": ("the operator @", "use + - * / // %"),
        "LShift": _BITS,
        "RShift": _BITS,
        "Invert": _BITS,
        "Del": ("del", "assign a new value or use list.pop"),
        "alias": ("import", "the primitives are already bound"),
        "TypeAlias": _TYPES,
        "TypeVar": _TYPES,
        "TypeVarTuple": _TYPES,
        "ParamSpec": _TYPES,
        "TypeIgnore": _TYPES,
        "FunctionType": _TYPES,
        "Interactive": ("an interactive statement", "write a program"),
        "Expression": ("a bare expression", "write a program"),
        "TemplateStr": ("a t-string", "write an f-string"),
        "Interpolation": ("a t-string", "write an f-string"),
    }
)
"""Class name in `ast` -> (what it is called, what to do instead)."""

REFUSED_ARGUMENTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "posonlyargs": ("a positional-only parameter", "leave out the /"),
        "kwonlyargs": ("a keyword-only parameter", "leave out the *"),
        "vararg": ("a parameter with *", "pass a list"),
        "kwarg": ("a parameter with **", "pass a dict"),
    }
)
"""Field of `ast.arguments` that must be empty -> (what it is called, what to do instead)."""

_NO_REFLECTION = "values cannot be inspected"
_NO_CODE = "programs cannot run other code or touch the system"

REFUSED_BUILTINS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(["eval", "exec", "compile", "open", "input", "breakpoint", "help", "exit", "quit"], _NO_CODE),
        **dict.fromkeys(
            [
                "getattr",
                "setattr",
                "delattr",
                "hasattr",
                "globals",
                "locals",
                "vars",
                "dir",
                "type",
                "object",
                "super",
                "isinstance",
                "issubclass",
                "callable",
                "id",
                "hash",
                "property",
                "classmethod",
                "staticmethod",
            ],
            _NO_REFLECTION,
        ),
        "map": "write a list comprehension",
        "filter": "write a list comprehension with if",
        "iter": "loop with for",
        "next": "take the first item with [0]",
        "format": "write an f-string",
        "repr": "use str",
        "ascii": "use str",
        "frozenset": "use set",
        **dict.fromkeys(
            [
                "bytes",
                "bytearray",
                "memoryview",
                "complex",
                "chr",
                "ord",
                "bin",
                "hex",
                "oct",
                "pow",
                "divmod",
                "slice",
            ],
            "",
        ),
    }
)
"""Builtins of Python that are absent here -> what to do instead ("" lists those that are present)."""

MODULES: frozenset[str] = frozenset(
    {
        *("os", "sys", "re", "io", "gc", "json", "math", "time", "string", "random", "socket", "signal", "shutil"),
        *("builtins", "collections", "copy", "ctypes", "datetime", "functools", "heapq", "importlib", "inspect"),
        *("itertools", "operator", "pathlib", "pickle", "statistics", "subprocess", "tempfile", "textwrap"),
        *("threading", "traceback", "types", "typing", "urllib", "uuid", "requests", "np", "numpy", "pd", "pandas"),
    }
)
"""Names of modules that programs of other kinds use without further ado; none is bound here."""

MODULE_HINT = "there are no modules; use the built-in functions and the methods of texts, lists, dicts and sets"

_MAX_EXCERPT = 40
_SYNTAX_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\s*(```|~~~)"), "leave out the markdown fence; write the program alone"),
    (re.compile(r"^\s*</?(program|result|answer)\b"), "leave out the tags inside the program"),
    (re.compile(r"[\u2018\u2019\u201c\u201d]"), "use straight quotes, ' and \""),
    (re.compile(r"^\s*(>>>|\.\.\.)\s"), "leave out the prompt signs"),
    (re.compile(r"^\s*[$!%]\s*\w"), "programs run no shell commands"),
    (re.compile(r"&&|\|\||\b(else if|elsif)\b|\+\+\s*$"), "write `and`, `or`, `elif` and `x += 1`"),
    (re.compile(r"^\s*(let|const|var|function)\s+\w"), "write Python: x = 1, def f(a):"),
    (re.compile(r"^\s*[A-Z][a-z']+( [A-Za-z,']+){2,}[.:,]?\s*$"), "write Python only; put words behind # or in quotes"),
)


def syntax_message(source: str, error: SyntaxError) -> str:
    """Returns what is wrong with a text that is no Python, and what to write instead where that can be told.

    Args:
        source: The text.
        error: What Python said about it.
    """
    if "integer string conversion" in error.msg:
        return "invalid syntax: so large a number"
    lines = source.splitlines()
    number = error.lineno or 1
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    place = line[max(0, (error.offset or 1) - 1) :].strip()
    if error.msg != "invalid syntax":
        message = f"invalid syntax: {error.msg}"
    else:
        message = f"invalid syntax at `{place[:_MAX_EXCERPT]}`" if place else error.msg
    hint = next((hint for pattern, hint in _SYNTAX_HINTS if pattern.search(line)), "")
    return f"{message}; {hint}" if hint else message
