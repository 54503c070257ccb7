"""Finds passages that are longer than the print budget of a program, so that no program can print them."""

from __future__ import annotations

from collections.abc import Callable

PRINTED_TOKENS = 512
"""The print budget of a program by default, in tokens; see `ExecutionLimits.printed_tokens`."""

BYTES_A_TOKEN = 4
"""Bytes of UTF-8 that one token stands for, roughly, where no tokenizer is given: about right for English."""


def estimated_tokens(text: str) -> int:
    """Returns about how many tokens a text has, without a tokenizer.

    >>> estimated_tokens("An owl sleeps by day.")
    6
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN)


def printed_line(id_: str, title: str, text: str) -> str:
    """Returns a passage as a program prints it."""
    return f"[{id_}] {title}: {text}"


class PrintBudget:
    """Tells which passages could never be printed.

    Args:
        tokens: Most tokens of what one program prints, at least 1.
        count_tokens: Counts those of a text.
    """

    def __init__(self, tokens: int = PRINTED_TOKENS, count_tokens: Callable[[str], int] = estimated_tokens) -> None:
        self.tokens, self._count = tokens, count_tokens

    def exceeded_by(self, id_: str, title: str, text: str) -> bool:
        """Tells whether a passage has more tokens than may be printed."""
        line = printed_line(id_, title, text)
        # A token stands for at least one byte, and a character for at most four.
        return 4 * len(line) > self.tokens and self._count(line) > self.tokens
