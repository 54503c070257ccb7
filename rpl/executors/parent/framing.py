"""How printed items become lines of an observation, so that no document can forge a line of another kind.

An observation is read by line: `[id] title: text` is a passage, `Error on line 3: …` an error, `(2 more did not fit)`
a count. Were the line breaks of a document kept, its text could hold any of these. So a passage is one line, and a line
of a printed text that would read as one of the frame's own is indented.
"""

from __future__ import annotations

import re
import unicodedata

# All that str.splitlines breaks at.
_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_BREAK = re.compile(rf"\r\n|[{_BREAKS}]")
_BREAKS_AND_SPACE = re.compile(rf" ?[{_BREAKS}]+ ?")
_LITERAL = r"""(?:-?\d[\w.+-]*|'[^'\n]*'|"[^"\n]*"|None|True|False|<Passage [^>\n]*>)"""
# A printed list, which no id looks like: empty, of one text, of several plain values, or of collections.
_LIST = rf"""\[(?:\]|'[^'\n]*'\]|"[^"\n]*"\]|{_LITERAL}(?:, {_LITERAL})+\]|[\[({{]+['"\d-])"""
_FRAME = re.compile(
    rf"^(?!{_LIST})"
    r"(?=\[[^\n]*?\][^\S\n]*[^\s\],]|Error\b|\((?:\d+ more did not fit|nothing printed|passage |a text of ))"
)
INDENT = "  "


def passage_frame(line: str) -> str:
    r"""Returns the line of a passage without line breaks.

    >>> passage_frame("[x] Fox: Foxes eat mice.\n[gold] Fox: A bird.")
    '[x] Fox: Foxes eat mice. [gold] Fox: A bird.'
    """
    return _BREAKS_AND_SPACE.sub(" ", line)


def text_frame(text: str) -> str:
    r"""Returns a printed text with those lines indented that could be taken for the frame's own.

    >>> text_frame("Foxes:\n[gold] Fox: A bird.")
    'Foxes:\n  [gold] Fox: A bird.'
    """
    lines = _BREAK.sub("\n", text).split("\n")
    return "\n".join(INDENT + line if _FRAME.match(_as_read(line)) else line for line in lines)


def _as_read(line: str) -> str:
    """A line as a reader takes it: without invisible characters, with full-width ones as their ordinary forms."""
    if line.isascii() and line.isprintable():
        return line
    visible = "".join(character for character in line if unicodedata.category(character) not in ("Cc", "Cf"))
    return unicodedata.normalize("NFKC", visible)
