"""The protocol between the executor and its workers: one JSON object a line, and no pickle.

Parent to worker: `start` (limits), `job` (source and question, nothing else), `reply` (passages or an error).
Worker to parent: `ready` (which layers hold), `call` (a primitive the parent has to serve), `done` (error, fuel).
`call` and `done` carry the `journal` of what happened since the last message: printed items (`text`, `part` of a line,
`passage`) and calls that the worker computed by itself. A message is a name and plain values: nothing in it can stand
for an object of the parent.
Standard library only: the worker imports this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from rpl.core.records import Passage
from rpl.programs.primitives import PRIMITIVES, SERVED

REMOTE = frozenset(SERVED)
"""Primitives that the parent serves; the others are computed in the worker."""

LOCAL = frozenset(PRIMITIVES) - REMOTE
"""Primitives that are pure functions of passages the program already holds."""

MAX_LINE_BYTES = 16 * 2**20
"""Longest message the parent accepts; it holds the most a program may print, escaped."""

MAX_STRUCTURE_BYTES = 2**20
"""Most bytes of a message outside its texts: what a parser turns into objects, at up to 60 times the size."""

MAX_PRINTED_CHARS = 1_000_000
"""Characters one program may print before it fails with `budget_printed`; far above any observation."""

MAX_PRINTED_ITEMS = 2_000
"""Items one program may print before it fails with `budget_printed`."""

MAX_LISTED = 40_000
"""Passages, counted with repeats, that one program may hand to primitives in lists, or get from those that it
computes by itself."""

_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)  # matches at every quote: one pass, whatever stands there
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(message: Mapping[str, Any]) -> bytes:
    r"""Returns a message as one line of ASCII, newline included.

    >>> encode({"type": "ready"})
    b'{"type":"ready"}\n'
    """
    return _ENCODER.encode(message).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Returns the message on a line; its size is checked before it is parsed.

    Raises:
        ValueError: The line is not a JSON object in ASCII, is too long, nests too deeply or holds too many values.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("the message is too long")
    if len(line) > MAX_STRUCTURE_BYTES and len(_TEXTS.sub(b'""', line)) > MAX_STRUCTURE_BYTES:
        raise ValueError("the message holds too many values")
    try:
        message = _DECODER.decode(line.decode("ascii"))
    except RecursionError:
        raise ValueError("the message nests too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {type(message).__name__}")
    return message


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_number)


def clean(text: str) -> str:
    r"""Returns a text in which halves of surrogate pairs, which no file or tokenizer accepts, are replaced.

    >>> clean("a\ud800b") == "a\ufffdb"
    True
    """
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def pack_passages(passages: Iterable[Passage]) -> list[list[Any]]:
    """Returns passages as JSON rows of id, title, text, score and rank."""
    return [[p.id, p.title, p.text, float(p.score), int(p.rank)] for p in passages]
