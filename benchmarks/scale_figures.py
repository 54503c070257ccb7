"""What the scale benchmark measures in a process: recall, percentiles of times, and memory by kind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = {"rss": "VmRSS", "anonymous": "RssAnon", "mapped": "RssFile"}
_EVERY_S = 0.005


def recall(places: NDArray[Any], truth: NDArray[Any], k: int) -> tuple[float, float]:
    """Returns the mean share of the exact first `k` that was found, and its standard error.

    Args:
        places: What was found, best first, of shape (queries, at least k); -1 where there was nothing more.
        truth: Exact results, of shape (queries, at least k).
        k: How many count.

    >>> recall(np.array([[1, 2, 9], [4, 5, -1]]), np.array([[2, 1, 3], [5, 6, 7]]), 2)
    (0.75, 0.25)
    """
    shares = [len(set(a[:k].tolist()) & set(b[:k].tolist())) / k for a, b in zip(places, truth, strict=True)]
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return float(np.mean(shares)), error


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Returns median and 95th percentile of times, in ms."""
    median, high = (1000 * np.quantile(seconds, q) for q in (0.5, 0.95))
    return {"median_ms": round(float(median), 4), "p95_ms": round(float(high), 4)}


def resident() -> dict[str, int]:
    """Returns the resident memory of this process in bytes: all of it, and of that anonymous and mapped from files.

    Anonymous memory is the process' own. Pages of mapped files belong to the system, which shares them between
    processes and may take them back.
    """
    found = {}
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    for kind, name in _KINDS.items():
        found[kind] = int(lines[name].split()[0]) * 1024
    return found


def mapped(files: Iterable[Path]) -> int:
    """Returns how many bytes of files are resident in this process' mappings of them."""
    names = {str(path.resolve()) for path in files}
    total, counted = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            words = line.split(maxsplit=5)
            if not words[0].endswith(":"):  # the head of a mapping; the lines below it say how much of it there is
                counted = len(words) == 6 and words[5].rstrip("\n") in names
            elif counted and words[0] == "Rss:":
                total += int(words[1]) * 1024
    return total


class PeakMemory:
    """Watches this process' memory; a context manager."""

    def __init__(self) -> None:
        self.start = resident()
        """Where it stood when watching began, in bytes."""
        self.peak = dict(self.start)
        """The highest of each kind since then; what lasts less than 5 ms may be missed."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        for kind, size in resident().items():
            self.peak[kind] = max(self.peak[kind], size)


def files_of(*places: Path) -> list[Path]:
    """Returns the files among some paths and in the folders among them."""
    return [f for place in places for f in ([place] if place.is_file() else sorted(place.rglob("*"))) if f.is_file()]


def drop_from_cache(files: Iterable[Path]) -> None:
    """Asks the system to forget the pages of files, so that the next reader has to fetch them from disk."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_cache(files: Iterable[Path]) -> None:
    """Reads files from end to end, so that the system holds their pages, as far as memory goes."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
