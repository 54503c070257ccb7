"""Fuel bounds time: each guard, builtin and method, on values of every shape and two sizes, pays for what it does.

No absolute time is judged. A plain loop of the same run says what a unit of fuel is worth; an operation may take
`TIMES` as long for its own units.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from rpl.core.errors import ProgramError
from rpl.core.records import Passage
from rpl.executors.runtime.fuel import Fuel
from rpl.executors.runtime.functions import Builtins
from rpl.executors.runtime.guards import Guards
from rpl.executors.runtime.methods import HANDLERS
from rpl.executors.runtime.primitives import Host, Primitives, ProgramLimits
from rpl.executors.runtime.restricted import Printer, run_program
from rpl.executors.runtime.values import ProgramPassage
from rpl.programs.grammar import BUILTINS, PRIMITIVES

TIMES = 60
"""How many times as long as a step of a plain loop a unit of fuel may take."""
FREE = 1_000
"""Steps of a plain loop that any call may take on top, whatever it burns: a millisecond or less."""
SIZES = (1_000, 10_000)
FUEL = 20_000


class Silent(Host):
    def call(self, name: str, args: dict[str, Any]) -> list[Passage]:
        return []

    def record(self, name: str, args: dict[str, Any], results: Any) -> None:
        pass

    def print_text(self, text: str, ends: bool = True) -> None:
        pass

    def print_passage(self, passage: Passage) -> None:
        pass


def step_s() -> float:
    """Processor time of one step of a plain loop, here and now."""
    limits = ProgramLimits(calls=1, passages=1, fuel=30_000, source_chars=4_000)
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        outcome = run_program("x = 0\nfor i in range(20000):\n    x = x + i", "q", limits, Silent())
        best = min(best, (time.process_time() - started) / outcome.fuel)
    return best


class Machine:
    """Everything that a compiled program can call."""

    def __init__(self) -> None:
        self.fuel = Fuel(10**12)  # until the values are made
        self.guards = Guards(self.fuel)
        host = Silent()
        self.builtins = Builtins(self.guards, Printer(host, self.fuel)).names()
        self.primitives = Primitives(host, ProgramLimits(10**6, 10**9, FUEL, 4_000), self.fuel).names()

    def read(self, result: Any) -> None:
        """Reads what is lazy, as a loop of the program would."""
        if hasattr(result, "__next__") or type(result).__name__ in ("zip", "enumerate"):
            for _ in self.fuel.steps(result):
                pass


# Values, by shape. Two of the same shape and size are equal and share nothing large.


def nested(make: Callable[[Any], Any], start: Any, levels: int) -> Any:
    for _ in range(levels):
        start = make(start)
    return start


@lru_cache
def colliding(number: int) -> list[tuple[int, int]]:
    """Pairs of whole numbers whose hashes are equal: the hash of a tuple is easily turned round."""
    first, second, fifth, mask = 11400714785074694791, 14029467366897019727, 2870177450012600261, 2**64 - 1
    inverse = pow(second, -1, 2**64)
    target, found = 12345678901234567, []
    for a in itertools.count():
        mixed = (fifth + a * second) & mask
        mixed = (((mixed << 31) | (mixed >> 33)) * first) & mask
        b = ((target - mixed) * inverse) & mask
        if b < 2**59:
            found.append((a, b))
            if len(found) == number:
                return found
    raise AssertionError


def passages(n: int) -> list[ProgramPassage]:
    """As many as a program may fetch, again and again."""
    pool = [ProgramPassage(f"p{i % 9}", "T", "x") for i in range(360)]
    return [pool[i % 360] for i in range(n)]


def rows_of_passages(n: int) -> list[tuple[ProgramPassage, ...]]:
    """Rows that are equal and share no passage with their neighbours."""
    pool = passages(360)
    return [tuple([pool[j % 9 + 9 * ((row + j) % 40)] for j in range(16)]) for row in range(n)]


SHAPES: dict[str, Callable[[Machine, int], Any]] = {
    "numbers": lambda m, n: list(range(n)),
    "equal numbers": lambda m, n: [0] * n,
    "fractions": lambda m, n: [i + 0.5 for i in range(n)],
    "texts": lambda m, n: [str(i) for i in range(n)],
    "empty texts": lambda m, n: [""] * n,
    "long texts": lambda m, n: ["a" * 30 * n + str(i) for i in range(9)],
    "equal long texts": lambda m, n: ["a" * 10 * n] * n,
    "empty lists": lambda m, n: [[]] * n,
    "lists of lists": lambda m, n: [[0] * 100] * (n // 100),
    "empty sets": lambda m, n: [set()] * n,
    "empty dicts": lambda m, n: [{}] * n,
    "pairs": lambda m, n: [(i, i) for i in range(n)],
    "pairs of a wide tuple": lambda m, n: [((0,) * n, i) for i in range(20)],
    "tuples of passages": lambda m, n: rows_of_passages(n // 16),
    "tuples with equal hashes": lambda m, n: [(a, b) for a, b in colliding(n // 10)],
    "passages": lambda m, n: passages(n),
    "a tuple": lambda m, n: (0,) * n,
    "a tuple in a tuple": lambda m, n: ((0,) * n,),
    "tuples that share their parts": lambda m, n: nested(lambda x: (x, x), 0, 28),
    "lists that share their parts": lambda m, n: nested(lambda x: [x, x], 0, 28),
    "a deep list": lambda m, n: nested(lambda x: [x], 0, n // 10),
    "a text": lambda m, n: "a" * 30 * n,
    "a text of blanks": lambda m, n: "a " * 15 * n,
    "a text of wide characters": lambda m, n: "\U0001d504" * 30 * n,
    "a text of lines": lambda m, n: "a\n" * 3 * n,
    "a range": lambda m, n: range(30 * n),
    "a set": lambda m, n: set(range(n)),
    "a set of texts": lambda m, n: {str(i) for i in range(n)},
    "a set of long texts": lambda m, n: {"a" * 30 * n + str(i) for i in range(9)},
    "a set with None": lambda m, n: {None, *range(n)},
    "a set with NaN": lambda m, n: {float("nan"), *range(n)},
    "a set of a tuple with None": lambda m, n: {(None, *range(n))},
    "a set of wide tuples": lambda m, n: {(i, *[0] * n) for i in range(9)},
    "a dict": lambda m, n: {i: i for i in range(n)},
    "a dict of wide keys": lambda m, n: {(i, *[0] * n): i for i in range(9)},
    "a dict of long texts": lambda m, n: {"a" * 30 * n + str(i): i for i in range(9)},
    "keys": lambda m, n: {i: i for i in range(n)}.keys(),
    "values": lambda m, n: {i: i for i in range(n)}.values(),
    "items": lambda m, n: {i: i for i in range(n)}.items(),
    "more items": lambda m, n: {i: i for i in range(n + 1)}.items(),
    "reversed": lambda m, n: reversed([[0] * 50] * n),
    "reversed twins": lambda m, n: reversed(nested(lambda x: [x, x], 0, 28)),
    "a zip": lambda m, n: m.builtins["zip"](range(n), range(n)),
    "a wide zip": lambda m, n: m.builtins["zip"](*[[0] * 30] * n),
    "a zip of zips": lambda m, n: tree(m, n),
    "a chain of enumerate": lambda m, n: nested(m.builtins["enumerate"], list(range(n // 10)), 400),
}


def tree(machine: Machine, n: int) -> Any:
    """A zip of hundreds of zips of hundreds of lists."""
    wide = n // 50
    return machine.builtins["zip"](*[machine.builtins["zip"](*[[0] * 20] * wide) for _ in range(wide // 10)])


SMALL: list[Any] = [0, "a", (1, 2), [1], {1}, {1: 2}, None]
CASE = tuple[str, Callable[[Machine, list[Any]], Any]]


def guard(name: str, *before: Any) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.guards.names()[name](*before, *values)


def written(m: Machine, values: list[Any]) -> None:
    m.guards.write(values[0])[values[1]] = values[2] if len(values) > 2 else 0


def replaced(m: Machine, values: list[Any]) -> None:
    m.guards.write(values[0])[0 : len(values[0])] = values[1]


def sliced(m: Machine, values: list[Any]) -> Any:
    return m.guards.getitem(values[0], slice(0, None))


def compared(op: str) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.guards.comparisons.compare(values[0], op, values[1])


def star(machine: Machine, values: list[Any]) -> list[Any]:
    return machine.guards.star(values[0])


def builtin(name: str, star: bool = False, **more: Any) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.read(m.builtins[name](*(m.guards.star(values[0]) if star else values), **more))


def primitive(name: str) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.primitives[name](*values)


SPEC = {"childs": (), "min_len": 2}
UNARY: dict[str, Callable[[Machine, list[Any]], Any]] = {
    "slice": sliced,
    "_fstring_": guard("_fstring_"),
    "_spread_": guard("_spread_"),
    "_key_": guard("_key_"),
    "_unpack_sequence_": lambda m, values: m.guards.unpack(values[0], SPEC, None),
    "_iter_unpack_sequence_": lambda m, values: m.read(m.guards.iter_unpack(values[0], SPEC, None)),
    "_getiter_": lambda m, values: m.read(m.fuel.steps(values[0])),
    "a loop that ends at once": lambda m, values: next(m.fuel.steps(values[0]), None),
    **{f"{name}()": builtin(name) for name in sorted(BUILTINS)},
    **{f"{name}(*)": builtin(name, star=True) for name in ("zip", "print", "min", "max")},
    **{f"{name}(by key)": builtin(name, key=lambda v: v) for name in ("sorted", "min", "max")},
    **{f"primitive {name}": primitive(name) for name in PRIMITIVES},
    "primitive fuse(*)": lambda m, values: m.primitives["fuse"](*star(m, values)),
    "rerank of": lambda m, values: m.primitives["rerank"]("q", *values),
    "dict of pairs": lambda m, values: m.builtins["dict"]([("a", values[0]), (values[0], "a")]),
    "print of a list of": lambda m, values: m.builtins["print"]([values[0]]),
}
BINARY: dict[str, Callable[[Machine, list[Any]], Any]] = {
    **{op: compared(op) for op in ("==", "<", "in", "is")},
    **{f"_binop_ {op}": guard("_binop_", op) for op in ("+", "-", "*", "%", "&", "|", "^")},
    **{f"_inplacevar_ {op}": guard("_inplacevar_", op) for op in ("+=", "*=", "|=")},
    "_getitem_": guard("_getitem_"),
    "_write_": written,
    "_write_ of a slice": replaced,
    "zip()": lambda m, values: m.read(m.builtins["zip"](*values)),
    "min(, )": lambda m, values: m.builtins["min"](*values),
    "sum(, )": lambda m, values: m.builtins["sum"](*values),
    "sorted of both": lambda m, values: m.builtins["sorted"](values),
}


def method(name: str, *more: Any) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.guards.getattr(values[0], name)(*values[1:], *more)


def star_method(name: str) -> Callable[[Machine, list[Any]], Any]:
    return lambda m, values: m.guards.getattr(values[0], name)(*star(m, values[1:]))


def by_key(m: Machine, values: list[Any]) -> Any:
    return m.guards.getattr(values[0], "sort")(key=lambda v: (v, v))


KINDS = {"str": str, "list": list, "dict": dict, "set": set}


def argument_lists(arity: int, others: tuple[str | int, ...] = (0,)) -> Iterator[list[str | int]]:
    """Names of shapes, or places in SMALL, for each argument; at least one is large."""
    for shape in SHAPES:
        if arity == 1:
            yield [shape]
            continue
        yield [shape, shape]
        for other in others:
            yield [shape, other]
            yield [other, shape]


def excess(call: Callable[[Machine, list[Any]], Any], arguments: list[str | int], size: int, step: float) -> float:
    """How many times as long as allowed a call takes; 1 or less where its fuel pays for it."""
    machine = Machine()
    values = [SHAPES[a](machine, size) if isinstance(a, str) else SMALL[a] for a in arguments]
    machine.fuel.__init__(FUEL)
    started = time.process_time()
    with contextlib.suppress(ProgramError, TypeError, ValueError, LookupError, AttributeError, RecursionError):
        call(machine, values)
    seconds = time.process_time() - started
    return seconds / (step * (FREE + TIMES * machine.fuel.used))


def unpaid(call: Callable[[Machine, list[Any]], Any], arguments: list[str | int], step: float) -> float | None:
    """The excess of a call whose fuel does not pay for it at one of the sizes, time and again; else `None`."""
    for size in SIZES:
        worst = excess(call, arguments, size, step)
        if worst > 1:  # a busy machine may be slow once
            worst = min(worst, *(excess(call, arguments, size, max(step, step_s())) for _ in range(4)))
        if worst > 1:
            return worst
    return None


CALLS: dict[str, tuple[int, Callable[[Machine, list[Any]], Any]]] = {
    **{name: (1, call) for name, call in UNARY.items()},
    **{name: (2, call) for name, call in BINARY.items()},
    **{f"{kind}.{name}": (1, method(name)) for kind, name in HANDLERS},
    **{f"{kind}.{name}(x)": (2, method(name)) for kind, name in HANDLERS},
    **{f"{kind}.{name}(x, 1)": (2, method(name, 1)) for kind, name in HANDLERS if kind == "str"},
    **{f"{kind}.{name}(*x)": (2, star_method(name)) for kind, name in HANDLERS if kind == "set"},
    "list.sort by key": (1, by_key),
    "str.replace(x, x)": (2, lambda m, values: m.guards.getattr(values[0], "replace")(values[1], values[1])),
}


def fits(name: str, first: str | int, sample: dict[str | int, Any]) -> bool:
    kind, dot, _ = name.partition(".")
    return not dot or kind not in KINDS or type(sample[first]) is KINDS[kind]


@pytest.fixture(scope="module")
def sample() -> dict[str | int, Any]:
    machine = Machine()
    return {**{name: make(machine, 300) for name, make in SHAPES.items()}, **dict(enumerate(SMALL))}


@pytest.fixture(scope="module")
def step() -> float:
    return step_s()


def wrong(name: str, step: float, sample: dict[str | int, Any], *others: str | int) -> dict[str, float]:
    """The arguments with which an operation takes longer than its fuel pays for, and how many times as long."""
    arity, call = CALLS[name]
    found = {}
    for arguments in argument_lists(arity, others):
        if fits(name, arguments[0], sample):
            worst = unpaid(call, arguments, step)
            if worst is not None:
                found[", ".join(map(str, arguments))] = round(worst, 1)
    return found


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_operation_pays_for_its_time(name: str, step: float, sample: dict[str | int, Any]) -> None:
    assert wrong(name, step, sample, 0) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, (arity, _) in CALLS.items() if arity == 2))
def test_every_operation_pays_with_any_two_values(name: str, step: float, sample: dict[str | int, Any]) -> None:
    others = ("a tuple", "numbers", "tuples that share their parts", "lists that share their parts", "a text")
    assert wrong(name, step, sample, *range(1, len(SMALL)), *others) == {}


def test_work_without_fuel_would_be_seen(step: float) -> None:
    def free(machine: Machine, values: list[Any]) -> None:
        for _ in range(20):
            sum(values[0])

    assert unpaid(free, ["numbers"], step) is not None
    assert unpaid(lambda m, values: m.builtins["sum"](*values), ["numbers"], step) is None
