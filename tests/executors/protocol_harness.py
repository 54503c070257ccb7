"""What must hold when the parent reads the messages of a worker, whatever the worker wrote.

An input is what a hostile worker writes, byte for byte. It goes through the real reader (`Worker.receive`, over a
pipe), the real parser and the real session. `protocol_fuzz` searches for bytes that break a promise of `check`; the
files of `protocol_corpus`, its seeds and every input that once failed, run as a normal test.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpl.core.records import Passage, to_dict
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.process import Worker
from rpl.executors.parent.service import LibraryService
from rpl.executors.parent.session import Session
from rpl.executors.protocol import MAX_PRINTED_CHARS, MAX_PRINTED_ITEMS, REMOTE

CORPUS = Path(__file__).with_name("protocol_corpus")
LIMITS = ExecutionLimits(calls=4, passages=12, fuel=100, wall_s=5.0)
MAX_INPUT_BYTES = 1 << 16
"""What a pipe holds, so that one thread can write and read it."""


class Result:
    """What the library answers."""

    cached = False

    def __init__(self, passages: tuple[Passage, ...]) -> None:
        self.passages = passages


class Library:
    """Answers every call with four passages; refuses arguments that no checked call can have."""

    def call(self, name: str, args: Mapping[str, Any]) -> Result:
        assert name in REMOTE
        json.dumps(args).encode()
        for value in args.values():
            assert value is None or type(value) in (str, int, list)
        return Result(tuple(Passage(f"p{i}", f"T{i}", "text", 0.5, i) for i in range(4)))


class EndedProcess:
    """A process that has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit status."""
        return 1


class HostileWorker(Worker):
    """A worker whose output is given; reading it is the code of `Worker`."""

    def __init__(self, output: bytes) -> None:
        self._out, writer = os.pipe()
        os.write(writer, output[:MAX_INPUT_BYTES])
        os.close(writer)
        self._buffer = b""
        self.process = EndedProcess()  # type: ignore[assignment]
        self._readable = select.poll()
        self._readable.register(self._out, select.POLLIN)

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Takes anything; what the parent says must be JSON."""
        json.dumps(message)

    def processor_s(self) -> float | None:
        """Nothing is known of it."""
        return None

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._out)


def check(output: bytes) -> Session:
    """Reads what a worker wrote and asserts what must hold for any bytes.

    Returns:
        The session as it ended.
    """
    worker = HostileWorker(output)
    try:
        session = Session(worker, LibraryService(Library()), LIMITS)  # type: ignore[arg-type]
        session.run("source", "question")
    finally:
        worker.close()
    assert session.infra_error is None
    assert len(session.calls) <= LIMITS.calls
    assert len(session.items) <= MAX_PRINTED_ITEMS
    assert sum(len(item) for item in session.items if isinstance(item, str)) <= MAX_PRINTED_CHARS
    assert 0 <= session.fuel <= LIMITS.fuel
    fetched = {i for call in session.calls if call.name in REMOTE for i in call.result_ids}
    assert all(item.id in fetched for item in session.items if isinstance(item, Passage))
    assert all(set(call.result_ids) <= fetched for call in session.calls)
    record = [to_dict(session.calls), to_dict(session.error), [i for i in session.items if isinstance(i, str)]]
    json.dumps(record, ensure_ascii=False, allow_nan=False).encode()  # what is kept can be written to a file
    if session.error is not None:
        assert session.error.kind.isascii()
        assert session.retire or session.error.kind not in ("worker_died", "budget_memory", "timeout")
    return session
