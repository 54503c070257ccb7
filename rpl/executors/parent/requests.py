"""Checks what a worker asks for or reports, before the parent acts on it or keeps it.

The worker has checked the same arguments for the program's sake. Here they are checked against the worker: a value that
no honest worker sends ends it, and nothing that it sends is kept without a bound on its size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rpl.core.records import Passage, TraceError
from rpl.executors.parent.process import WorkerGone
from rpl.executors.protocol import clean
from rpl.programs.primitives import MAX_ID_CHARS, MAX_LISTS, PRIMITIVES, Argument, Kind
from rpl.retrieval.base import MAX_K, MAX_QUERY_CHARS

MAX_ERROR_CHARS = 1_000
"""Longest error message that is kept."""

MAX_KIND_CHARS = 40
"""Longest kind of an error."""

MAX_LINE = 10_000_000
"""Highest line number that is believed."""

Known = Mapping[str, Passage]
"""The passages that a run fetched, by id."""


def length(name: str, args: Any) -> int:
    """Returns how many passages and lists the arguments of a call hold, before anything is made of them.

    Raises:
        WorkerGone: There are more lists than one call takes.
    """
    lists = [value for value in args.values() if type(value) is list] if type(args) is dict else []
    if PRIMITIVES[name].named("lists"):
        if any(len(each) > MAX_LISTS for each in lists[:1]):
            raise WorkerGone(f"its call of {name} holds more than {MAX_LISTS} lists")
        lists += [each for value in lists for each in value if type(each) is list]
    return sum(map(len, lists))


def arguments(name: str, args: Any, known: Known) -> dict[str, Any]:
    """Returns the arguments of a primitive call, with their texts cleaned.

    Args:
        name: A primitive of `protocol.REMOTE` or `protocol.LOCAL`.
        args: What the worker sent.
        known: Passages of this run; lists of passages may hold no others.

    Raises:
        WorkerGone: They are not what an honest worker sends.
    """
    takes = PRIMITIVES[name].takes
    if type(args) is not dict or args.keys() != {argument.name for argument in takes}:
        raise WorkerGone(f"the arguments of its call of {name} are malformed")
    try:
        return {argument.name: _CHECKS[argument.kind](args[argument.name], argument, known) for argument in takes}
    except (TypeError, ValueError, KeyError):
        raise WorkerGone(f"the arguments of its call of {name} are malformed") from None


def passage_ids(value: Any, known: Known) -> list[str]:
    """Returns ids of passages that this run fetched.

    Raises:
        WorkerGone: It is not a list of them.
    """
    try:
        return _known_ids(value, None, known)
    except (TypeError, KeyError):
        raise WorkerGone("it names a passage that it did not fetch") from None


def line_number(value: Any) -> int | None:
    """Returns a line number; `None` for `None`.

    Raises:
        WorkerGone: It is neither.
    """
    if value is not None and (type(value) is not int or not 0 < value < MAX_LINE):
        raise WorkerGone("its line number is malformed")
    return value


def fuel(value: Any, limit: int) -> int:
    """Returns how much fuel was used.

    Raises:
        WorkerGone: It is not a number from 0 to the limit.
    """
    if type(value) is not int or not 0 <= value <= limit:
        raise WorkerGone("its fuel is malformed")
    return value


def failure(value: Any) -> TraceError | None:
    """Returns the error a program ended with; `None` for `None`.

    Raises:
        WorkerGone: It is neither.
    """
    if value is None:
        return None
    match value:
        case {"kind": str(kind), "message": str(message), "line": line, **more} if not more:
            named = 0 < len(kind) <= MAX_KIND_CHARS and kind.isascii() and kind.replace("_", "a").isalnum()
            if named and len(message) <= MAX_ERROR_CHARS:
                return TraceError(kind, clean(message), line_number(line))
    raise WorkerGone("its error is malformed")


def _query(value: Any, argument: Argument, known: Known) -> str:
    if type(value) is not str or len(value) > MAX_QUERY_CHARS:
        raise ValueError
    return clean(value)


def _identifier(value: Any, argument: Argument, known: Known) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_ID_CHARS:
        raise ValueError
    return clean(value)


def _count(value: Any, argument: Argument, known: Known) -> int | None:
    if value is None and argument.default is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_K:
        raise ValueError
    return value


def _known_ids(value: Any, argument: Argument | None, known: Known) -> list[str]:
    if type(value) is not list:
        raise TypeError
    return [known[identifier].id for identifier in value]


def _lists(value: Any, argument: Argument, known: Known) -> list[list[str]]:
    if type(value) is not list:
        raise TypeError
    return [_known_ids(each, argument, known) for each in value]


_CHECKS: dict[Kind, Callable[[Any, Argument, Known], Any]] = {
    "query": _query,
    "count": _count,
    "passage": _identifier,
    "passages": _known_ids,
    "lists": _lists,
}
