"""Makes text from documents, programs and policies safe to print: it cannot control the terminal.

An escape sequence in a document could move the cursor, rewrite what was shown before or set the window's title; a
character that turns the direction of writing could make one text look like another.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

# Line breaks and tabs are plain text; the joiners are part of words and emoji in many scripts.
_ALLOWED = frozenset("\n\t\u200c\u200d")


def visible(text: str) -> str:
    r"""Returns a text with each control, format and separator character written as Python writes it, such as `\x1b`.

    Line feeds, tabs and all spaces stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_plain(char) else char.encode("unicode_escape").decode() for char in text)


def visible_json(value: Any) -> str:
    """Returns a JSON value as indented text in which the characters that `visible` replaces are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if text.isprintable() else "".join(c if _is_plain(c) else json.dumps(c)[1:-1] for c in text)


def _is_plain(char: str) -> bool:
    return char.isprintable() or char in _ALLOWED or unicodedata.category(char) in ("Zs", "Co", "Cn")
