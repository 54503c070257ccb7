"""The tags of a transcript: how a turn is written, how it is read, and which text can stand inside it.

The policy writes `<program>…</program>` and `<answer>…</answer>`; the environment writes `<result>…</result>`. Nothing
is escaped inside what the policy writes, since it writes programs and answers verbatim. So some text cannot be written
at all, such as a program with `</answer>` in a string: sampling ends there. `writable` and `answer_writable` say which.
"""

from __future__ import annotations

import re
import textwrap

ANSWER_PREFIX = "<answer>"
END_TAGS = ("</program>", "</answer>")
"""A turn of the policy ends with the first of these, whichever tag was opened."""

_END = re.compile("|".join(END_TAGS))
_ACTION = re.compile(r"<(program|answer)>(.*?)</\1>", re.DOTALL)
# The space before and after the slash is matched so that the time stays linear in the length of the text.
_ANY_TAG = re.compile(r"<(\s*(?:/\s*)?(?:program|result|answer)\b[^<>]*)>", re.IGNORECASE)
_RESULT_TAG = re.compile(r"<\s*(?:/\s*)?result\b[^<>]*>", re.IGNORECASE)


def program_text(source: str) -> str:
    """Returns the turn in which the policy writes a program."""
    return f"<program>\n{source}\n</program>"


def answer_text(answer: str) -> str:
    """Returns the turn in which the policy answers."""
    return f"{ANSWER_PREFIX}{answer}</answer>"


def result_text(observation: str) -> str:
    """Returns what the environment shows after a program; tags in the observation are defused."""
    return f"\n<result>\n{defuse(observation)}\n</result>\n"


def defuse(text: str) -> str:
    """Returns a text from outside with square brackets around whatever looks like a tag.

    Case, white space and attributes do not matter: `</RESULT>`, `< /result >` and `<answer id=1>` look like tags.
    """
    return _ANY_TAG.sub(r"[\1]", text)


def has_result_tag(text: str) -> bool:
    """Returns whether a text holds a tag that only the environment may write, in any case and spacing."""
    return _RESULT_TAG.search(text) is not None


def read_action(text: str) -> tuple[str, str, str] | None:
    """Reads the first complete program or answer of a turn, up to the first end tag of either kind.

    Returns:
        The kind (`program` or `answer`), its body without the space around it, and the text before the tag; or `None`.
    """
    if (end := _END.search(text)) is None:
        return None
    match = _ACTION.search(text, 0, end.end())
    if match is None:
        return None
    kind, body = match.groups()
    return kind, textwrap.dedent(body).strip() if kind == "program" else body.strip(), text[: match.start()]


def writable(program: str) -> bool:
    """Returns whether a program survives being written as a turn and read back.

    It does not with an end tag or a result tag in it, with blank lines around it, or indented as a whole.
    """
    return _reads_back("program", program_text(program), program)


def answer_writable(answer: str) -> bool:
    """Returns whether an answer survives being written as a turn and read back; an empty one does not."""
    return bool(answer) and _reads_back("answer", answer_text(answer), answer)


def _reads_back(kind: str, turn: str, body: str) -> bool:
    return not has_result_tag(turn) and read_action(turn) == (kind, body, "")
