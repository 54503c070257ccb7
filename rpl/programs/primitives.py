"""The primitives of the language: one record each, from which everything else that knows primitives is derived.

Grammar, argument checks (in the sandbox, in its parent and in the library), prompt, documentation, mutation operators,
leak checks and costs read these records. A new primitive is an entry here and the function that serves it: a method
of `LocalLibrary` for what needs the corpus, an entry of `COMPUTED` in `rpl/retrieval/fusion.py` for what can be
computed from passages alone. Standard library only: the sandbox worker imports this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, Literal

MAX_RERANK = 200
"""The most passages that the library takes in one call."""
MAX_LISTS = 100
"""Most lists that one call takes."""
MAX_ID_CHARS = 1_000
"""Longest passage id."""

Kind = Literal["query", "count", "passage", "passages", "lists"]
"""What an argument is: a text to search for, a number of passages, a passage or its id, a
list of passages, or any number of such lists."""

REQUIRED = Parameter.empty
"""Default of an argument that must be given."""


@dataclass(frozen=True)
class Argument:
    """One argument of a primitive."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    """`REQUIRED`, a number, or `None` for as many as there are."""


@dataclass(frozen=True)
class Primitive:
    """A function of the language that finds, orders or joins passages."""

    name: str
    takes: tuple[Argument, ...]
    served_by: Literal["library", "worker"]
    """`library`: the parent process asks the library, which counts as a retrieval call. `worker`: it is a pure function
    of passages that the program holds, and costs no retrieval."""
    note: str
    """What it returns, in the words of the documented prompt."""
    returns: Literal["passages", "passage"] = "passages"
    full_text: bool = False
    """Whether a passage is found by its own text, so that health checks can ask for that."""

    @cached_property
    def signature(self) -> Signature:
        """How it is called; beside any number of lists, the other arguments must be given by name."""
        parameters: list[Parameter] = []
        for argument in self.takes:
            if argument.kind == "lists":
                parameters.append(Parameter(argument.name, Parameter.VAR_POSITIONAL))
            else:
                kind = Parameter.KEYWORD_ONLY if self.named("lists") else Parameter.POSITIONAL_OR_KEYWORD
                parameters.append(Parameter(argument.name, kind, default=argument.default))
        return Signature(parameters)

    @property
    def is_search(self) -> bool:
        """Whether it finds passages for a query, and needs none."""
        return self.served_by == "library" and {"query"} == {a.kind for a in self.takes} - {"count"}

    def passage_ids(self, args: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the ids of the passages that the lists among its arguments hold, given the JSON values of a call."""
        lists = [args.get(name, ()) for name in self.named("passages")]
        lists += [each for name in self.named("lists") for each in args.get(name, ())]
        return tuple(id_ for each in lists for id_ in each)

    def named(self, *kinds: Kind) -> tuple[str, ...]:
        """Returns the names of its arguments of some kinds."""
        return tuple(argument.name for argument in self.takes if argument.kind in kinds)


_QUERY = Argument("query", "query")
_PASSAGES = Argument("passages", "passages")
_TEN = Argument("k", "count", 10)
_ALL = Argument("k", "count", None)

_RECORDS = (
    Primitive("bm25", (_QUERY, _TEN), "library", "keyword search; a list of passages, best first", full_text=True),
    Primitive(
        "dense",
        (_QUERY, _TEN),
        "library",
        "nearest neighbours in the embedding space; a list of passages, best first",
        full_text=True,
    ),
    Primitive(
        "fuse",
        (Argument("lists", "lists"), _ALL),
        "worker",
        "joins several lists of passages by reciprocal rank",
    ),
    Primitive(
        "rerank",
        (_QUERY, _PASSAGES, _ALL),
        "library",
        "sorts a list of passages anew, most relevant to the query first",
    ),
    Primitive("read", (Argument("passage_id", "passage"),), "library", "the passage with this id", returns="passage"),
    Primitive(
        "links",
        (Argument("passage", "passage"), _TEN),
        "library",
        "passages whose title the text of a passage mentions",
    ),
    Primitive("unique", (_PASSAGES,), "worker", "the passages without repeats"),
)

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType({primitive.name: primitive for primitive in _RECORDS})
"""Name -> record."""

SERVED = tuple(name for name, primitive in PRIMITIVES.items() if primitive.served_by == "library")
"""What a library serves; a call of one costs retrieval."""
SEARCHES = tuple(name for name, primitive in PRIMITIVES.items() if primitive.is_search)
"""What finds passages for a query."""
FULL_TEXT = tuple(name for name in SEARCHES if PRIMITIVES[name].full_text)
"""What finds a passage by its own text."""
PASSAGE_LISTS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.returns == "passages")
"""What returns a list of passages."""
