"""The guards that compiled programs call for attributes, items, iteration, arithmetic and comparisons.

Each keeps one promise: no single operation takes long, or grows a value past the bounds of `values`, without the fuel
for it. Fuel then bounds the whole. Standard library and RestrictedPython only: the worker imports this file.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from RestrictedPython.Guards import guarded_unpack_sequence

from rpl.core.errors import BudgetExceeded
from rpl.executors.runtime.comparison import ITEMS_VIEW, KEYS_VIEW, Comparisons
from rpl.executors.runtime.fuel import CHARS_PER_UNIT, ITEMS_PER_UNIT, Fuel
from rpl.executors.runtime.methods import HANDLERS, REVIEWED, missing_key
from rpl.executors.runtime.values import MAX_CHARS, MAX_INT_BITS, MAX_ITEMS, ProgramPassage, render, size_error
from rpl.programs.grammar import ATTRIBUTES

MAX_FRAMES = 200
"""How deep functions of a program may call each other; the program itself and comprehensions count."""

FRAMES_PER_UNIT = 20
"""Levels of a call that one unit pays for: how deep it is, is counted from the top at each call."""

_TYPES: dict[str, type] = {"str": str, "list": list, "dict": dict, "set": set, "Passage": ProgramPassage}
_ALLOWED: dict[type, frozenset[str]] = {
    _TYPES[name]: names & REVIEWED[name] for name, names in ATTRIBUTES.items() if name in _TYPES
}
_FIELDS = _ALLOWED[ProgramPassage]
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_SEQUENCES = (str, list, tuple)
_COLLECTIONS = (list, tuple, dict, set)
_SUBSCRIPTABLE = (str, list, tuple, dict, range)
_SET_LIKE = (set, KEYS_VIEW, ITEMS_VIEW)
_SET_OPERATORS = frozenset("&|^-")


def bounded(value: Any) -> Any:
    """Returns the value, if it is within the bounds on its size.

    Raises:
        BudgetExceeded: `budget_size`.
    """
    kind = type(value)
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise BudgetExceeded("size", f"a whole number has more than {MAX_INT_BITS:,} bits")
    elif kind is str:
        if len(value) > MAX_CHARS:
            raise size_error("a text", MAX_CHARS)
    elif kind in _COLLECTIONS and len(value) > MAX_ITEMS:
        raise size_error(f"a {kind.__name__}", MAX_ITEMS)
    return value


class Guards:
    """The guards of one run of one program."""

    def __init__(self, fuel: Fuel) -> None:
        self.fuel = fuel
        self.comparisons = Comparisons(fuel)

    def names(self) -> dict[str, Any]:
        """Returns the guards under the names that compiled programs use."""
        return {
            "_getattr_": self.getattr,
            "_getitem_": self.getitem,
            "_getiter_": self.fuel.steps,
            "_iter_unpack_sequence_": self.iter_unpack,
            "_unpack_sequence_": self.unpack,
            "_write_": self.write,
            "_inplacevar_": self.in_place,
            "_binop_": self.binop,
            "_compare_": self.comparisons.compare,
            "_key_": self.comparisons.key,
            "_fstring_": self.fstring,
            "_spread_": self.star,
            "_tick_": self.fuel.burn,
            "_enter_": self.enter,
            "_apply_": self.apply,
        }

    def enter(self, cost: int) -> None:
        """Begins a call of one of the program's functions.

        Python's own recursion limit is no measure: it counts what the interpreter has not yet learnt to inline, so that
        the depth at which it strikes depends on what ran before.

        Raises:
            BudgetExceeded: `budget_recursion`, or `budget_fuel` where the call cannot be paid.
        """
        self.fuel.burn(cost)
        frame: FrameType | None = sys._getframe(1)
        assert frame is not None
        scope, depth = frame.f_globals, 0
        while frame is not None:
            depth += frame.f_globals is scope
            frame = frame.f_back
        if depth > MAX_FRAMES:
            raise BudgetExceeded("recursion", f"functions call each other more than {MAX_FRAMES} levels deep")
        if depth >= FRAMES_PER_UNIT:
            self.fuel.burn(depth // FRAMES_PER_UNIT)

    def star(self, values: Iterable[Any]) -> list[Any]:
        """Returns what `*values` stands for; hundreds of stars may stand in one step, so each is paid."""
        self.fuel.burn()
        return self.spread(values)

    def spread(self, values: Iterable[Any]) -> list[Any]:
        """Returns the values as a list of bounded length, burning fuel for values that are computed on the fly."""
        if isinstance(values, list | tuple):
            self._pay_copy(len(values))
            return bounded(list(values))
        return bounded(list(self.fuel.steps(values)))

    def pairs(self, values: Any, items: dict[str, Any]) -> dict[Any, Any]:
        """Returns what `dict(values, **items)` does: `values` is a dict or gives pairs of a key and a value."""
        if type(values) is dict:
            self.comparisons.pay_keys(values)
            return {**values, **items}
        result: dict[Any, Any] = {}
        for number, pair in enumerate(self.fuel.steps(values)):
            kind = type(pair)
            if kind not in (tuple, list, str) or len(pair) != 2:
                raise TypeError(f"a dict is made of pairs, such as [('a', 1), ('b', 2)]; item {number} is none")
            key, value = pair
            result[self.comparisons.key(key)] = value
        return result | items

    def getattr(self, value: Any, name: str) -> Any:
        """Returns an attribute that the exact type of the value allows; methods come wrapped."""
        kind = type(value)
        if kind is ProgramPassage and name in _FIELDS:
            return getattr(value, name)
        if name not in _ALLOWED.get(kind, ()):
            raise AttributeError(f"{_kind_name(kind)!r} value has no attribute {name!r}{_hint(kind)}")
        handler = HANDLERS[kind.__name__, name]

        def method(*args: Any, **kwargs: Any) -> Any:
            self.fuel.burn()
            return bounded(handler(self, value, name, args, kwargs))

        return method

    def getitem(self, value: Any, key: Any) -> Any:
        """Returns an item or slice of a text, list, tuple, dict or range."""
        kind = type(value)
        if kind not in _SUBSCRIPTABLE:
            raise TypeError(f"{_kind_name(kind)!r} value is not subscriptable{_hint(kind)}")
        if kind is dict:
            if self.comparisons.key(key) not in value:
                raise missing_key(key)
            return value[key]
        if type(key) is slice and kind is not range:
            self.fuel.burn()
            self._pay_copy(len(range(*key.indices(len(value)))))
        return value[key]

    def unpack(self, values: Any, spec: Any, _getiter: Any) -> list[Any]:
        """Reads the values of a tuple assignment."""
        return guarded_unpack_sequence(values, spec, self.spread)  # type: ignore[no-any-return, unused-ignore]

    def iter_unpack(self, values: Any, spec: Any, _getiter: Any, cost: int = 1) -> Iterator[Any]:
        """Reads the values of a loop over tuples."""
        for value in self.fuel.steps(values, cost):
            yield guarded_unpack_sequence(value, spec, self.spread)

    def write(self, value: Any) -> Any:
        """Returns what may be assigned into: lists and dicts only."""
        if type(value) is list:
            return _ListWriter(self, value)
        if type(value) is dict:
            return _DictWriter(self, value)
        raise TypeError(f"{_kind_name(type(value))!r} value does not support item assignment")

    def in_place(self, op: str, left: Any, right: Any) -> Any:
        """Computes `left op= right`; lists, sets and dicts change in place, as in Python."""
        kind = type(left)
        if kind is list and op == "+=":
            self.getattr(left, "extend")(right)
            return left
        result = self.binop(op[:-1], left, right)
        if type(result) is not kind or result is left:
            return result
        if kind is list:
            left[:] = result
        elif kind is set or kind is dict:
            left.clear()
            left.update(result)
        else:
            return result
        return left

    def binop(self, op: str, left: Any, right: Any) -> Any:
        """Computes a binary operation whose result is bounded before memory is spent on it."""
        kind, other = type(left), type(right)
        if kind is int and other is int:
            if op == "*" and left.bit_length() + right.bit_length() > MAX_INT_BITS + 1:
                raise BudgetExceeded("size", f"a whole number has more than {MAX_INT_BITS:,} bits")
            return bounded(_OPERATORS[op](left, right))
        if kind is str and op == "%":
            raise TypeError("% does not format text here; write an f-string")
        if kind in _SET_LIKE or other in _SET_LIKE:
            return self._combine_sets(op, left, right)
        if op == "*":
            self._pay_repetition(left, right)
            self._pay_repetition(right, left)
        elif op == "+" and kind in _SEQUENCES and other is kind:
            self._pay_result(kind, len(left) + len(right))
        elif op == "+" and (kind is str or other is str) and kind is not other:
            names = f"{_kind_name(kind)!r} and {_kind_name(other)!r}"
            raise TypeError(f"+ cannot join {names}; write an f-string or use str(x)")
        elif op == "|" and kind is dict and other is dict:
            self.fuel.burn(len(left) + len(right))
            self.comparisons.pay_keys(right)
        return bounded(_OPERATORS[op](left, right))

    def _combine_sets(self, op: str, left: Any, right: Any) -> Any:
        """Set operators; the keys and items of a dict count as sets and combine with any iterable, as in Python."""
        if op in _SET_OPERATORS and (type(left) not in _SET_LIKE or type(right) not in _SET_LIKE):
            if type(left) is set or type(right) is set:
                return _OPERATORS[op](left, right)  # Python's own error
            left, right = (side if type(side) in _SET_LIKE else self.comparisons.keys(side) for side in (left, right))
        if op in _SET_OPERATORS:
            left, right = self.comparisons.as_set(left), self.comparisons.as_set(right)
            if op in "|^" and len(left) + len(right) > MAX_ITEMS:
                raise size_error("a set", MAX_ITEMS)
        return bounded(_OPERATORS[op](left, right))

    def fstring(self, *parts: Any) -> str:
        """Joins the texts of the parts of an f-string."""
        texts = [render(part, self.fuel.burn) for part in parts]
        length = sum(map(len, texts))
        if length > MAX_CHARS:
            raise size_error("a text", MAX_CHARS)
        if length > CHARS_PER_UNIT:
            self.fuel.burn(length // CHARS_PER_UNIT)
        return "".join(texts)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with starred arguments."""
        return function(*args, **kwargs)

    def _pay_copy(self, length: int) -> None:
        if length >= ITEMS_PER_UNIT:
            self.fuel.burn(length // ITEMS_PER_UNIT)

    def _pay_repetition(self, sequence: Any, times: Any) -> None:
        if type(sequence) in _SEQUENCES and type(times) in (int, bool):
            self._pay_result(type(sequence), len(sequence) * max(0, times))

    def _pay_result(self, kind: type, length: int) -> None:
        limit = MAX_CHARS if kind is str else MAX_ITEMS
        if length > limit:
            raise size_error(f"a {_kind_name(kind)}", limit)
        self.fuel.burn(1 + length // (CHARS_PER_UNIT if kind is str else ITEMS_PER_UNIT))


def _kind_name(kind: type) -> str:
    return {"str": "text", "builtin_function_or_method": "function", "method": "function"}.get(
        kind.__name__, kind.__name__
    )


def _hint(kind: type) -> str:
    if kind is ProgramPassage:
        return "; a Passage has .id .title .text .score .rank"
    if kind in _SET_LIKE or kind.__name__ in ("enumerate", "zip", "dict_values"):
        return "; use list(...) first"
    return "; take one item first" if kind in (list, tuple) else ""


class _ListWriter:
    __slots__ = ("_guards", "_list")

    def __init__(self, guards: Guards, target: list[Any]) -> None:
        self._guards, self._list = guards, target

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            value = self._guards.spread(value)
            if len(self._list) + len(value) > MAX_ITEMS:
                raise size_error("a list", MAX_ITEMS)
            self._guards.fuel.burn(1 + (len(self._list) + len(value)) // ITEMS_PER_UNIT)
        self._list[key] = value


class _DictWriter:
    __slots__ = ("_dict", "_guards")

    def __init__(self, guards: Guards, target: dict[Any, Any]) -> None:
        self._guards, self._dict = guards, target

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self._dict) >= MAX_ITEMS:
            raise size_error("a dict", MAX_ITEMS)
        self._dict[self._guards.comparisons.key(key)] = value
