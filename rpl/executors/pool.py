"""The parent's side of the workers: starts them, talks to them with deadlines, kills them, lends them out.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rpl
from rpl.errors import ExecutorError
from rpl.executors.protocol import MAX_LINE_BYTES, decode, encode

START_TIMEOUT_S = 60.0
"""How long a worker may take to start; generous, because a busy machine is no reason to fail."""

_MAIN = "import sys; sys.path[:0] = sys.argv[1:]; from rpl.executors.worker import main; main()"


class WorkerTimeout(Exception):  # noqa: N818 - the name says what happened
    """The worker sent no message before the deadline."""


class WorkerGone(Exception):  # noqa: N818 - the name says what happened
    """The worker ended, or sent something that is not a message."""


class Worker:
    """One worker process.

    Args:
        start: The `start` message.

    Raises:
        ExecutorError: The process cannot be started or does not get ready; the message has what it wrote.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        # -S -s -P and a path of our own keep site packages' start-up code out; -I would make Python ignore the fixed
        # PYTHONHASHSEED, and with it the iteration order of sets would differ from worker to worker.
        command = [sys.executable, "-S", "-s", "-P", "-B", "-W", "ignore", "-c", _MAIN, *_import_path()]
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
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._buffer = b""
        os.set_blocking(self._in, False)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            self.send(start, deadline)
            if self.receive(deadline).get("type") != "ready":
                raise WorkerGone("its first message is not `ready`")
        except (WorkerGone, WorkerTimeout) as error:
            detail = self.kill() or str(error)
            raise ExecutorError(f"a sandbox worker did not get ready: {detail}") from error

    @property
    def alive(self) -> bool:
        """Whether the process runs and belongs to this process (not to the parent of a fork)."""
        return self.owner == os.getpid() and self.process.poll() is None

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Sends a message.

        Args:
            message: A JSON object.
            deadline: On the monotonic clock, in seconds.

        Raises:
            WorkerTimeout: The worker did not take it in time.
            WorkerGone: The worker ended.
        """
        data = memoryview(encode(message))
        while data:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise WorkerGone(f"it ended ({self._exit_reason()})") from error

    def receive(self, deadline: float) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            WorkerTimeout: There was none before the deadline.
            WorkerGone: The worker ended or broke the protocol.
        """
        chunks = [self._buffer]
        size = len(self._buffer)
        while b"\n" not in chunks[-1]:
            self._wait(self._out, select.POLLIN, deadline)
            chunk = os.read(self._out, 1 << 16)
            size += len(chunk)
            if not chunk:
                raise WorkerGone(f"it ended ({self._exit_reason()})")
            if size > MAX_LINE_BYTES:
                raise WorkerGone("its message is too long")
            chunks.append(chunk)
        line, _, self._buffer = b"".join(chunks).partition(b"\n")
        try:
            return decode(line)
        except (ValueError, RecursionError) as error:
            raise WorkerGone("its message is not JSON") from error

    def _exit_reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=1.0)
            return signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return "output closed"

    def kill(self) -> str:
        """Ends the process and everything in its session at once.

        Returns:
            The last line that it wrote to its error stream, or an empty text.
        """
        process = self.process
        if process.stderr is None or process.stderr.closed:
            return ""
        if self.owner == os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        return self._close_pipes()

    def _close_pipes(self) -> str:
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        written = self.process.stderr.read(1 << 16) or b""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        lines = written.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            raise WorkerTimeout


def _import_path() -> list[str]:
    """Returns the folders that the worker imports this package and RestrictedPython from."""
    found = importlib.util.find_spec("RestrictedPython")
    if found is None or found.origin is None:
        raise ExecutorError("RestrictedPython is not installed; run: pip install 'RestrictedPython>=9.0,<10'")
    paths = [Path(rpl.__file__).resolve().parents[1], Path(found.origin).resolve().parents[1]]
    return list(dict.fromkeys(map(str, paths)))


class WorkerPool:
    """A fixed number of slots for workers; workers start on demand and are replaced when they were killed.

    Args:
        start: The `start` message of every worker.
        size: How many workers run at most.
        recycle_after: After how many programs a worker is replaced, which bounds what its process may accumulate.
    """

    def __init__(self, start: Mapping[str, Any], size: int, recycle_after: int) -> None:
        self._start = start
        self._recycle_after = recycle_after
        self._slots = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    @contextmanager
    def lend(self) -> Iterator[Worker]:
        """Lends a living worker; a dead, used-up or killed one is replaced at its next turn.

        Raises:
            ExecutorError: No worker can be started.
        """
        with self._slots:
            worker = self._take()
            try:
                yield worker
            except BaseException:
                worker.kill()
                raise
            self._give_back(worker)

    def _take(self) -> Worker:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return Worker(self._start)
            if worker.alive:
                return worker
            worker.kill()

    def _give_back(self, worker: Worker) -> None:
        worker.programs += 1
        if worker.programs < self._recycle_after and worker.alive:
            with self._lock:
                self._idle.append(worker)
        else:
            worker.kill()

    def close(self) -> None:
        """Ends all idle workers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()
