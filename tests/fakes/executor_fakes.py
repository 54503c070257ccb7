"""A small library that needs no files and can be told to fail or to hang."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from rpl.core.errors import PrimitiveError, RetrieverError
from rpl.core.records import Passage


@dataclass
class FakeResult:
    passages: tuple[Passage, ...]
    cached: bool = False


@dataclass
class FakeLibrary:
    """Passages p0 … p99; a search gives the first k, with scores that depend on the primitive.

    `faults` makes the next calls fail, `hang_s` makes every call slow.
    """

    faults: int = 0
    hang_s: float = 0.0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def passage(self, number: int, score: float = 0.0, rank: int = 0) -> Passage:
        return Passage(f"p{number}", f"Title {number}", f"Text of passage {number}.", score, rank)

    def call(self, name: str, args: dict[str, Any]) -> FakeResult:
        with self.lock:
            self.calls.append((name, args))
            fail = self.faults > 0
            self.faults -= fail
        time.sleep(self.hang_s)
        if fail:
            raise RetrieverError("index is gone")
        if name == "dense":
            raise PrimitiveError("dense is not available in this library")
        if name == "read":
            number = args["passage_id"].removeprefix("p")
            if not number.isdigit():
                raise PrimitiveError(f"read: there is no passage with id {args['passage_id']!r}")
            return FakeResult((self.passage(int(number)),))
        if name == "rerank":
            ids = list(reversed(args["passages"]))[: args["k"]]
            return FakeResult(tuple(self.passage(int(i[1:]), -r, r) for r, i in enumerate(ids)))
        if not args.get("query", "a passage").strip():
            return FakeResult(())
        return FakeResult(tuple(self.passage(i, 1.0 / (1 + i), i) for i in range(args["k"])))
