"""One run of one program on one worker, seen from the parent: serves calls, collects what happened, keeps the deadline.

The worker is not trusted. Budgets are counted here a second time, primitives are checked against a list, and a passage
counts as printed only if this run fetched it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rpl.errors import PrimitiveError, ProgramTimeout, RetrieverError, WorkerDied
from rpl.executors.base import ExecutionLimits
from rpl.executors.pool import Worker, WorkerGone, WorkerTimeout
from rpl.executors.protocol import LOCAL, MAX_PRINTED_ITEMS, REMOTE, pack_passages
from rpl.executors.service import LibraryService, ServiceTimeout
from rpl.types import Passage, PrimitiveCall, TraceError


@dataclass
class Session:
    """What one run did so far.

    Attributes:
        retire: Whether the worker must not be used again.
    """

    worker: Worker
    service: LibraryService
    limits: ExecutionLimits
    items: list[Passage | str] = field(default_factory=list)
    calls: list[PrimitiveCall] = field(default_factory=list)
    error: TraceError | None = None
    infra_error: str | None = None
    fuel: int = 0
    retire: bool = False
    died: bool = False
    _known: dict[str, Passage] = field(default_factory=dict)
    _fetched: int = 0
    _remote_calls: int = 0

    def run(self, source: str, question: str) -> None:
        """Runs a program to its end or to the deadline, whichever comes first; never raises for what it does."""
        deadline = time.monotonic() + self.limits.wall_s
        try:
            self.worker.send({"type": "job", "source": source, "question": question}, deadline)
            while (message := self.worker.receive(deadline)).get("type") == "call":
                self._read_journal(message)
                self.worker.send(self._serve(message, deadline), deadline)
            self._finish(message)
        except WorkerTimeout:
            self._fail(ProgramTimeout.kind, f"the program ran longer than {self.limits.wall_s:g} s and was stopped")
        except WorkerGone as error:
            self.died = True
            self._fail(WorkerDied.kind, f"the program brought its worker down: {error}")
        except RetrieverError as error:
            self.infra_error = f"retrieval failed: {error}"
            self.retire = True

    def _fail(self, kind: str, message: str) -> None:
        self.error = TraceError(kind, message)
        self.retire = True

    def _serve(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        name, args, line = message.get("name"), message.get("args"), _line(message.get("line"))
        self._remote_calls += 1
        over = self._remote_calls > self.limits.calls or self._fetched > self.limits.passages
        if name not in REMOTE or not isinstance(args, dict) or over:
            raise WorkerGone("it asked for a call that it may not make")
        started = time.monotonic()
        try:
            result = self.service.call(name, args, deadline)
        except PrimitiveError as error:
            self.calls.append(PrimitiveCall(name, args, (), line, time.monotonic() - started))
            return {"type": "reply", "error": error.message}
        except ServiceTimeout:
            waited = time.monotonic() - started
            if waited > self.limits.wall_s / 2:  # one call ate most of the time: that is no property of the program
                raise RetrieverError(f"{name} gave no answer for {waited:.1f} s") from None
            raise WorkerTimeout from None
        seconds = time.monotonic() - started
        passages = result.passages
        self._fetched += len(passages)
        for passage in passages:
            self._known.setdefault(passage.id, passage)
        ids = tuple(p.id for p in passages)
        self.calls.append(PrimitiveCall(name, args, ids, line, seconds, result.cached))
        return {"type": "reply", "passages": pack_passages(passages)}

    def _finish(self, message: dict[str, Any]) -> None:
        self._read_journal(message)
        failure, fuel = message.get("error"), message.get("fuel")
        if message.get("type") != "done" or not isinstance(fuel, int):
            raise WorkerGone("its message is of an unknown type")
        self.fuel = fuel
        if failure is not None:
            if not isinstance(failure, dict):
                raise WorkerGone("its error is malformed")
            kind = str(failure.get("kind"))
            self.error = TraceError(kind, str(failure.get("message")), _line(failure.get("line")))
            self.retire = kind == "budget_memory"  # its heap is torn; a fresh process costs less than a doubt

    def _read_journal(self, message: dict[str, Any]) -> None:
        journal = message.get("journal")
        if not isinstance(journal, list):
            raise WorkerGone("its message has no journal")
        for entry in journal:
            match entry:
                case {"text": str(text)} if len(self.items) < MAX_PRINTED_ITEMS:
                    self.items.append(text)
                case {"passage": str(identifier)} if len(self.items) < MAX_PRINTED_ITEMS:
                    self.items.append(self._passage(identifier))
                case {"call": str(name), "args": dict(args), "result_ids": list(ids)} if name in LOCAL:
                    self._check_local(ids)
                    self.calls.append(PrimitiveCall(name, args, tuple(ids), _line(entry.get("line"))))
                case _:
                    raise WorkerGone("its journal is malformed")

    def _check_local(self, ids: Sequence[Any]) -> None:
        if len(self.calls) >= self.limits.calls:
            raise WorkerGone("it noted more calls than it may make")
        for identifier in ids:
            self._passage(identifier)

    def _passage(self, identifier: Any) -> Passage:
        passage = self._known.get(identifier) if isinstance(identifier, str) else None
        if passage is None:
            raise WorkerGone("it names a passage that it did not fetch")
        return passage


def _line(value: Any) -> int | None:
    return value if isinstance(value, int) else None
