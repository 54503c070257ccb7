"""The builtins of the program language: what Python's do, with every step through fuel and every result bounded.

Programs get functions, never types, so that no class is within their reach. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rpl.core.errors import BudgetExceeded
from rpl.executors.runtime.guards import Guards, bounded
from rpl.executors.runtime.values import Enumerated, Lazy, Zipped, iteration, render
from rpl.programs.grammar import BUILTINS

MAX_RANGE = 1_000_000
"""Longest `range`."""

MAX_INT_CHARS = 400
"""Longest text that `int` and `float` read."""

MAX_STREAMS = 1_000
"""Most `enumerate` and `zip` values that a program may hold at once, and so the deepest nesting of them."""

_WIDE = 16

_MISSING: Any = object()


class Builtins:
    """The builtins of one run of one program.

    Args:
        guards: The guards of the run.
        printer: What `print` calls with the values, the separator and the end.
    """

    def __init__(self, guards: Guards, printer: Callable[[tuple[Any, ...], str, str], None]) -> None:
        self.guards = guards
        self.fuel = guards.fuel
        self.printer = printer
        self._streams = 0

    def names(self) -> dict[str, Any]:
        """Returns the builtins under their names; exactly those of the grammar."""
        return {name: getattr(self, f"_{name}") for name in BUILTINS}

    def _print(self, *values: Any, sep: Any = " ", end: Any = None) -> None:
        self.fuel.burn(1 + len(values) // 4)
        self.printer(
            values,
            " " if sep is None else _text_argument("sep", sep),
            "\n" if end is None else _text_argument("end", end),
        )

    def _len(self, value: Any, /) -> int:
        self.fuel.burn()
        return len(value)

    def _range(self, *args: int) -> range:
        self.fuel.burn()
        result = range(*args)
        start, stop, step = result.start, result.stop, result.step
        if (stop - start) // step > MAX_RANGE:
            raise BudgetExceeded("size", f"a range is longer than {MAX_RANGE:,}")
        return result

    # The three below are lazy: reading the outermost burns fuel for it, and each burns fuel for those inside it.

    def _read(self, values: Any) -> Any:
        return self.fuel.steps(values) if isinstance(values, Lazy) else iteration(values, self.fuel.burn)

    def _enumerate(self, values: Iterable[Any], start: int = 0) -> Any:
        self.fuel.burn()
        return Enumerated(enumerate(self._read(values), bounded(start)), (values,), self._stream())

    def _zip(self, *iterables: Iterable[Any], strict: bool = False) -> Any:
        self.fuel.burn(1 + len(iterables) // _WIDE)
        rows: Iterable[Any] = zip(*map(self._read, iterables), strict=strict)
        if len(iterables) > _WIDE:
            rows = self._wide(rows, len(iterables))
        return Zipped(rows, iterables, self._stream())

    def _wide(self, rows: Iterable[tuple[Any, ...]], width: int) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.fuel.burn(width // _WIDE)
            yield row

    def _stream(self) -> Callable[[], None]:
        """Counts one more lazy value; returns what takes it off again."""
        if self._streams >= MAX_STREAMS:
            raise BudgetExceeded("size", f"the program holds more than {MAX_STREAMS:,} enumerate and zip values")
        self._streams += 1
        return self._drop_stream

    def _drop_stream(self) -> None:
        self._streams -= 1

    def _reversed(self, values: Any, /) -> Any:
        self.fuel.burn()
        return reversed(values)

    def _sorted(self, values: Iterable[Any], /, *, key: Any = None, reverse: Any = False) -> list[Any]:
        self.fuel.burn()
        items = bounded(list(self.fuel.steps(values)))
        items.sort(key=self.guards.comparisons.sort_key(key, len(items)), reverse=bool(reverse))
        return items

    def _min(self, *values: Any, key: Any = None, default: Any = _MISSING) -> Any:
        return self._extreme(min, values, key, default)

    def _max(self, *values: Any, key: Any = None, default: Any = _MISSING) -> Any:
        return self._extreme(max, values, key, default)

    def _extreme(self, pick: Callable[..., Any], values: tuple[Any, ...], key: Any, default: Any) -> Any:
        self.fuel.burn()
        key = self.guards.comparisons.sort_key(key, 1)
        if len(values) == 1:
            result = pick(self.fuel.steps(values[0]), key=key, default=default)
            if result is _MISSING:
                raise ValueError(f"{pick.__name__}() of nothing; test first, or give default=...")
            return result
        self.fuel.burn(len(values))
        return pick(*values, key=key, **({} if default is _MISSING else {"default": default}))

    def _sum(self, values: Iterable[Any], /, start: Any = 0) -> Any:
        self.fuel.burn()
        if type(start) is str:
            raise TypeError("sum() can't sum texts; use ''.join(...)")
        total = start
        for value in self.fuel.steps(values):
            total = self.guards.binop("+", total, value)
        return total

    def _any(self, values: Iterable[Any], /) -> bool:
        self.fuel.burn()
        return any(self.fuel.steps(values))

    def _all(self, values: Iterable[Any], /) -> bool:
        self.fuel.burn()
        return all(self.fuel.steps(values))

    def _abs(self, value: Any, /) -> Any:
        self.fuel.burn()
        return abs(value)

    def _round(self, number: Any, ndigits: Any = None) -> Any:
        self.fuel.burn()
        if ndigits is not None and not -MAX_INT_CHARS <= ndigits <= MAX_INT_CHARS:
            raise ValueError(f"round() takes at most {MAX_INT_CHARS} digits")
        return round(number, ndigits)

    def _int(self, value: Any = 0, /, base: Any = _MISSING) -> int:
        self.fuel.burn()
        if type(value) is str and len(value) > MAX_INT_CHARS:
            raise BudgetExceeded("size", f"int() reads at most {MAX_INT_CHARS} characters")
        return bounded(int(value) if base is _MISSING else int(value, base))

    def _float(self, value: Any = 0.0, /) -> float:
        self.fuel.burn()
        if type(value) is str and len(value) > MAX_INT_CHARS:
            raise BudgetExceeded("size", f"float() reads at most {MAX_INT_CHARS} characters")
        return float(value)

    def _str(self, value: Any = "", /) -> str:
        self.fuel.burn()
        return bounded(render(value, self.fuel.burn))

    def _bool(self, value: Any = False, /) -> bool:
        self.fuel.burn()
        return bool(value)

    def _list(self, values: Iterable[Any] = (), /) -> list[Any]:
        self.fuel.burn()
        return bounded(list(self.fuel.steps(values)))

    def _tuple(self, values: Iterable[Any] = (), /) -> tuple[Any, ...]:
        self.fuel.burn()
        return bounded(tuple(self.fuel.steps(values)))

    def _set(self, values: Iterable[Any] = (), /) -> set[Any]:
        self.fuel.burn()
        return bounded(self.guards.comparisons.keys(values))

    def _dict(self, values: Any = (), /, **items: Any) -> dict[Any, Any]:
        self.fuel.burn()
        return bounded(self.guards.pairs(values, items))


def _text_argument(name: str, value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{name} must be a text, got {type(value).__name__}")
    return value
