"""The worker process: reads jobs from standard input, runs each program, writes what happened to standard output.

Started by `pool` with a scrubbed environment. One worker runs many programs, one after the other; each starts with
fresh globals. The parent kills it at the wall-clock limit, when its memory limit was hit, and after many programs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from rpl.errors import PrimitiveError
from rpl.executors.hardening import harden, install_audit_hook, limit_cpu
from rpl.executors.primitives import Host, ProgramLimits
from rpl.executors.protocol import decode, encode
from rpl.executors.restricted import Outcome, current_line, run_program
from rpl.types import Passage, TraceError

_FALLBACK = TraceError("budget_memory", "the program needs more memory than it may use")


class PipeHost(Host):
    """Serves a program through the pipes to the parent.

    Attributes:
        journal: What happened since the last message, in order.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self.reader = reader
        self.writer = writer
        self.journal: list[dict[str, Any]] = []

    def call(self, name: str, args: dict[str, Any]) -> list[Passage]:
        """See `Host.call`; blocks until the parent replies."""
        self.send({"type": "call", "name": name, "args": args, "line": current_line()})
        reply = decode(self.reader.readline())
        if "error" in reply:
            raise PrimitiveError(reply["error"])
        return [Passage(*row) for row in reply["passages"]]

    def record(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> None:
        """See `Host.record`."""
        ids = [p.id for p in results]
        self.journal.append({"call": name, "args": args, "result_ids": ids, "line": current_line()})

    def print_text(self, text: str) -> None:
        """See `Host.print_text`."""
        self.journal.append({"text": text})

    def print_passage(self, passage: Passage) -> None:
        """See `Host.print_passage`."""
        self.journal.append({"passage": passage.id})

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message together with the journal."""
        self.writer.write(encode({**message, "journal": self.journal}))
        self.writer.flush()
        self.journal = []


def serve(reader: BinaryIO, writer: BinaryIO) -> None:
    """Runs jobs until the reader is at its end."""
    start = decode(reader.readline())
    wall_s = start["wall_s"]
    limits = ProgramLimits(**start["limits"])
    seal = install_audit_hook()
    gc.collect()
    gc.freeze()  # what is loaded now is never garbage: collections during programs only look at their values
    harden(start["memory_mb"])
    writer.write(encode({"type": "ready"}))
    writer.flush()
    while line := reader.readline():
        job = decode(line)
        host = PipeHost(reader, writer)
        limit_cpu(wall_s)
        try:
            outcome = run_program(job["source"], job["question"], limits, host, seal)
        except MemoryError:
            outcome = Outcome(_FALLBACK, 0)
        error = outcome.error
        failure = None if error is None else {"kind": error.kind, "message": error.message, "line": error.line}
        host.send({"type": "done", "error": failure, "fuel": outcome.fuel})


def main() -> None:
    """Takes over the standard streams and serves; standard output is the protocol and nothing else."""
    reader, writer = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    sys.stdin = sys.stdout = None
    serve(reader, writer)
