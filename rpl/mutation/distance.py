"""Edit distance between programs.

The distance is the Levenshtein distance (unit cost for insertion, deletion and substitution) between the token
sequences of the canonical texts. Names, numbers, operators, line ends, and each step of indentation in or out are
tokens, so that wrapping a block costs the same whatever its length. A string literal is one token: a query that is
replaced costs 1, however many words it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rpl.programs.grammar import canonical

_INDENT = 4
_TOKEN = re.compile(
    r"""
      (?P<line>\n[ ]*)
    | f?(?:\"{3}(?:\\.|(?!\"{3}).)*\"{3}|'{3}(?:\\.|(?!'{3}).)*'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | \d+(?:\.\d+)?(?:e[+-]?\d+)?
    | \w+
    | //=?|[-+*/%&|^=<>!]=
    | [^\s\w]
    """,
    re.VERBOSE | re.DOTALL,
)


def edit_distance(a: str, b: str) -> int:
    """Counts the tokens that separate two programs.

    Args:
        a: Text of a program; it is brought into canonical form.
        b: Text of another one.

    Returns:
        A symmetric distance; 0 exactly when the canonical texts are equal.

    Raises:
        ProgramSyntaxError: One of the texts is not Python.
        ForbiddenConstruct: One of the texts is outside the language.

    >>> edit_distance("print(read('a1'))", "print( read('b2') )")
    1
    """
    return levenshtein(_tokens(a), _tokens(b))


@lru_cache(maxsize=4096)
def _tokens(source: str) -> tuple[str, ...]:
    return tokens(canonical(source))


def tokens(text: str) -> tuple[str, ...]:
    r"""Splits canonical text into tokens; the indentation steps are `>` + tab and `<` + tab.

    >>> tokens("if x:\n    print('a b')")
    ('if', 'x', ':', '\n', '>\t', 'print', '(', "'a b'", ')')
    """
    found: list[str] = []
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match["line"] is None:
            found.append(token)
            continue
        new_depth = (len(token) - 1) // _INDENT
        found.append("\n")
        found += [">\t"] * (new_depth - depth) + ["<\t"] * (depth - new_depth)
        depth = new_depth
    return tuple(found)


def levenshtein(a: Sequence[str], b: Sequence[str]) -> int:
    """Returns the Levenshtein distance, one column a big integer (Myers 1999, in the form of Hyyrö 2003).

    >>> levenshtein("kitten", "sitting")
    3
    """
    if not a or not b:
        return len(a) + len(b)
    positions: dict[str, int] = {}
    for i, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << i
    mask = (1 << len(a)) - 1
    last = 1 << (len(a) - 1)
    plus, minus, distance = mask, 0, len(a)
    for token in b:
        equal = positions.get(token, 0)
        diagonal = (((equal & plus) + plus) ^ plus) | equal | minus
        right_plus = minus | (mask & ~(diagonal | plus))
        right_minus = plus & diagonal
        distance += bool(right_plus & last) - bool(right_minus & last)
        right_plus = (right_plus << 1 | 1) & mask
        right_minus = (right_minus << 1) & mask
        vertical = equal | minus
        plus = right_minus | (mask & ~(vertical | right_plus))
        minus = right_plus & vertical
    return distance
