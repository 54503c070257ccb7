"""Values inside a program: passages, and the text of any value.

Standard library only: the worker imports this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any

from rpl.core.errors import BudgetExceeded
from rpl.core.records import Passage

MAX_CHARS = 1_000_000
"""Longest text a program may hold in one value."""

MAX_ITEMS = 100_000
"""Most items a program may hold in one collection."""

MAX_INT_BITS = 1_024
"""Largest integer a program may compute: about 308 decimal digits."""

MAX_NESTING = 32
"""Deepest nesting of collections that can be turned into text, compared or used as a key."""

MAX_KEY_BITS = 60
"""Largest integer that can be a key: past it unequal integers share their hash, and look-ups take linear time."""


class ProgramPassage(Passage):
    """A passage as a program holds it: read-only, made from a reply of the host, equal by id.

    Equality by id makes `p in seen` and `set(passages)` mean what they say when two lists give the same passage
    different scores.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramPassage) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


ProgramPassage.__name__ = "Passage"  # the name that error messages show


SIMPLE = frozenset({str, int, float, bool, type(None), ProgramPassage})
"""Types whose values hold no other values of a program."""


class Lazy:
    """What `enumerate` and `zip` give: read once, by whatever goes through `iteration`.

    The iterator inside is Python's own. It is kept out of reach because Python's iterators nest without bound, and
    reading or freeing thousands of nested ones overflows the stack of the process.
    """

    __slots__ = ("_inputs", "_release", "iterator")

    def __init__(self, iterator: Iterable[Any], inputs: tuple[Any, ...], release: Callable[[], None]) -> None:
        self.iterator = iterator
        self._inputs = inputs  # holds on to the lazy values inside, so that all of them are counted
        self._release = release

    def __del__(self) -> None:
        self._release()


class Enumerated(Lazy):
    """The value of an `enumerate` call."""

    __slots__ = ()


class Zipped(Lazy):
    """The value of a `zip` call."""

    __slots__ = ()


Enumerated.__name__, Zipped.__name__ = "enumerate", "zip"

_LOOKED_AT_PER_UNIT = 50
_STABLE = frozenset({str, int, bool, ProgramPassage})
_NONE_MOVES = sys.version_info < (3, 12)  # before, the hash of None was its address


def iteration(values: Any, burn: Callable[[int], None]) -> Any:
    """Returns what a loop over the value reads, in an order that is the same in every process.

    Sets keep Python's order, which a fixed hash seed fixes, unless they hold a value that is hashed by its address:
    NaN, and `None` before Python 3.12. Those are read in the order of their texts.

    Args:
        values: What is looped over.
        burn: Called with the fuel that finding the order costs, before it is found.
    """
    if type(values) is not set:
        return values.iterator if isinstance(values, Lazy) else values
    burn(len(values) // _LOOKED_AT_PER_UNIT)
    if _STABLE.issuperset(map(type, values)) or not any(_moves(value, burn) for value in values):
        return values
    rounds = len(values).bit_length()

    def text(value: Any) -> tuple[str, str]:
        written = render_repr(value, burn)
        burn(1 + len(written) // _LONG * rounds)
        return type(value).__name__, written

    return sorted(values, key=text)


def _moves(value: Any, burn: Callable[[int], None]) -> bool:
    kind = type(value)
    if kind is tuple:
        burn(1 + len(value) // _LOOKED_AT_PER_UNIT)
        return any(_moves(item, burn) for item in value)
    return (value is None and _NONE_MOVES) or (kind is float and value != value)


def as_program_passage(passage: Passage) -> ProgramPassage:
    """Returns the passage as programs see it."""
    return ProgramPassage(passage.id, passage.title, passage.text, passage.score, passage.rank)


def passage_line(passage: Passage) -> str:
    """Returns how a passage is shown to the policy.

    >>> passage_line(Passage("p1", "Lyon", "A city."))
    '[p1] Lyon: A city.'
    """
    return f"[{passage.id}] {passage.title}: {passage.text}" if passage.title else f"[{passage.id}] {passage.text}"


def size_error(what: str, limit: int) -> BudgetExceeded:
    """Returns the error for a value that outgrew its bound."""
    return BudgetExceeded("size", f"{what} is larger than the limit of {limit:,}")


def source_error(length: int, limit: int) -> BudgetExceeded:
    """Returns the error for a program whose text is too long."""
    return BudgetExceeded("source", f"the program has {length:,} characters; the limit is {limit:,}")


def render(value: Any, burn: Callable[[int], None]) -> str:
    """Returns the text of a value, as `str` would give it, without addresses and within bounds.

    A passage becomes `[id] title: text`. That is its text only: an id counts as printed when the passage itself is
    handed to `print`.

    Args:
        value: Any value a program can hold.
        burn: Called with the fuel that each nested item costs.

    Raises:
        BudgetExceeded: The text would be too long or is nested too deeply.
    """
    if type(value) is str:
        return value
    if type(value) is ProgramPassage:
        return passage_line(value)
    return render_repr(value, burn)


def render_repr(value: Any, burn: Callable[[int], None]) -> str:
    """Returns the text of a value, as `repr` would give it; see `render`."""
    parts: list[str] = []
    _write(value, parts.append, _Room(burn), 0)
    return "".join(parts)


class _Room:
    def __init__(self, burn: Callable[[int], None]) -> None:
        self.burn = burn
        self.chars = MAX_CHARS

    def take(self, text: str) -> str:
        self.chars -= len(text)
        if self.chars < 0:
            raise size_error("the text of this value", MAX_CHARS)
        if len(text) >= _LONG:
            self.burn(len(text) // _LONG)
        return text


_LONG = 1_000
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), dict: ("{", "}")}
_PLAIN = (int, float, bool, type(None), range)


def _write(value: Any, put: Callable[[str], None], room: _Room, depth: int) -> None:
    kind = type(value)
    if kind not in _BRACKETS:
        put(room.take(_atom(value, kind)))
        return
    if depth >= MAX_NESTING:
        raise size_error("the nesting of this value", MAX_NESTING)
    if not value:
        put(room.take("set()" if kind is set else "".join(_BRACKETS[kind])))
        return
    opening, closing = _BRACKETS[kind]
    put(room.take(opening))
    for number, item in enumerate(iteration(value, room.burn)):
        room.burn(1)
        if number:
            put(room.take(", "))
        _write(item, put, room, depth + 1)
        if kind is dict:
            put(room.take(": "))
            _write(value[item], put, room, depth + 1)
    put(room.take(",)" if kind is tuple and len(value) == 1 else closing))


def _atom(value: Any, kind: type) -> str:
    if kind is str or kind in _PLAIN:
        return repr(value)
    if kind is ProgramPassage:
        return f"<Passage {value.id}>"
    # Everything else would show an address, which differs from run to run.
    if kind is GeneratorType or isinstance(value, Lazy) or not callable(value):
        return f"<{kind.__name__}>"
    return "<function>"
