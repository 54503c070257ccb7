"""The wire between the executor and its workers: one JSON object a line, nothing is ever unpickled.

Parent to worker: `start` (limits), `job` (source and question, nothing else), `reply` (passages or an error).
Worker to parent: `ready`, `call` (a primitive the parent has to serve), `done` (error, fuel). `call` and `done` carry
the `journal` of what happened since the last message: printed items and calls that the worker computed by itself.
Standard library only: the worker imports this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rpl.types import Passage

REMOTE = frozenset({"bm25", "dense", "rerank", "read", "links"})
"""Primitives that the parent serves; the others are computed in the worker."""

LOCAL = frozenset({"fuse", "unique"})
"""Primitives that are pure functions of passages the program already holds."""

MAX_LINE_BYTES = 32 * 2**20
"""Longest message a side accepts; no honest message comes near it."""

MAX_PRINTED_CHARS = 1_000_000
"""Characters one program may print before it fails with `budget_printed`; far above any observation."""

MAX_PRINTED_ITEMS = 2_000
"""Items one program may print before it fails with `budget_printed`."""


def encode(message: Mapping[str, Any]) -> bytes:
    r"""Returns a message as one line of ASCII, newline included.

    >>> encode({"type": "ready"})
    b'{"type": "ready"}\n'
    """
    return json.dumps(message).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Returns the message on a line.

    Raises:
        ValueError: The line is not a JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {type(message).__name__}")
    return message


def pack_passages(passages: Iterable[Passage]) -> list[list[Any]]:
    """Returns passages as JSON rows of id, title, text, score and rank."""
    return [[p.id, p.title, p.text, float(p.score), int(p.rank)] for p in passages]
