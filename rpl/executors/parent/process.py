"""One worker process, seen from the parent: started, talked to with deadlines, killed.

POSIX only. Every read and write has a deadline, so a worker that hangs, floods or stops reading never holds the parent.
"""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import rpl
from rpl.core.errors import ExecutorError
from rpl.executors.protocol import MAX_LINE_BYTES, decode, encode

START_TIMEOUT_S = 60.0
"""How long a worker may take to start; generous, because a busy machine is no reason to fail."""

CHUNK_BYTES = 1 << 13
"""Bytes that are read at once: most messages fit, and room for more would be made in vain each time."""

SPIN_S = 100e-6
"""How long the parent looks for an answer before it goes to sleep. A program often asks for its next passage within
that time, and waking up would cost as much again: 0.12 ms a call without, 0.08 ms with it, where retrieval is free."""

PROGRAM_SIGNALS = frozenset(
    ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGTRAP", "SIGXCPU", "SIGXFSZ"]
)
"""Signals by which a program may end its worker: a crash, a forbidden call, its processor time. By any other, something
else has ended it: the system short of memory, an operator."""

MAIN_MODULE = "rpl.executors.runtime.worker"
"""The main module of worker processes: its `main()` takes over the standard streams and serves."""

_PROCESSOR_CLOCK = 2  # how Linux names the clock of another process: see clock_getcpuclockid(3)

_MAIN = "import sys; sys.path[:0] = sys.argv[2:]; import importlib; importlib.import_module(sys.argv[1]).main()"


class WorkerTimeout(Exception):  # noqa: N818 - the name says what happened
    """The worker sent no message before the deadline."""


class WorkerGone(Exception):  # noqa: N818 - the name says what happened
    """The worker ended, or sent something that is not a message.

    Attributes:
        outside: Whether it was ended by a signal that programs cannot bring about.
    """

    def __init__(self, message: str, outside: bool = False) -> None:
        super().__init__(message)
        self.outside = outside


class Worker:
    """One worker process.

    Args:
        start: The `start` message.
        main: Its main module.

    Attributes:
        layers: What holds it, by its own account before it saw any program; see `layers.Report`.

    Raises:
        ExecutorError: The process cannot be started or does not get ready; the message has what it wrote.
    """

    def __init__(self, start: Mapping[str, Any], main: str = MAIN_MODULE) -> None:
        # -S -s -P and a path of our own keep site packages' start-up code out; -I would make Python ignore the fixed
        # PYTHONHASHSEED, and with it the iteration order of sets would differ from worker to worker.
        options = ["-S", "-s", "-P", "-B", "-W", "ignore"]
        command = [sys.executable, *options, "-c", _MAIN, main, *_import_path(main)]
        environment = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the parent alone, and the whole session can be killed
            )
        except OSError as error:
            raise ExecutorError(f"a sandbox worker cannot be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.owner = os.getpid()
        self.programs = 0
        self.killed = False
        self._killing = threading.Lock()
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._buffer = b""
        os.set_blocking(self._in, False)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._in, select.POLLOUT)
        self._readable.register(self._out, select.POLLIN)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            self.send(start, deadline)
            ready = self.receive(deadline)
            if ready.get("type") != "ready" or not isinstance(ready.get("layers"), dict):
                raise WorkerGone("its first message is not `ready`")
        except (WorkerGone, WorkerTimeout) as error:
            detail = self.kill() or str(error)
            raise ExecutorError(f"a sandbox worker did not get ready: {detail}") from error
        self.layers: dict[str, str | None] = ready["layers"]
        assert self.process.stderr is not None
        self.process.stderr.close()  # the worker closed its end; what it has to say goes through the protocol

    @property
    def alive(self) -> bool:
        """Whether the process runs and belongs to this process (not to the parent of a fork)."""
        return self.owner == os.getpid() and self.process.poll() is None

    def processor_s(self) -> float | None:
        """Returns the processor time that the process has used, in seconds; `None` where the system does not tell."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | _PROCESSOR_CLOCK)
        except OSError:
            return None

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Sends a message; it is an error if the worker has sent one without being asked.

        Args:
            message: A JSON object.
            deadline: On the monotonic clock, in seconds.

        Raises:
            WorkerTimeout: The worker did not take it in time.
            WorkerGone: The worker ended, or spoke out of turn.
        """
        if self._buffer or any(events & select.POLLIN for _, events in self._readable.poll(0)):
            raise WorkerGone("it sent a message out of turn")
        data = memoryview(encode(message))
        while True:
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                raise self._ended(deadline) from error
            if not data:
                return
            self._wait(self._writable, deadline)

    def receive(self, deadline: float) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            WorkerTimeout: There was none before the deadline.
            WorkerGone: The worker ended or broke the protocol.
        """
        chunks = [self._buffer]
        size = len(self._buffer)
        spin_until = time.monotonic() + SPIN_S
        while not self._buffer and not self._readable.poll(0) and time.monotonic() < spin_until:
            pass
        while b"\n" not in chunks[-1]:
            self._wait(self._readable, deadline)
            chunk = os.read(self._out, CHUNK_BYTES)
            size += len(chunk)
            if not chunk:
                raise self._ended(deadline)
            if size > MAX_LINE_BYTES:
                raise WorkerGone("its message is too long")
            chunks.append(chunk)
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        try:
            message = decode(line)
        except ValueError as error:
            raise WorkerGone(f"its message is not JSON that the protocol allows ({error})"[:300]) from error
        if time.monotonic() > deadline:  # a message may be made so that it takes long to read
            raise WorkerTimeout
        return message

    def _ended(self, deadline: float) -> WorkerGone:
        patience = min(1.0, max(0.1, deadline - time.monotonic()))  # one that closed its pipes may not have ended
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=patience)
            if code >= 0:
                return WorkerGone(f"it ended (exit status {code})")
            name = _signal_name(-code)
            return WorkerGone(f"it ended ({name})", name not in PROGRAM_SIGNALS)
        return WorkerGone("it ended (output closed)")

    def kill(self) -> str:
        """Ends the process and everything in its session at once.

        Returns:
            The last line that it wrote to its error stream before it was ready, or an empty text.
        """
        process = self.process
        with self._killing:
            if self.killed:
                return ""
            self.killed = True
        if self.owner == os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        return self._close_pipes()

    def _close_pipes(self) -> str:
        written = b""
        error_stream = self.process.stderr
        if error_stream is not None and not error_stream.closed:
            os.set_blocking(error_stream.fileno(), False)
            written = error_stream.read(1 << 16) or b""
        for stream in (self.process.stdin, self.process.stdout, error_stream):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        lines = written.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _wait(self, poll: select.poll, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            raise WorkerTimeout


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _import_path(main: str) -> list[str]:
    """Returns the folders that the worker imports its main module, this package and RestrictedPython from."""
    paths = [Path(rpl.__file__).resolve().parents[1]]
    for package in ("RestrictedPython", main.partition(".")[0]):
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise ExecutorError(f"{package} is not installed; run: pip install 'RestrictedPython>=9.0,<10'")
        paths.append(Path(found.origin).resolve().parents[found.submodule_search_locations is not None])
    return list(dict.fromkeys(map(str, paths)))
