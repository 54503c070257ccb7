"""The guards that compiled programs call for attributes, items, iteration and arithmetic.

Each keeps one promise: no single operation takes long or grows a value past the bounds of `values`. Fuel then bounds
the number of operations. Standard library and RestrictedPython only: the worker imports this file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from RestrictedPython.Guards import guarded_unpack_sequence

from rpl.errors import BudgetExceeded
from rpl.executors.fuel import Fuel
from rpl.executors.values import MAX_CHARS, MAX_INT_BITS, MAX_ITEMS, ProgramPassage, render, size_error
from rpl.programs.grammar import ATTRIBUTES

_TYPES: dict[str, type] = {"str": str, "list": list, "dict": dict, "set": set, "Passage": ProgramPassage}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


REVIEWED: dict[str, frozenset[str]] = {
    "str": _words(
        "lower upper strip lstrip rstrip split rsplit splitlines join replace startswith endswith find rfind index "
        "count title capitalize casefold isdigit isalpha isalnum isnumeric isupper islower isspace removeprefix "
        "removesuffix partition rpartition"
    ),
    "list": _words("append extend insert pop remove clear index count sort reverse copy"),
    "dict": _words("get keys values items pop setdefault update clear copy"),
    "set": _words(
        "add discard remove clear union intersection difference symmetric_difference update issubset issuperset "
        "isdisjoint copy"
    ),
    "Passage": _words("id title text score rank"),
}
"""Attributes whose cost was looked at; one that the grammar allows but that is missing here stays refused."""

_ALLOWED: dict[type, frozenset[str]] = {
    _TYPES[name]: names & REVIEWED[name] for name, names in ATTRIBUTES.items() if name in _TYPES
}
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
_IN_PLACE: dict[tuple[type, str], str] = {
    (list, "+="): "extend",
    (set, "|="): "update",
}
_SEQUENCES = (str, list, tuple)
_COLLECTIONS = (list, tuple, dict, set)
_SUBSCRIPTABLE = (str, list, tuple, dict, range)
_TAKES_ITERABLES = {
    (list, "extend"),
    (dict, "update"),
    *((set, name) for name in ("union", "intersection", "difference", "symmetric_difference", "update")),
    *((set, name) for name in ("issubset", "issuperset", "isdisjoint")),
}


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
            "_fstring_": self.fstring,
            "_spread_": self.spread,
            "_tick_": self.fuel.burn,
            "_apply_": self.apply,
        }

    def spread(self, values: Iterable[Any]) -> list[Any]:
        """Returns the values as a list of bounded length, burning fuel for values that are computed on the fly."""
        if type(values) in _COLLECTIONS:
            return bounded(list(values))
        return bounded(list(self.fuel.steps(values)))

    def getattr(self, value: Any, name: str) -> Any:
        """Returns an attribute that the exact type of the value allows; methods come wrapped."""
        kind = type(value)
        if name not in _ALLOWED.get(kind, ()):
            raise AttributeError(f"{_kind_name(kind)!r} value has no attribute {name!r}{_hint(kind)}")
        attribute = getattr(value, name)
        if kind is ProgramPassage:
            return attribute

        def method(*args: Any, **kwargs: Any) -> Any:
            self.fuel.burn()
            if kind is str:
                args = self._check_text_method(value, name, args)
            elif (kind, name) in _TAKES_ITERABLES:
                args = self._check_growth(value, name, args)
            return bounded(attribute(*args, **kwargs))

        return method

    def _check_text_method(self, text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "join" and len(args) == 1:
            parts = self.spread(args[0])
            length = sum(len(part) for part in parts if type(part) is str) + len(text) * max(0, len(parts) - 1)
            if length > MAX_CHARS:
                raise size_error("a text", MAX_CHARS)
            return (parts,)
        if name == "replace" and len(args) >= 2 and type(args[0]) is str and type(args[1]) is str:
            growth = text.count(args[0]) * (len(args[1]) - len(args[0]))
            if len(text) + growth > MAX_CHARS:
                raise size_error("a text", MAX_CHARS)
        return args

    def _check_growth(self, value: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # A dict argument of dict.update must stay a dict; everything else is read once, through fuel.
        lists = tuple(arg if type(arg) in (dict, set) else self.spread(arg) for arg in args)
        if name in ("extend", "update", "union") and len(value) + sum(map(len, lists)) > MAX_ITEMS:
            raise size_error(f"a {type(value).__name__}", MAX_ITEMS)
        return lists

    def getitem(self, value: Any, key: Any) -> Any:
        """Returns an item or slice of a text, list, tuple, dict or range."""
        if type(value) not in _SUBSCRIPTABLE:
            raise TypeError(f"{_kind_name(type(value))!r} value is not subscriptable{_hint(type(value))}")
        return value[key]

    def unpack(self, values: Any, spec: Any, _getiter: Any) -> list[Any]:
        """Reads the values of a tuple assignment."""
        return guarded_unpack_sequence(values, spec, self.spread)  # type: ignore[no-any-return, unused-ignore]

    def iter_unpack(self, values: Any, spec: Any, _getiter: Any) -> Iterator[Any]:
        """Reads the values of a loop over tuples."""
        for value in self.fuel.steps(values):
            yield guarded_unpack_sequence(value, spec, self.spread)

    def write(self, value: Any) -> Any:
        """Returns what may be assigned into: lists and dicts only."""
        if type(value) is list:
            return _ListWriter(self, value)
        if type(value) is dict:
            return _DictWriter(value)
        raise TypeError(f"{_kind_name(type(value))!r} value does not support item assignment")

    def in_place(self, op: str, left: Any, right: Any) -> Any:
        """Computes `left op= right`; lists and sets change in place, as in Python."""
        method = _IN_PLACE.get((type(left), op))
        if method is not None and (type(left) is list or type(right) is set):
            self.getattr(left, method)(right)
            return left
        return self.binop(op[:-1], left, right)

    def binop(self, op: str, left: Any, right: Any) -> Any:
        """Computes a binary operation whose result is bounded before memory is spent on it."""
        kind = type(left)
        if kind is int and type(right) is int:
            if op == "*" and left.bit_length() + right.bit_length() > MAX_INT_BITS + 1:
                raise BudgetExceeded("size", f"a whole number has more than {MAX_INT_BITS:,} bits")
            return bounded(_OPERATORS[op](left, right))
        if kind is str and op == "%":
            raise TypeError("% does not format text here; write an f-string")
        if op == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        elif op == "+" and kind in _SEQUENCES and type(right) is kind:
            limit = MAX_CHARS if kind is str else MAX_ITEMS
            if len(left) + len(right) > limit:
                raise size_error(f"a {_kind_name(kind)}", limit)
        return bounded(_OPERATORS[op](left, right))

    def fstring(self, *parts: Any) -> str:
        """Joins the texts of the parts of an f-string."""
        texts = [render(part, self.fuel.burn) for part in parts]
        if sum(map(len, texts)) > MAX_CHARS:
            raise size_error("a text", MAX_CHARS)
        return "".join(texts)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with starred arguments."""
        return function(*args, **kwargs)


def _check_repetition(sequence: Any, times: Any) -> None:
    if type(sequence) in _SEQUENCES and type(times) in (int, bool):
        limit = MAX_CHARS if type(sequence) is str else MAX_ITEMS
        if len(sequence) * times > limit:
            raise size_error(f"a {_kind_name(type(sequence))}", limit)


def _kind_name(kind: type) -> str:
    return {"str": "text", "builtin_function_or_method": "function", "method": "function"}.get(
        kind.__name__, kind.__name__
    )


def _hint(kind: type) -> str:
    if kind is ProgramPassage:
        return "; a Passage has .id .title .text .score .rank"
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
        self._list[key] = value


class _DictWriter:
    __slots__ = ("_dict",)

    def __init__(self, target: dict[Any, Any]) -> None:
        self._dict = target

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self._dict) >= MAX_ITEMS:
            raise size_error("a dict", MAX_ITEMS)
        self._dict[key] = value
