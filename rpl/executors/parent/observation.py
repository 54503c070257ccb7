"""Builds what the policy gets to see from what a program printed, within a budget of tokens.

Items are whole: passages as `[id] title: text` on one line, texts as printed, none of their lines to be taken for a
passage (see `framing`), in print order, until one does not fit; that one and all later ones are counted in a last
line. An item that would not fit even if it stood alone is skipped by name, in a line of its own, and the items after it
still stand: one long document does not hide the rest. A passage that was printed before is not shown again. An error
always has its line, shortened if it must be.

No more of a text is tokenized than the budget could show, however much a program printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpl.core.records import Passage, TraceError
from rpl.executors.base import TokenCounter
from rpl.executors.parent.framing import passage_frame, text_frame
from rpl.executors.runtime.values import passage_line

NOTHING = "(nothing printed)"
"""The observation of a program that printed nothing and did not fail."""

MAX_NAMED_CHARS = 60
"""Longest id of a skipped passage that is written out."""

_FIRST_CHARS = 4  # characters a token of the budget that are counted first; each further look takes as many again
_SLACK = 32  # tokens by which the beginning of a text may count more than the whole: one long token, cut


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

    def fits(text: str) -> bool:
        return _count(text, budget, count_tokens) <= budget

    items = _without_repeats(items)
    lines = [text_frame(item) if isinstance(item, str) else passage_frame(passage_line(item)) for item in items]
    failure = [] if error is None else [_fit(_error_line(error), fits)]
    skipped: set[int] = set()

    def text(shown: int) -> str:
        omitted = [f"({len(lines) - shown} more did not fit)"] if shown < len(lines) else []
        return "\n".join(lines[:shown] + omitted + failure)

    shown = 0
    while (shown := _longest(shown, len(lines), lambda number: fits(text(number)))) < len(lines):
        if shown in skipped or fits("\n".join([lines[shown], *failure])):
            break
        lines[shown] = _notice(items[shown])
        skipped.add(shown)
    result = text(shown) if lines or failure else NOTHING
    if not fits(result):  # not even the count of what is missing fits
        result = "\n".join(failure)
    ids = tuple(
        item.id for number, item in enumerate(items[:shown]) if isinstance(item, Passage) and number not in skipped
    )
    omitted = len(lines) - shown + sum(number < shown for number in skipped)
    return Observation(result, ids, count_tokens(result) if result else 0, omitted)


def _count(text: str, budget: int, count_tokens: TokenCounter) -> int:
    """Returns the tokens of a text, or of a beginning of it that is past the budget already."""
    chars = _FIRST_CHARS * budget
    while chars < len(text):
        tokens = count_tokens(text[:chars])
        if tokens > budget + _SLACK:
            return tokens
        chars *= 2
    return count_tokens(text)


def _longest(low: int, total: int, fits: Callable[[int], bool]) -> int:
    """Returns how many items to show: the most that fit, found with few counts because counting is what costs.

    All of them need no line that counts the rest, so they may fit where fewer do not.

    Args:
        low: How many are known to fit, or 0.
        total: How many there are.
        fits: Whether so many fit.
    """
    if fits(total):
        return total
    step = 1
    while low + step < total and fits(low + step):
        low, step = low + step, step * 2
    high = min(low + step, total)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _notice(item: Passage | str) -> str:
    if isinstance(item, str):
        return f"(a text of {len(item):,} characters is too long to be shown)"
    name = " ".join(item.id.split())
    name = name if len(name) <= MAX_NAMED_CHARS else name[: MAX_NAMED_CHARS - 1] + "…"
    return f"(passage {name} is too long to be shown)"


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


def _fit(line: str, fits: Callable[[str], bool]) -> str:
    if fits(line):
        return line
    low, high = 0, len(line)  # the longest beginning that fits; token counts grow with the text, or nearly so
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(line[:middle] + "…") else (low, middle - 1)
    short = line[:low] + "…"
    return short if fits(short) else ""
