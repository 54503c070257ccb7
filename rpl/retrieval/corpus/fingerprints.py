"""The fingerprints of corpus files, remembered in the cache folder, so that a large file is not read each time.

A file counts as unchanged while its path, size, inode and times of change (of content and of its record, both in
nanoseconds) are the same.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import cache_dir, digest, write_json
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.corpus import Fingerprint, read_passages

_SETTLED_S = 2.0
"""A file that was changed so recently may change again without its time of change moving."""
_STEP = 1_000


class Reading:
    """Notes the state of a file before it is read, so that a change meanwhile is noticed.

    Args:
        path: A corpus file.

    Raises:
        DataError: There is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = _state(path)
        self._settled = time.time() - self._state["mtime_ns"] / 1e9 > _SETTLED_S

    def remember(self, fingerprint: str) -> None:
        """Stores what was read, if the file is still the same.

        Raises:
            DataError: It has changed while it was read.
        """
        if _state(self.path) != self._state:
            raise DataError(f"{self.path}: has changed while it was read; start again when it is whole")
        if self._settled:
            write_json(_memory(self.path), {**self._state, "fingerprint": fingerprint})


def known_fingerprint(path: Path) -> str | None:
    """Returns the fingerprint of a corpus file, where it has been read before and has not changed since."""
    try:
        known = json.loads(_memory(path).read_text(encoding="utf-8"))
        fingerprint = known.pop("fingerprint")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return str(fingerprint) if known == _state(path) else None


def file_fingerprint(path: Path) -> str:
    """Returns the fingerprint of the corpus in a file, as `Corpus.fingerprint` would be, without keeping its passages.

    Raises:
        DataError: The file is missing or damaged, or a line is wrong; the message names file, line and field.
    """
    known = known_fingerprint(path)
    if known is not None:
        return known
    reading, state = Reading(path), Fingerprint()
    with progress_bar(None, f"reading {path.name}", "passage") as bar:
        for count, (_, *row) in enumerate(read_passages(path)):
            state.add(*row)
            if count % _STEP == _STEP - 1:
                bar.update(_STEP)
    reading.remember(state.hexdigest())
    return state.hexdigest()


def _state(path: Path) -> dict[str, Any]:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: no such file ({error})") from error
    whole = os.path.realpath(path)
    return {
        "path": whole,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "inode": found.st_ino,
    }


def _memory(path: Path) -> Path:
    return cache_dir() / "corpora" / f"{digest(os.path.realpath(path))}.json"
