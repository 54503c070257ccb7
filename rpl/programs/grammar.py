"""The program language: the single source of what parses, what is refused, and what the canonical text is.

A subset of Python. Everything is refused unless `tables` allows it, so syntax that a later Python adds stays refused.
The checks are static; budgets, exact types and arithmetic bounds are the executor's business.
"""

from __future__ import annotations

import ast
import threading
import unicodedata  # noqa: F401 - the parser imports it for names that are not ASCII, and a sealed worker cannot
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rpl.core.errors import ProgramError, ProgramSyntaxError
from rpl.programs.checks import Checker
from rpl.programs.primitives import PRIMITIVES
from rpl.programs.printing import check_fstrings, unparse
from rpl.programs.refusals import syntax_message
from rpl.programs.tables import (
    ALLOWED_NODES,
    ATTRIBUTES,
    BUILTINS,
    GLOBALS,
    MAX_DEPTH,
    MAX_INT,
    MAX_LOOP_DEPTH,
    MAX_SOURCE_CHARS,
    MAX_STRING_CHARS,
)

__all__ = [
    "ALLOWED_NODES",
    "ATTRIBUTES",
    "BUILTINS",
    "GLOBALS",
    "LANGUAGE_VERSION",
    "MAX_DEPTH",
    "MAX_INT",
    "MAX_LOOP_DEPTH",
    "MAX_SOURCE_CHARS",
    "MAX_STRING_CHARS",
    "PRIMITIVES",
    "Program",
    "canonical",
    "parse",
    "parse_tree",
]

LANGUAGE_VERSION = 1
"""Raised when programs that were valid before are refused or mean something else; policies carry it with them."""

_warnings_lock = threading.Lock()


@dataclass(frozen=True)
class Program:
    """A program of the language; two programs are equal when their canonical texts are. Made by `parse`."""

    source: str
    """Canonical text."""
    size: int = field(compare=False)
    """Number of syntax nodes, operators not counted."""

    @property
    def tree(self) -> ast.Module:
        """A fresh syntax tree, free to be edited."""
        return _read(self.source)


def parse(source: str) -> Program:
    r"""Checks a text against the language.

    Args:
        source: The text of a program.

    Returns:
        The program in canonical form.

    Raises:
        ProgramSyntaxError: The text is not Python, is empty, or is too long or nested too deeply to be read.
        ForbiddenConstruct: It is Python, but outside the language. The message says what to write instead.

    >>> parse('for p in bm25( "Lyon" , k=1) : print(p)').source
    "for p in bm25('Lyon', k=1):\n    print(p)"
    """
    return parse_tree(source)[0]


def parse_or_none(source: str) -> Program | None:
    """Returns the program of a text, `None` where the language refuses it."""
    try:
        return parse(source)
    except ProgramError:
        return None


def parse_tree(source: str) -> tuple[Program, ast.Module]:
    """Checks a text as `parse` does, and returns the program with the syntax tree of the text as it was written."""
    tree = _read(source)
    if not tree.body:
        raise ProgramSyntaxError("the program is empty", 1)
    checker = Checker(tree)
    checker.visit(tree)
    if checker.has_fstrings:
        with _quiet():
            check_fstrings(source)
    return Program(unparse(tree), checker.size), tree


def canonical(source: str) -> str:
    """Returns the one text that all spellings of a program share; raises what `parse` raises.

    >>> canonical("x=( 1,2 ) # a pair")
    'x = (1, 2)'
    """
    return parse(source).source


@contextmanager
def _quiet() -> Iterator[None]:
    """A doubtful escape is not worth a warning, and never an error."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read(source: str) -> ast.Module:
    if "\0" in source:
        raise ProgramSyntaxError("the text holds a null byte", source[: source.index("\0")].count("\n") + 1)
    if len(source) > MAX_SOURCE_CHARS:
        raise ProgramSyntaxError(f"the text has {len(source)} characters; at most {MAX_SOURCE_CHARS} are allowed", 1)
    try:
        with _quiet():
            return ast.parse(source, feature_version=(3, 11))
    except SyntaxError as error:
        raise ProgramSyntaxError(syntax_message(source, error), error.lineno) from None
    except (RecursionError, MemoryError):
        raise ProgramSyntaxError("the program is nested too deeply", None) from None
    except ValueError as error:  # text that cannot be encoded
        raise ProgramSyntaxError(f"invalid text: {error}", None) from None
