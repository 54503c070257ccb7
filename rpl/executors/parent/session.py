"""One run of one program on one worker, seen from the parent: serves calls, collects what happened, keeps the deadline.

The worker is not trusted. Budgets are counted here a second time, primitives and their arguments are checked, and a
passage counts as printed only if this run fetched it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rpl.core.errors import PrimitiveError, ProgramTimeout, RetrieverError, WorkerDied
from rpl.core.records import Passage, PrimitiveCall, TraceError
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent import requests
from rpl.executors.parent.process import Worker, WorkerGone, WorkerTimeout
from rpl.executors.parent.service import LibraryService, ServiceTimeout
from rpl.executors.parent.threads import LeftBehind
from rpl.executors.protocol import LOCAL, MAX_LISTED, MAX_PRINTED_CHARS, MAX_PRINTED_ITEMS, REMOTE, clean, pack_passages

STARVED = 0.9
"""A program is not blamed for a timeout if its worker was without processor time for this share of the limit: what is
left is more than the fuel of a program pays for."""


@dataclass(kw_only=True)
class Result:
    """What one run did so far.

    Attributes:
        items: What it printed: passages, and lines of text.
        interrupted: How something outside ended or stopped the worker, so that nothing is known about the program.
    """

    items: list[Passage | str] = field(default_factory=list)
    calls: list[PrimitiveCall] = field(default_factory=list)
    error: TraceError | None = None
    infra_error: str | None = None
    fuel: int = 0
    interrupted: str = ""


@dataclass
class Session(Result):
    """One run of one program.

    Attributes:
        retire: Whether the worker must not be used again.
        look_at: When the run, or the primitive that is being served, must be over; on the monotonic clock, in seconds.
    """

    worker: Worker
    service: LibraryService
    limits: ExecutionLimits
    retire: bool = False
    look_at: float = float("inf")
    _known: dict[str, Passage] = field(default_factory=dict)
    _fetched: int = 0
    _line: list[str] = field(default_factory=list)
    _prints: int = 0
    _chars: int = 0
    _ids: int = 0
    _waited: float = 0.0
    _processor_s: float | None = None
    _deadline: float = float("inf")
    _serving: str = ""
    _since: float = 0.0
    _left_behind: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def run(self, source: str, question: str) -> None:
        """Runs a program to its end or to the deadline, whichever comes first; never raises for what it does."""
        self.look_at = self._deadline = time.monotonic() + self.limits.wall_s
        self._processor_s = self.worker.processor_s()
        try:
            self._send({"type": "job", "source": source, "question": question})
            while (message := self._receive()).get("type") == "call":
                self._read_journal(message)
                self._send(self._serve(message))
            self._finish(message)
        except WorkerTimeout:
            self._run_out()
        except WorkerGone as error:
            self.interrupted = str(error) if error.outside else ""
            self._fail(WorkerDied.kind, f"the program brought its worker down: {error}")
        except RetrieverError as error:
            self.infra_error = f"retrieval failed: {error}"
            self.retire = True
        self._end_line()

    def give_up(self) -> bool:
        """Settles the run from outside if the library has not answered in time; its own thread then ends in `_resume`.

        Returns:
            Whether it did; from then on the caller alone may use the session and its worker.
        """
        with self._turn:
            if not self._serving or time.monotonic() < self.look_at:
                return False
            self._left_behind = True
        try:
            self._no_answer(self._serving)
        except RetrieverError as error:
            self.infra_error = f"retrieval failed: {error}"
        except WorkerTimeout:
            self._run_out()
        self._end_line()
        return True

    def _send(self, message: dict[str, Any]) -> None:
        since = time.monotonic()
        try:
            self.worker.send(message, self._deadline)
        finally:
            self._waited += time.monotonic() - since

    def _receive(self) -> dict[str, Any]:
        since = time.monotonic()
        try:
            return self.worker.receive(self._deadline)
        finally:
            self._waited += time.monotonic() - since

    def _run_out(self) -> None:
        before, now = self._processor_s, self.worker.processor_s()
        if before is not None and now is not None and self._waited - (now - before) > STARVED * self.limits.wall_s:
            used = f"{now - before:.1f} s of processor time in {self._waited:.1f} s"
            self.interrupted = f"a worker was stopped or starved: it had {used}"
        self._fail(ProgramTimeout.kind, f"the program ran longer than {self.limits.wall_s:g} s and was stopped")

    def _fail(self, kind: str, message: str) -> None:
        self.error = TraceError(kind, message)
        self.retire = True

    def _serve(self, message: dict[str, Any]) -> dict[str, Any]:
        name = message.get("name")
        over = len(self.calls) >= self.limits.calls or self._fetched > self.limits.passages
        if type(name) is not str or name not in REMOTE or over:
            raise WorkerGone("it asked for a call that it may not make")
        self._count_ids(requests.length(name, message.get("args")))
        args = requests.arguments(name, message.get("args"), self._known)
        line = requests.line_number(message.get("line"))
        started = self._since = time.monotonic()
        self.look_at = min(self._deadline, started + self.limits.call_s)
        self._serving = name
        try:
            try:
                result = self.service.call(name, args, self.look_at)
            finally:
                self._resume()
        except PrimitiveError as error:
            self.calls.append(PrimitiveCall(name, args, (), line, time.monotonic() - started))
            return {"type": "reply", "error": error.message}
        except ServiceTimeout:
            self._no_answer(name)
        seconds = time.monotonic() - started
        passages = result.passages
        self._fetched += len(passages)
        for passage in passages:
            self._known.setdefault(passage.id, passage)
        ids = tuple([p.id for p in passages])
        self.calls.append(PrimitiveCall(name, args, ids, line, seconds, result.cached))
        return {"type": "reply", "passages": pack_passages(passages)}

    def _resume(self) -> None:
        """Takes the turn back after a primitive."""
        with self._turn:
            if self._left_behind:
                raise LeftBehind
            self._serving = ""
            self.look_at = self._deadline

    def _no_answer(self, name: str) -> NoReturn:
        waited = time.monotonic() - self._since
        if waited > min(self.limits.call_s, self.limits.wall_s / 2):
            # One call ate most of the time: that is no property of the program.
            raise RetrieverError(f"{name} gave no answer for {waited:.1f} s")
        raise WorkerTimeout

    def _finish(self, message: dict[str, Any]) -> None:
        self._read_journal(message)
        if message.get("type") != "done":
            raise WorkerGone("its message is of an unknown type")
        self.fuel = requests.fuel(message.get("fuel"), self.limits.fuel)
        self.error = requests.failure(message.get("error"))
        # Its heap is torn after that; a fresh process costs less than a doubt.
        self.retire = self.error is not None and self.error.kind == "budget_memory"

    def _read_journal(self, message: dict[str, Any]) -> None:
        journal = message.get("journal")
        if type(journal) is not list:
            raise WorkerGone("its message has no journal")
        for entry in journal:
            if time.monotonic() > self._deadline:
                raise WorkerTimeout
            match entry:
                case {"text": str(text), **more} if not more:
                    self._count_print(len(text))
                    self._line.append(clean(text))
                    self._end_line()
                case {"part": str(text), **more} if not more:
                    self._count_print(len(text))
                    self._line.append(clean(text))
                case {"passage": str(identifier), **more} if not more and identifier in self._known:
                    self._count_print(0)
                    self._end_line()
                    self.items.append(self._known[identifier])
                case {"call": str(name), "args": args, "result_ids": ids, "line": line, **more} if not more:
                    self._note(name, args, ids, line)
                case _:
                    raise WorkerGone("its journal is malformed")

    def _count_print(self, chars: int) -> None:
        self._chars += chars
        self._prints += 1
        if self._prints > MAX_PRINTED_ITEMS or self._chars > MAX_PRINTED_CHARS:
            raise WorkerGone("it printed more than it may")

    def _count_ids(self, number: int) -> None:
        self._ids += number
        if self._ids > MAX_LISTED:
            raise WorkerGone("it named more passages than it may")

    def _end_line(self) -> None:
        if self._line:
            self.items.append("".join(self._line))
            self._line.clear()

    def _note(self, name: str, args: Any, ids: Any, line: Any) -> None:
        if name not in LOCAL:
            raise WorkerGone("its journal is malformed")
        if len(self.calls) >= self.limits.calls:
            raise WorkerGone("it noted more calls than it may make")
        self._count_ids(requests.length(name, args) + (len(ids) if type(ids) is list else 0))
        checked = requests.arguments(name, args, self._known)
        results = tuple(requests.passage_ids(ids, self._known))
        self.calls.append(PrimitiveCall(name, checked, results, requests.line_number(line)))
