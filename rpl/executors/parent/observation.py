"""Builds what the policy gets to see from what a program printed, within a budget of tokens.

Items are whole: passages as `[id] title: text`, texts as printed, in print order, until one does not fit; that one and
all later ones are counted in a last line. A passage that was printed before is not shown again. An error always has its
line, shortened if it must be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpl.core.records import Passage, TraceError
from rpl.executors.base import TokenCounter
from rpl.executors.runtime.values import passage_line

NOTHING = "(nothing printed)"
"""The observation of a program that printed nothing and did not fail."""


@dataclass(frozen=True)
class Observation:
    """The text and its bookkeeping; the fields are those of `Trace`."""

    text: str
    printed_ids: tuple[str, ...]
    tokens: int
    omitted: int


def build_observation(
    items: Sequence[Passage | str], error: TraceError | None, budget: int, count_tokens: TokenCounter
) -> Observation:
    r"""Returns the observation of one run.

    Args:
        items: Printed passages and texts, in print order.
        error: How the program failed, if it did.
        budget: Most tokens of the observation, at least 1.
        count_tokens: Counts the tokens of a text.

    Returns:
        An observation of at most `budget` tokens. It is empty only where not even its last line fits.

    >>> build_observation([Passage("p1", "Lyon", "A city."), "done"], None, 99, lambda t: len(t.split())).text
    '[p1] Lyon: A city.\ndone'
    """
    items = _without_repeats(items)
    lines = [item if isinstance(item, str) else passage_line(item) for item in items]
    failure = [] if error is None else [_fit(_error_line(error), budget, count_tokens)]

    def text(shown: int) -> str:
        omitted = [f"({len(lines) - shown} more did not fit)"] if shown < len(lines) else []
        return "\n".join(lines[:shown] + omitted + failure)

    shown = _longest(len(lines), lambda number: count_tokens(text(number)) <= budget)
    result = text(shown) if lines or failure else NOTHING
    if count_tokens(result) > budget:  # not even the count of what is missing fits
        result = "\n".join(failure)
    ids = tuple(item.id for item in items[:shown] if isinstance(item, Passage))
    return Observation(result, ids, count_tokens(result) if result else 0, len(lines) - shown)


def _longest(total: int, fits: Callable[[int], bool]) -> int:
    """Returns how many items to show: the most that fit, found with few counts because counting is what costs.

    All of them need no line that counts the rest, so they may fit where fewer do not.
    """
    if fits(total):
        return total
    low, high = 0, 1
    while high < total and fits(high):
        low, high = high, high * 2
    high = min(high, total)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _without_repeats(items: Sequence[Passage | str]) -> list[Passage | str]:
    seen: set[str] = set()
    kept: list[Passage | str] = []
    for item in items:
        if isinstance(item, Passage):
            if item.id in seen:
                continue
            seen.add(item.id)
        kept.append(item)
    return kept


def _error_line(error: TraceError) -> str:
    message = " ".join(error.message.split())
    return f"Error on line {error.line}: {message}" if error.line is not None else f"Error: {message}"


def _fit(line: str, budget: int, count_tokens: TokenCounter) -> str:
    if count_tokens(line) <= budget:
        return line
    low, high = 0, len(line)  # the longest beginning that fits; token counts grow with the text, or nearly so
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count_tokens(line[:middle] + "…") <= budget else (low, middle - 1)
    short = line[:low] + "…"
    return short if count_tokens(short) <= budget else ""
