"""The primitives as a program sees them: argument checks, budgets, and the record of every call.

`bm25`, `dense`, `rerank`, `read` and `links` are served by the host; `fuse` and `unique` are computed here. Bad
arguments raise `PrimitiveError` with what is allowed. Standard library only: the worker imports this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rpl.core.errors import BudgetExceeded, PrimitiveError
from rpl.core.records import Passage
from rpl.executors.runtime.fuel import Fuel
from rpl.executors.runtime.values import ProgramPassage, as_program_passage
from rpl.programs.grammar import PRIMITIVES
from rpl.retrieval.base import MAX_K, MAX_QUERY_CHARS
from rpl.retrieval.fusion import reciprocal_rank_fusion, unique

MAX_ID_CHARS = 1_000
"""Longest passage id."""

F = TypeVar("F", bound=Callable[..., Any])


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


_PLAIN: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    name: (tuple(parameters), {p.name: p.default for p in parameters.values() if p.default is not p.empty})
    for name, parameters in ((name, signature.parameters) for name, signature in PRIMITIVES.items())
    if all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
}
"""Names and defaults of the primitives with a fixed number of arguments; `Signature.bind` takes ten times as long."""


class Primitives:
    """The primitives of one run of one program."""

    def __init__(self, host: Host, limits: ProgramLimits, fuel: Fuel) -> None:
        self.host = host
        self.limits = limits
        self.fuel = fuel
        self.calls = 0
        self.fetched = 0

    def names(self) -> dict[str, Any]:
        """Returns the primitives under their names; exactly those of the grammar."""
        return {name: self._checked(name, getattr(self, f"_{name}")) for name in PRIMITIVES}

    def _checked(self, name: str, function: F) -> Callable[..., Any]:
        signature = PRIMITIVES[name]
        names, defaults = _PLAIN.get(name, ((), {}))
        wanted = frozenset(names)

        def primitive(*args: Any, **kwargs: Any) -> Any:
            self.fuel.burn()
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            once = len(args) <= len(names) and kwargs.keys().isdisjoint(names[: len(args)])
            if wanted and once and given.keys() == wanted:
                return function(**given)
            try:  # an error, or a signature that takes any number of values
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise PrimitiveError(f"{name}: {error}; it is called as {name}{signature}") from None
            bound.apply_defaults()
            return function(**bound.arguments)

        return primitive

    def _bm25(self, query: Any, k: Any) -> list[ProgramPassage]:
        return self._search("bm25", query, k)

    def _dense(self, query: Any, k: Any) -> list[ProgramPassage]:
        return self._search("dense", query, k)

    def _search(self, name: str, query: Any, k: Any) -> list[ProgramPassage]:
        return self._remote(name, {"query": _query(name, query), "k": _k(name, k)})

    def _rerank(self, query: Any, passages: Any, k: Any) -> list[ProgramPassage]:
        query = _query("rerank", query)
        candidates = self._passages(passages, "rerank: passages")
        if k is not None:
            k = _k("rerank", k)
        return self._remote("rerank", {"query": query, "passages": [p.id for p in candidates], "k": k})

    def _read(self, passage_id: Any) -> ProgramPassage:
        identifier = _identifier("read: passage_id", passage_id)
        found = self._remote("read", {"passage_id": identifier})
        if not found:
            raise PrimitiveError(f"read: there is no passage with id {identifier!r}")
        return found[0]

    def _links(self, passage: Any, k: Any) -> list[ProgramPassage]:
        return self._remote("links", {"passage": _identifier("links: passage", passage), "k": _k("links", k)})

    def _fuse(self, lists: tuple[Any, ...], k: Any) -> list[ProgramPassage]:
        if not lists:
            raise PrimitiveError("fuse: give at least one list of passages, as in fuse(bm25(q), dense(q))")
        ranked = [self._passages(each, f"fuse: list {number}") for number, each in enumerate(lists, start=1)]
        if k is not None:
            k = _k("fuse", k)
        fused = reciprocal_rank_fusion(ranked, k)
        return self._local("fuse", {"lists": [[p.id for p in each] for each in ranked], "k": k}, fused)

    def _unique(self, passages: Any) -> list[ProgramPassage]:
        if isinstance(passages, str | Passage | dict):
            unique(passages)  # type: ignore[arg-type]  # raises with its own words
        values = list(self.fuel.steps(passages)) if hasattr(passages, "__iter__") else passages
        kept = unique(values)
        return self._local("unique", {"passages": [p.id for p in values]}, kept)

    def _passages(self, value: Any, what: str) -> list[Passage]:
        if isinstance(value, list | tuple) and any(isinstance(item, list | tuple) for item in value):
            raise PrimitiveError(
                f"{what} must hold passages only, got a list; join lists with + or give them one by one"
            )
        if hasattr(value, "__iter__") and not isinstance(value, str | Passage | dict):
            value = list(self.fuel.steps(value))
        return unique(value, caller=what)

    def _count_call(self) -> None:
        self.calls += 1
        if self.calls > self.limits.calls:
            raise BudgetExceeded("calls", f"the program made more than {self.limits.calls} primitive calls")

    def _remote(self, name: str, args: dict[str, Any]) -> list[ProgramPassage]:
        self._count_call()
        results = [as_program_passage(p) for p in self.host.call(name, args)]
        self.fetched += len(results)
        if self.fetched > self.limits.passages:
            raise BudgetExceeded("passages", f"the program fetched more than {self.limits.passages} passages")
        return results

    def _local(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> list[ProgramPassage]:
        self._count_call()
        self.host.record(name, args, results)
        return [as_program_passage(p) for p in results]


def _query(name: str, value: Any) -> str:
    if isinstance(value, Passage):
        raise PrimitiveError(f"{name}: query must be a text, got a Passage; use .title or .text")
    if type(value) is not str:
        raise PrimitiveError(f"{name}: query must be a text, got {type(value).__name__}")
    if not value.strip():
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
