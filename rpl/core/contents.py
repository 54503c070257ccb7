"""Digests of files by their content, remembered so that files of gigabytes are not read each time.

A remembered digest is taken only where path, size, inode, the times of the last change of content and of the file's
record (both in nanoseconds) and samples of the content are the same: putting other bytes into the same file, even under
its former time of change, is noticed. Small files are always read.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import cache_dir, digest, write_json

_SMALL = 64 << 20
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_SETTLED_S = 2.0
"""A file that was changed so recently may change again without its times moving."""


def file_digest(path: Path) -> str:
    """Returns a 16-digit hexadecimal hash of what a file holds.

    Raises:
        DataError: The file cannot be read, or changes while it is read.
    """
    try:
        before = _state(path)
        if before["size"] > _SMALL and (known := _remembered(path, before)) is not None:
            return known
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        if _state(path) != before:
            raise DataError(f"{path}: has changed while it was read; start again when it is whole")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    settled = time.time() - max(before["mtime_ns"], before["ctime_ns"]) / 1e9 > _SETTLED_S
    if before["size"] > _SMALL and settled:
        write_json(_memory(path), {**before, "digest": found})
    return found


def files_digest(files: Iterable[Path]) -> str:
    """Returns a hash of the names and contents of files, in whatever order they come.

    Raises:
        DataError: A file cannot be read, or changes while it is read.
    """
    return digest(*(part for file in sorted(files) for part in (file.name, file_digest(file))))


def _state(path: Path) -> dict[str, Any]:
    found = path.stat()
    return {
        "path": os.path.realpath(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "inode": found.st_ino,
        "samples": _samples(path, found.st_size) if found.st_size > _SMALL else "",
    }


def _samples(path: Path, size: int) -> str:
    parts = []
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            parts.append(file.read(_SAMPLE_BYTES))
    return digest(*parts)


def _remembered(path: Path, state: dict[str, Any]) -> str | None:
    try:
        known = json.loads(_memory(path).read_text(encoding="utf-8"))
        found = known.pop("digest")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return str(found) if known == state else None


def _memory(path: Path) -> Path:
    return cache_dir() / "digests" / f"{digest(os.path.realpath(path))}.json"
