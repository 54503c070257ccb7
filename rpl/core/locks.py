"""A lock between processes, so that an index is built once and not twice at the same time."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_lock(folder: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock that belongs to a folder, which need not exist yet.

    The system frees the lock when its process ends, however it ends. The empty lock file stays behind: removing it
    would let two processes hold locks on two files of one name.

    Args:
        folder: The lock file lies beside it.
        on_wait: Called once if another process holds the lock.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
