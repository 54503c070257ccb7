"""Hints for runtime errors that models make often, appended to Python's own message.

Standard library only: the worker imports this file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from rpl.programs.grammar import BUILTINS, GLOBALS, PRIMITIVES
from rpl.programs.refusals import MODULE_HINT, MODULES


def _words(text: str) -> list[str]:
    return text.split()


_SEARCH = "the searches are bm25(query, k=10) and dense(query, k=10)"
_QUESTION = "the text of the question is in `question`"
_READ = "read(passage_id) gives a passage by its id"

_MAX_NAME_CHARS = 40  # longer names are not worth the time that their comparison takes

_UNDEFINED: dict[str, str] = {
    **dict.fromkeys(_words("search retrieve retriever search_bm25 bm25_search google web_search find lookup"), _SEARCH),
    **dict.fromkeys(
        _words("dense_search vector_search semantic_search embed"), "dense(query, k=10) searches by meaning"
    ),
    **dict.fromkeys(_words("query q questions user_question prompt"), _QUESTION),
    **dict.fromkeys(MODULES, MODULE_HINT),
    **dict.fromkeys(_words("get_passage get_document open_passage fetch"), _READ),
    **dict.fromkeys(_words("true false"), "write True and False"),
    **dict.fromkeys(_words("null none nil undefined"), "write None"),
}
"""Names that models expect -> what there is instead."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"'NoneType' object is not iterable", "list.sort, append and print return None"),
        (r"'(int|float)' object is not iterable", "loop over range(n)"),
        (r"'Passage' object is not iterable", "it is one passage; loop over a list of them"),
        (r"(list|tuple) indices must be integers or slices, not str", "take one item first, as in hits[0].title"),
        (r"object of type '(zip|enumerate|generator)' has no len", "use list(...) first"),
        (r"cannot access (local|free) variable", "pass it as an argument and return it"),
        (r"(can only concatenate|unsupported operand type\(s\) for \+:) .*Passage", "use .title or .text"),
        (r"not supported between instances of 'Passage'", "compare .score, or sort with key=lambda p: p.score"),
        (r"(not enough|too many) values to unpack", "the names on the left must be as many as the values"),
        (r"invalid literal for int\(\)", "test with text.isdigit() first"),
        (r"'(str|list|dict|set|int|Passage|tuple)' object is not callable", "a name of the program stands for a value"),
    )
)


def name_hint(name: str, bound: Iterable[str]) -> str:
    """Returns what to write instead of a name that nothing binds.

    Args:
        name: The name.
        bound: The names that the program has bound so far.

    >>> name_hint("titel", ["title", "hits"])
    "did you mean 'title'?"
    """
    if name in _UNDEFINED:
        return _UNDEFINED[name]
    known = sorted(word for word in {*bound, *BUILTINS, *PRIMITIVES, *GLOBALS} if len(word) <= _MAX_NAME_CHARS)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75) if len(name) <= _MAX_NAME_CHARS else []
    if near:
        return f"did you mean {near[0]!r}?"
    return "assign it first; a program starts without the names of earlier ones"


def message_hint(message: str) -> str:
    """Returns what to do about an error with this message, or an empty text."""
    return next((hint for pattern, hint in _PATTERNS if pattern.search(message)), "")
