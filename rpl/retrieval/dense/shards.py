"""Shares numbered pieces of work among processes: each is done once; a killed process's piece is done again.

One file holds a byte a piece, 1 when it is done. Who works on a piece holds the lock of its byte, which the system
frees when the process ends, however it ends. Locks belong to processes, not to threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from rpl.core.files import write_bytes


class Shards:
    """The state of shared work, open; a context manager.

    Args:
        path: Made by `create`.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)
        self.count = os.fstat(self._file.fileno()).st_size

    @staticmethod
    def create(path: Path, count: int) -> None:
        """Writes the state of work that nobody has begun, unless there is a state already."""
        if not path.exists():
            write_bytes(path, bytes(count))

    def __enter__(self) -> Shards:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._file.close()

    def done(self) -> list[bool]:
        """Tells of each piece whether it is done, by whomever."""
        return [bool(byte) for byte in os.pread(self._file.fileno(), self.count, 0)]

    def take(self) -> Iterator[int]:
        """Yields pieces to do now, one after the other, until all are done; waits for those that others work on.

        A piece counts as done when the next is asked for, and not if the loop ends before that.
        """
        for wait in (False, True):
            for number in range(self.count):
                if self._is_done(number) or not self._lock(number, wait):
                    continue
                try:
                    if not self._is_done(number):
                        yield number
                        os.pwrite(self._file.fileno(), b"\1", number)
                finally:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def _is_done(self, number: int) -> bool:
        return os.pread(self._file.fileno(), 1, number) == b"\1"

    def _lock(self, number: int, wait: bool) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True
