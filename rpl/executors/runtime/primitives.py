"""The primitives as a program sees them: argument checks, budgets, and the record of every call.

Which they are, what they take and who serves them stands in `rpl.programs.primitives`. Bad arguments raise
`PrimitiveError` with what is allowed. Standard library only: the worker imports this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rpl.core.errors import BudgetExceeded, PrimitiveError
from rpl.core.records import Passage
from rpl.executors.protocol import MAX_LISTED
from rpl.executors.runtime.fuel import Fuel
from rpl.executors.runtime.values import ProgramPassage, as_program_passage
from rpl.programs.primitives import MAX_ID_CHARS, MAX_LISTS, PRIMITIVES, REQUIRED, Argument, Primitive
from rpl.retrieval.base import MAX_K, MAX_QUERY_CHARS
from rpl.retrieval.fusion import COMPUTED, unique


@dataclass(frozen=True)
class ProgramLimits:
    """The budgets that are counted inside the worker; see `ExecutionLimits`."""

    calls: int
    passages: int
    fuel: int
    source_chars: int


class Host(ABC):
    """What a running program reaches outside itself."""

    @abstractmethod
    def call(self, name: str, args: dict[str, Any]) -> Sequence[Passage]:
        """Has a primitive served by the library.

        Raises:
            PrimitiveError: The library refused the arguments.
        """

    @abstractmethod
    def record(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> None:
        """Notes a call that was computed in the worker."""

    @abstractmethod
    def print_text(self, text: str, ends: bool = True) -> None:
        """Emits a printed text; one that does not end its line is continued by the next text."""

    @abstractmethod
    def print_passage(self, passage: Passage) -> None:
        """Emits a printed passage."""


_PLAIN = {
    name: {argument.name: argument.default for argument in primitive.takes if argument.default is not REQUIRED}
    for name, primitive in PRIMITIVES.items()
    if not primitive.named("lists")
}
"""Defaults of the primitives with a fixed number of arguments; `Signature.bind` takes ten times as long."""


class Primitives:
    """The primitives of one run of one program."""

    def __init__(self, host: Host, limits: ProgramLimits, fuel: Fuel) -> None:
        self.host = host
        self.limits = limits
        self.fuel = fuel
        self.calls = 0
        self.fetched = 0
        self._listed = 0

    def names(self) -> dict[str, Any]:
        """Returns the primitives under their names; exactly those of the grammar."""
        return {name: self._function(primitive) for name, primitive in PRIMITIVES.items()}

    def _function(self, primitive: Primitive) -> Callable[..., Any]:
        name, signature = primitive.name, primitive.signature
        names, defaults = tuple(argument.name for argument in primitive.takes), _PLAIN.get(name)

        def function(*args: Any, **kwargs: Any) -> Any:
            self.fuel.burn()
            if defaults is not None:
                given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
                once = len(args) <= len(names) and kwargs.keys().isdisjoint(names[: len(args)])
                if once and given.keys() == frozenset(names):
                    return self._run(primitive, given)
            try:  # an error, or a signature that takes any number of values
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise PrimitiveError(f"{name}: {error}; it is called as {name}{signature}") from None
            bound.apply_defaults()
            return self._run(primitive, bound.arguments)

        return function

    def _run(self, primitive: Primitive, given: Mapping[str, Any]) -> Any:
        """Checks the arguments of a call, in order, and has it served or computes it."""
        name = primitive.name
        values = {a.name: self._checked(name, a, given[a.name]) for a in primitive.takes}
        self.calls += 1
        if self.calls > self.limits.calls:
            raise BudgetExceeded("calls", f"the program made more than {self.limits.calls} primitive calls")
        self._count_listed(name, values)
        if primitive.served_by == "worker":
            results = COMPUTED[name](**values)
            self.host.record(name, {a.name: _as_ids(a, values[a.name]) for a in primitive.takes}, results)
            return [as_program_passage(p) for p in results]
        found = self._ask(name, {a.name: _as_ids(a, values[a.name], once=True) for a in primitive.takes})
        if primitive.returns == "passages":
            return found
        if not found:
            raise PrimitiveError(f"{name}: there is no passage with id {next(iter(values.values()))!r}")
        return found[0]

    def _count_listed(self, name: str, values: Mapping[str, Any]) -> None:
        """Bounds what is kept of the arguments of calls."""
        for argument in PRIMITIVES[name].takes:
            value = values[argument.name]
            if argument.kind == "passages":
                self._listed += 2 * len(value)  # for the result, which is no longer
            elif argument.kind == "lists":
                self._listed += len(value) + 2 * sum(map(len, value))
        if self._listed > MAX_LISTED:
            raise BudgetExceeded("size", f"the program handed more than {MAX_LISTED // 2:,} passages to primitives")

    def _ask(self, name: str, args: dict[str, Any]) -> list[ProgramPassage]:
        results = [as_program_passage(p) for p in self.host.call(name, args)]
        self.fetched += len(results)
        if self.fetched > self.limits.passages:
            raise BudgetExceeded("passages", f"the program fetched more than {self.limits.passages} passages")
        return results

    def _checked(self, name: str, argument: Argument, value: Any) -> Any:
        """Returns the value of an argument as the program may give it; lists become lists of passages."""
        match argument.kind:
            case "query":
                return _query(name, value, may_be_blank=PRIMITIVES[name].is_search)
            case "count":
                return None if value is None and argument.default is None else _k(name, value)
            case "passage":
                return _identifier(f"{name}: {argument.name}", value)
            case "passages":
                return self._passages(value, f"{name}: {argument.name}")
            case "lists":
                if not value:
                    raise PrimitiveError(f"{name}: give at least one list of passages, as in {name}(bm25(q), dense(q))")
                if len(value) > MAX_LISTS:
                    raise PrimitiveError(f"{name}: takes at most {MAX_LISTS} lists, got {len(value):,}")
                self.fuel.burn(len(value))
                return [self._passages(each, f"{name}: list {number}") for number, each in enumerate(value, start=1)]

    def _passages(self, value: Any, what: str) -> list[Passage]:
        if isinstance(value, list | tuple) and any(isinstance(item, list | tuple) for item in value):
            raise PrimitiveError(
                f"{what} must hold passages only, got a list; join lists with + or give them one by one"
            )
        if hasattr(value, "__iter__") and not isinstance(value, str | Passage | dict):
            value = list(self.fuel.steps(value))
        unique(value, caller=what)  # raises where it is no list of passages
        return value


def _as_ids(argument: Argument, value: Any, *, once: bool = False) -> Any:
    """Returns an argument as JSON: ids in place of passages."""
    if argument.kind == "passages":
        ids = [p.id for p in value]
        return list(dict.fromkeys(ids)) if once else ids
    if argument.kind == "lists":
        return [[p.id for p in each] for each in value]
    return value


def _query(name: str, value: Any, may_be_blank: bool) -> str:
    if isinstance(value, Passage):
        raise PrimitiveError(f"{name}: query must be a text, got a Passage; use .title or .text")
    if type(value) is not str:
        raise PrimitiveError(f"{name}: query must be a text, got {type(value).__name__}")
    if not may_be_blank and not value.strip():
        raise PrimitiveError(f"{name}: query is empty")
    if len(value) > MAX_QUERY_CHARS:
        raise PrimitiveError(f"{name}: query has {len(value):,} characters; at most {MAX_QUERY_CHARS:,} are allowed")
    return value


def _k(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_K:
        shown = value if type(value) in (int, float, bool, type(None)) else type(value).__name__
        raise PrimitiveError(f"{name}: k must be a whole number from 1 to {MAX_K}, got {shown}")
    return value


def _identifier(what: str, value: Any) -> str:
    if isinstance(value, Passage):
        return value.id
    if type(value) is str and value:
        if len(value) > MAX_ID_CHARS:
            raise PrimitiveError(f"{what} has {len(value):,} characters; ids have at most {MAX_ID_CHARS:,}")
        return value
    kind = "an empty text" if value == "" else type(value).__name__
    hint = "; take one passage of the list, such as passages[0]" if isinstance(value, list | tuple) else ""
    raise PrimitiveError(f"{what} must be a Passage or its id, got {kind}{hint}")
