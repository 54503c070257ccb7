"""Comparisons of a program's values, with the work they need paid in fuel.

Python compares collections in C, item by item and level by level. Lists that share their parts, such as `a = [a, a]`
forty times over, then take exponential time in a single operation. Here every level goes through fuel; only values that
hold nothing else are left to Python. Standard library only: the worker imports this file.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

from rpl.core.errors import BudgetExceeded
from rpl.executors.runtime.fuel import CHARS_PER_UNIT, MATCHES_PER_UNIT, SCANNED_PER_UNIT, Fuel
from rpl.executors.runtime.values import MAX_KEY_BITS, MAX_NESTING, SIMPLE, Lazy, ProgramPassage, size_error

Operation = Callable[[Any, Any], Any]

KEYS_VIEW: type = type({}.keys())
ITEMS_VIEW: type = type({}.items())

_ORDERS: dict[str, Operation] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_IDENTITIES: dict[str, Operation] = {"is": operator.is_, "is not": operator.is_not}
_PLAIN: dict[str, Operation] = {**_ORDERS, "==": operator.eq, "!=": operator.ne}
_NUMBERS = frozenset({int, float, bool, type(None)})
_QUICK = SIMPLE - {ProgramPassage}  # those that Python itself compares
_SETS = frozenset({set, KEYS_VIEW, ITEMS_VIEW})
_MAX_FLAT = 16
_MAX_QUICK_SEARCH = 30_000  # texts up to this length, Python may search in time length times length of the pattern
_KEY_LIMIT = 1 << MAX_KEY_BITS


class Comparisons:
    """The comparisons of one run of one program."""

    def __init__(self, fuel: Fuel) -> None:
        self.fuel = fuel
        self._alike: dict[int, list[tuple[Any, ...]]] = {}  # the tuples that were keys, by hash

    def compare(self, left: Any, op: str, right: Any, *rest: Any) -> Any:
        """Compares values, as `left op right op2 more …` does.

        Args:
            left: The first value.
            op: An operator of Python's comparisons, as it is written.
            right: The second value.
            rest: More operators, each followed by a function that computes the next value.
        """
        kind, other = type(left), type(right)
        if op in _PLAIN and (
            (kind in _NUMBERS and other in _NUMBERS) or (kind is str and other is str and len(left) <= CHARS_PER_UNIT)
        ):
            result = _PLAIN[op](left, right)
        else:
            result = self._compare(left, op, right)
        for next_op, thunk in zip(rest[::2], rest[1::2], strict=True):
            if not result:
                return result
            left, right = right, thunk()
            result = self._compare(left, next_op, right)
        return result

    def _compare(self, left: Any, op: str, right: Any) -> Any:
        if op == "==":
            return self.equal(left, right)
        if op == "!=":
            return not self.equal(left, right)
        if op == "in":
            return self.contains(right, left)
        if op == "not in":
            return not self.contains(right, left)
        if op in _ORDERS:
            return self.ordered(left, op, right)
        return _IDENTITIES[op](left, right)

    def equal(self, left: Any, right: Any, depth: int = 0) -> bool:
        """Returns `left == right`."""
        kind, other = type(left), type(right)
        if kind in SIMPLE and other in SIMPLE:
            if kind is str and other is str:
                self._pay_text(left, right)
            return bool(left == right)
        if left is right:
            return True
        if kind in _SETS and other in _SETS:
            if kind is other is ITEMS_VIEW:  # the values need not be hashable
                if len(left) != len(right):
                    return False
                self.fuel.burn(len(left))
                return self.equal(dict(left), dict(right), depth)
            return bool(self.as_set(left) == self.as_set(right))
        if kind is not other or kind not in (list, tuple, dict):
            return kind is range and other is range and bool(left == right)
        if len(left) != len(right):
            return False
        self.fuel.burn(len(left))
        if depth >= MAX_NESTING:
            raise size_error("the nesting of a compared value", MAX_NESTING)
        if kind is dict:
            return all(self.key(key) in right and self.equal(left[key], right[key], depth + 1) for key in left)
        return all(a is b or self.equal(a, b, depth + 1) for a, b in zip(left, right, strict=True))

    def ordered(self, left: Any, op: str, right: Any, depth: int = 0) -> Any:
        """Returns `left op right` for one of `< <= > >=`."""
        kind, other = type(left), type(right)
        if kind is other and kind in (list, tuple):
            if depth >= MAX_NESTING:
                raise size_error("the nesting of a compared value", MAX_NESTING)
            for a, b in zip(left, right, strict=False):
                self.fuel.burn()
                if not (a is b or self.equal(a, b, depth + 1)):
                    return self.ordered(a, op, b, depth + 1)
            return _ORDERS[op](len(left), len(right))
        if kind in _SETS and other in _SETS:
            return _ORDERS[op](self.as_set(left), self.as_set(right))
        if kind is str and other is str:
            self._pay_text(left, right)
        return _ORDERS[op](left, right)

    def contains(self, container: Any, item: Any) -> bool:
        """Returns `item in container`."""
        kind = type(container)
        if kind is str:
            if type(item) is str:
                self.pay_search(container, item)
        elif kind is set or kind is dict or kind is KEYS_VIEW:
            self.key(item)
        elif kind is list or kind is tuple:
            if type(item) in SIMPLE:
                self.pay_scan(container, item)
            else:
                return any(self.equal(item, other) for other in self.fuel.steps(container))
        elif kind is range:
            return type(item) in _NUMBERS and item is not None and _in_range(item, container)
        elif isinstance(container, Lazy) or hasattr(container, "__iter__"):
            return any(self.equal(item, other) for other in self.fuel.steps(container))
        return item in container  # for what has no items Python's own error

    def key(self, value: Any) -> Any:
        """Returns a value that is about to be hashed.

        Raises:
            TypeError: Values of its kind cannot be keys. Functions are among them: they are hashed by their address.
            BudgetExceeded: `budget_size`: a number is too large, or tuples are nested too deeply.
        """
        self._check_key(value, 0)
        return value

    def _check_key(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str:
            if len(value) > CHARS_PER_UNIT:
                self.fuel.burn(len(value) // CHARS_PER_UNIT)
        elif kind is int:
            if not -_KEY_LIMIT < value < _KEY_LIMIT:
                raise BudgetExceeded("size", f"a key is a whole number of more than {MAX_KEY_BITS} bits")
        elif kind is tuple:
            if depth >= MAX_NESTING:
                raise size_error("the nesting of a key", MAX_NESTING)
            self.fuel.burn(1 + len(value) // _MAX_FLAT)
            for item in value:
                self._check_key(item, depth + 1)
            if depth == 0:
                self._pay_collisions(value)
        elif kind not in SIMPLE:
            hint = "; use a tuple" if kind is list else "; use a text, a number, a Passage or a tuple of them"
            raise TypeError(f"unhashable type: {kind.__name__!r}{hint}")

    def _pay_collisions(self, value: tuple[Any, ...]) -> None:
        """Burns the comparisons with the other tuples of the run that share the hash of this one.

        Unequal tuples with equal hashes are easily computed, and look-ups among them take linear time.
        """
        alike = self._alike.setdefault(hash(value), [])
        self.fuel.burn(len(alike) * (1 + len(value)) // _MAX_FLAT)
        if value not in alike:
            alike.append(value)

    def pay_keys(self, keys: Collection[Any]) -> None:
        """Burns what looking up keys costs that were checked before: their texts and tuples are compared again."""
        self.fuel.burn(len(keys) // SCANNED_PER_UNIT)
        for key in keys:
            if type(key) is str or type(key) is tuple:
                self._check_key(key, 0)

    def keys(self, values: Iterable[Any]) -> set[Any]:
        """Returns the values as a set, one unit of fuel each."""
        key = self.key
        return {key(value) for value in self.fuel.steps(values)}

    def as_set(self, value: Any) -> set[Any]:
        """Returns a set or a view of a dict as a set, one unit of fuel an item."""
        kind: type = type(value)
        if kind is ITEMS_VIEW:
            return self.keys(value)
        self.fuel.burn(len(value))
        self.pay_keys(value)
        return value if kind is set else set(value)

    def sort_key(self, function: Any, length: int) -> Callable[[Any], Any]:
        """Returns the key function that a sort of `length` values uses, so that their comparisons go through fuel.

        Args:
            function: The program's own key function, or `None`.
            length: How many values are compared; each is compared about log2 of it times.
        """
        rounds = max(1, length.bit_length())

        def key(value: Any) -> Any:
            return self._sortable(value if function is None else function(value), rounds)

        return key

    def _sortable(self, value: Any, rounds: int) -> Any:
        kind = type(value)
        if kind in _NUMBERS or kind is ProgramPassage:
            return value
        if kind is str:
            if len(value) > CHARS_PER_UNIT:
                self.fuel.burn(len(value) // CHARS_PER_UNIT * rounds)
            return value
        if (kind is not tuple and kind is not list) or len(value) > _MAX_FLAT:
            return _Sortable(value, self)
        for item in value:
            if type(item) not in _QUICK or (type(item) is str and len(item) > CHARS_PER_UNIT):
                return _Sortable(value, self)
        return value

    def pay_search(self, text: str, pattern: str, *, backwards: bool = False) -> None:
        """Burns what a search for a pattern in a text may cost."""
        length = len(text)
        quick = length if backwards else min(length, _MAX_QUICK_SEARCH)
        self.fuel.burn(1 + length // CHARS_PER_UNIT + quick * len(pattern) // MATCHES_PER_UNIT)

    def pay_scan(self, values: Any, item: Any) -> None:
        """Burns what the comparison of every value with a simple item costs."""
        length = len(values)
        chars = len(item) if type(item) is str else 0
        self.fuel.burn(1 + length // SCANNED_PER_UNIT + length * (chars // CHARS_PER_UNIT))

    def _pay_text(self, left: str, right: str) -> None:
        shorter = min(len(left), len(right))
        if shorter > CHARS_PER_UNIT:
            self.fuel.burn(shorter // CHARS_PER_UNIT)


def _in_range(item: Any, values: range) -> bool:
    return item in values if type(item) is not float else item.is_integer() and int(item) in values


class _Sortable:
    """A collection as a sort key: compares through fuel."""

    __slots__ = ("comparisons", "value")

    def __init__(self, value: Any, comparisons: Comparisons) -> None:
        self.value = value
        self.comparisons = comparisons

    def __lt__(self, other: Any) -> Any:
        return self._ordered("<", other)

    def __gt__(self, other: Any) -> Any:
        return self._ordered(">", other)

    def _ordered(self, op: str, other: Any) -> Any:
        return self.comparisons.ordered(self.value, op, other.value if type(other) is _Sortable else other)
