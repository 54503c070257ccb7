"""Prints syntax trees as canonical text, the same on every supported Python.

`ast.unparse` differs between Python versions in f-strings only (PEP 701), so those are printed here, in the form that
the oldest supported version reads. `check_fstrings` refuses the newer spellings, so that what parses does not depend
on the version either.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from rpl.core.errors import ForbiddenConstruct, ProgramSyntaxError

_DELIMITERS = ("'", '"', "'''", '"""')


def unparse(tree: ast.AST) -> str:
    r"""Returns the canonical text of a tree of the program language; the tree stays as it is.

    Raises:
        ForbiddenConstruct: An f-string nests quotes or backslashes that the oldest supported Python cannot read.

    >>> unparse(ast.parse('print( f"{p.title}:  {p.text}" )'))
    "print(f'{p.title}:  {p.text}')"
    """
    if isinstance(tree, ast.JoinedStr):
        return _print_fstring(tree)
    places = list(_fstrings(tree))
    printed = [_print_fstring(place.node) for place in places]
    try:
        for number, place in enumerate(places):
            # A name that holds a NUL, which no other printed text can hold.
            place.put(ast.Name(id=f"\0{number}\0", ctx=ast.Load()))
        text = ast.unparse(tree)
    finally:
        for place in places:
            place.put(place.node)
    for number, fstring in enumerate(printed):
        text = text.replace(f"\0{number}\0", fstring)
    return text


@dataclass(frozen=True)
class _Place:
    """Where an f-string stands in a tree; one inside another has no place of its own."""

    node: ast.JoinedStr
    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.expr) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _fstrings(tree: ast.AST) -> Iterator[_Place]:
    pending = [tree]
    while pending:
        parent = pending.pop()
        for field, value in ast.iter_fields(parent):
            children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if isinstance(child, ast.JoinedStr):
                    yield _Place(child, parent, field, index)
                elif isinstance(child, ast.AST):
                    pending.append(child)


def _print_fstring(node: ast.JoinedStr) -> str:
    parts: list[tuple[bool, str]] = []  # (is an expression, text)
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            text = ast.unparse(value.value)
            if _ends_in_lambda(value.value):
                text = f"({text})"  # its colon would begin a format
            parts.append((True, "{" + (" " if text.startswith("{") else "") + text + "}"))
        else:
            assert isinstance(value, ast.Constant)
            assert isinstance(value.value, str)
            parts.append((False, value.value.replace("{", "{{").replace("}", "}}")))
    expressions = "".join(text for is_expression, text in parts if is_expression)
    fitting = [delimiter for delimiter in _DELIMITERS if delimiter not in expressions]
    if not fitting or any(char in expressions for char in "\\\n#"):
        raise ForbiddenConstruct(
            "an f-string cannot hold such a string literal inside its braces; assign it to a name first",
            getattr(node, "lineno", None),
        )
    delimiter = fitting[0]
    return "f" + delimiter + "".join(t if e else _escape(t, delimiter[0]) for e, t in parts) + delimiter


def _ends_in_lambda(node: ast.expr) -> bool:
    while isinstance(node, ast.IfExp):
        node = node.orelse
    return isinstance(node, ast.Lambda)


def _escape(text: str, quote: str) -> str:
    escaped = repr(text + '"')[1:-2]  # the added double quote makes repr choose single quotes where it can
    if "'" in text:
        escaped = escaped.replace("\\'", "'")
    return escaped.replace(quote, "\\" + quote)


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(source).readline)
    except (tokenize.TokenError, SyntaxError) as error:  # text that the parser takes all the same
        raise ProgramSyntaxError(f"the f-strings of the program cannot be read: {error.args[0]}") from None


def check_fstrings(source: str) -> None:
    """Refuses f-strings that only Python 3.12 and later can read.

    Args:
        source: Text that parses on the running Python.

    Raises:
        ProgramSyntaxError: Inside the braces stands a backslash, a comment, a line break or the f-string's own quote.
    """
    start = getattr(tokenize, "FSTRING_START", None)
    if start is None:  # the running Python has refused them itself
        return
    quotes: list[str] = []
    kinds = (start, tokenize.FSTRING_MIDDLE, tokenize.FSTRING_END)  # type: ignore[attr-defined]
    for token in _tokens(source):
        if token.type == kinds[2]:
            quotes.pop()
        inner = token.string
        breaks = token.type in (tokenize.NL, tokenize.NEWLINE) and any(len(quote) == 1 for quote in quotes)
        if token.type != kinds[1] and (breaks or any(q in inner or "\\" in inner or "#" in inner for q in quotes)):
            raise ProgramSyntaxError(
                "f-string braces cannot hold a backslash, a comment, a line break or the f-string's own quotes; "
                "assign the value to a name first",
                token.start[0],
            )
        if token.type == kinds[0]:
            quotes.append(inner.lstrip("rRfF"))
