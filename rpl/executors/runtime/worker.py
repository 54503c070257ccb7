"""The worker process: reads jobs from standard input, runs each program, writes what happened to standard output.

Started by `pool` with a scrubbed environment. One worker runs many programs, one after the other; each starts with
fresh globals. The parent kills it at the wall-clock limit, when its memory limit was hit, and after many programs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, BinaryIO

from rpl.core.errors import PrimitiveError
from rpl.core.records import Passage, TraceError
from rpl.executors.isolation.hardening import Seal, forget_native_calls, harden, install_audit_hook, limit_cpu
from rpl.executors.isolation.layers import Report
from rpl.executors.protocol import encode
from rpl.executors.runtime.primitives import Host, ProgramLimits
from rpl.executors.runtime.restricted import Outcome, current_line, run_program
from rpl.executors.runtime.values import ProgramPassage

RunProgram = Callable[[str, str, ProgramLimits, Host, Seal], Outcome]
"""Runs a program: source, question, budgets, what serves it, and the seal to put around it; see `run_program`."""

Start = Mapping[str, Any]
"""The `start` message: budgets, and what to give up."""

_OUT_OF_MEMORY = TraceError("budget_memory", "the program needs more memory than it may use")


class PipeHost(Host):
    """Serves a program through the pipes to the parent.

    Attributes:
        journal: What happened since the last message, in order.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, line: Callable[[], int | None]) -> None:
        self.reader = reader
        self.writer = writer
        self.line = line
        self.journal: list[dict[str, Any]] = []

    def call(self, name: str, args: dict[str, Any]) -> list[ProgramPassage]:
        """See `Host.call`; blocks until the parent replies."""
        self.send({"type": "call", "name": name, "args": args, "line": self.line()})
        reply = json.loads(self.reader.readline().decode("ascii"))
        if "error" in reply:
            raise PrimitiveError(reply["error"])
        return [ProgramPassage(*row) for row in reply["passages"]]

    def record(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> None:
        """See `Host.record`."""
        ids = [p.id for p in results]
        self.journal.append({"call": name, "args": args, "result_ids": ids, "line": self.line()})

    def print_text(self, text: str, ends: bool = True) -> None:
        """See `Host.print_text`."""
        self.journal.append({"text" if ends else "part": text})

    def print_passage(self, passage: Passage) -> None:
        """See `Host.print_passage`."""
        self.journal.append({"passage": passage.id})

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message together with the journal."""
        self.writer.write(encode({**message, "journal": self.journal}))
        self.writer.flush()
        self.journal = []


def _give_up(start: Start) -> Report:
    return harden(start["memory_mb"])


def serve(
    run: RunProgram, line: Callable[[], int | None] = current_line, give_up: Callable[[Start], Report] = _give_up
) -> None:
    """Takes over the standard streams, hardens the process, and runs jobs until standard input is at its end.

    Everything that `run` needs must be loaded before: no file can be opened and no thread started afterwards.

    Args:
        run: Runs one program.
        line: Returns the line of the program that is being executed.
        give_up: Hardens the process, as the start message says; see `hardening.harden`.
    """
    reader, writer = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    start = json.loads(reader.readline())
    limits = ProgramLimits(**start["limits"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent then sees what ended the process
    report = give_up(start)
    forget_native_calls()
    sys.stdin = sys.stdout = sys.stderr = None  # the protocol and nothing else; the error stream is closed
    seal = install_audit_hook()
    gc.collect()
    gc.freeze()  # what is loaded now is never garbage: collections during programs only look at their values
    writer.write(encode({"type": "ready", "layers": {"audit_hook": None, **report}}))
    writer.flush()
    while data := reader.readline():
        job = json.loads(data)
        host = PipeHost(reader, writer, line)
        limit_cpu(start["wall_s"])
        try:
            outcome = run(job["source"], job["question"], limits, host, seal)
        except MemoryError:
            outcome = Outcome(_OUT_OF_MEMORY, 0)
        error = outcome.error
        failure = None if error is None else asdict(error)
        done = {"type": "done", "error": failure, "fuel": outcome.fuel}
        try:
            host.send(done)
        except MemoryError:  # what it printed takes more memory than it left
            host.journal.clear()
            host.send(done | {"error": asdict(_OUT_OF_MEMORY)})
        del host
        gc.collect()  # what the program held in circles is not the next one's burden


_WARM_UP = (
    "'\\N{BULLET} \\\\d\\u00a0'\nprint(f'{len([1])}', 1.5, 'Ä'.casefold(), int('7'), round(2.5, 1), {None, 'a'})",
    "def f(x):\n    '\\\\d'\n    return x\nprint(unique([]), f(1), bm25(''), prnit)",
    "print(",
    "import os",
    "{[]}",
)
"""Programs that take each way through the interpreter once, so that it loads what it loads late while it still can."""


class _Nowhere(Host):
    """Serves the programs that warm a worker up."""

    def call(self, name: str, args: dict[str, Any]) -> list[ProgramPassage]:
        return []

    def record(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> None:
        return

    def print_text(self, text: str, ends: bool = True) -> None:
        return

    def print_passage(self, passage: Passage) -> None:
        return


def main() -> None:
    """The main module of worker processes."""
    for source in _WARM_UP:
        run_program(source, "", ProgramLimits(9, 9, 999, 999), _Nowhere())
    serve(partial(run_program, collect=gc.collect))
