"""Files on servers, what identifies them, and what has arrived of them on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file's content must hash to."""

    kind: Literal["sha256", "git"]
    """`git` is the SHA-1 that git gives to a blob, which the hub tells of its small files."""
    value: str
    """Hexadecimal."""

    def start(self, size: int) -> Any:
        """Returns the hash object of a file of that size before its first byte."""
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server, as the server (or a manifest on it) describes it."""

    name: str
    """For messages and bars."""
    url: str
    size: int
    """Bytes."""
    checksum: Checksum | None = None
    version: str | None = None
    """`ETag`, or else `Last-Modified`; `None` where the server says neither or the URL never changes its content."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request, such as a token."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a part of the file to be continued."""
        return {"size": self.size, "checksum": str(self.checksum or ""), "version": self.version or ""}

    @property
    def resumable(self) -> bool:
        """Whether another process can tell that it is still the same file."""
        return self.checksum is not None or self.version is not None


def arrived(file: RemoteFile, path: Path) -> int:
    """Returns how many bytes of a file are there from an earlier try and need not come again."""
    try:
        size = (path if path.exists() else partial_path(path)).stat().st_size
        note = json.loads(note_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    same = file.resumable and note == file.identity
    return size if same and (size == file.size or (size < file.size and not path.exists())) else 0


def drop(path: Path) -> int:
    """Deletes what an earlier try left, whole or not, and returns how many bytes that were."""
    size = 0
    for left in (path, partial_path(path)):
        size += left.stat().st_size if left.exists() else 0
        left.unlink(missing_ok=True)
    note_path(path).unlink(missing_ok=True)
    return size


def partial_path(path: Path) -> Path:
    """Returns where the part of a file lies that has arrived."""
    return path.with_name(f".{path.name}.partial")


def note_path(path: Path) -> Path:
    """Returns where it stands what a file, or the part of it, is of."""
    return path.with_name(f".{path.name}.origin.json")
