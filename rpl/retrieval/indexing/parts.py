"""The parts of an index: each has a key that says what it was made from, and what has that key is not made twice.

While an index is built its parts come into being in a *work folder* beside it. A finished part leaves a mark there,
with its key and its files, so that the build goes on from it after it was killed. The same keys stand in the manifest
of a finished index, from which another build takes the parts it needs: hard links where the file system can, else
copies.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rpl.core.files import write_json
from rpl.retrieval.dense.milvus import LIVE_FOLDER

HASHED_AT_LOAD = 64 << 20
"""Files up to this many bytes are hashed whenever an index is opened, larger ones by a full check only."""

_MARKS = ".parts"


@dataclass(frozen=True)
class Part:
    """One part of an index that is to be built."""

    name: str
    """`corpus`, `keyword`, `links`, `embeddings` or `dense`."""
    key: str
    """Hash of all that decides what is in it."""
    path: str
    """Its file or folder in the index; may be missing when it is done, where it needs none."""
    make: Callable[[Path], None]
    """Writes it to the path it is given, which does not exist unless `goes_on` is set; its folder does."""
    goes_on: bool = False
    """Whether `make` can go on from what it had written when it was killed."""


@dataclass(frozen=True)
class FinishedPart:
    """What is known about a part that is whole."""

    key: str
    path: str
    seconds: float
    """How long it took to make."""
    files: dict[str, dict[str, Any]]
    """Size and SHA-256 of each file, by its path in the index folder."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file["bytes"] for file in self.files.values())


class WorkFolder:
    """The folder that an index is built in. Its owner holds the lock of the index.

    Args:
        path: Is made if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / _MARKS).mkdir(parents=True, exist_ok=True)

    def finished(self, part: Part) -> FinishedPart | None:
        """Returns the part if it is whole here and has the key that is asked for."""
        found = _read(self._mark(part.name, "done"))
        if found is None or found.get("key") != part.key:
            return None
        record = FinishedPart(**found)
        return record if all(_fits(self.path, *file) for file in record.files.items()) else None

    def begin(self, part: Part) -> Path:
        """Removes what is here of a part of that name, unless `make` can go on from it; returns where to write."""
        begun, path = self._mark(part.name, "begun"), self.path / part.path
        self._mark(part.name, "done").unlink(missing_ok=True)
        if not (part.goes_on and (_read(begun) or {}).get("key") == part.key):
            begun.unlink(missing_ok=True)
            remove(path)
            for left_over in path.parent.glob(f".{path.name}.*"):
                remove(left_over)
            write_json(begun, {"key": part.key})
        return path

    def finish(self, part: Part, seconds: float) -> FinishedPart:
        """Marks a part as whole, when its files are safe on disk."""
        files = describe_files(self.path, _files_of(self.path, part.path))
        return self._finish(part, FinishedPart(part.key, part.path, seconds, files))

    def drop(self, part: Part) -> None:
        """Removes a part, for instance because it turned out to be wrong."""
        for kind in ("done", "begun"):
            self._mark(part.name, kind).unlink(missing_ok=True)
        remove(self.path / part.path)

    def reuse(self, part: Part, donor: Path, manifest: Mapping[str, Any]) -> FinishedPart | None:
        """Takes a part from a finished index, if that has it with the same key and undamaged.

        Args:
            part: What is needed.
            donor: The other index.
            manifest: What its `manifest.json` says.
        """
        known = (manifest.get("parts") or {}).get(part.name)
        if not known or known.get("key") != part.key or any((donor / part.path).rglob(LIVE_FOLDER)):
            return None
        listed = manifest.get("files") or {}
        files = {name: entry for name, entry in listed.items() if belongs(name, known["path"])}
        if known["path"] != part.path or not all(_fits(donor, *file) for file in files.items()):
            return None
        # The part is not begun, so that no process writes into files that other indexes link to.
        self.drop(part)
        try:
            for name in files:
                target = self.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(donor / name, target)
        except FileNotFoundError:  # the other index is being removed
            self.drop(part)
            return None
        return self._finish(part, FinishedPart(part.key, part.path, known["seconds"], files))

    def keep_only(self, parts: Iterable[FinishedPart]) -> None:
        """Removes what belongs to no part, from a build with other settings for instance; hidden files stay."""
        kept = {part.path.partition("/")[0] for part in parts}
        for path in self.path.glob("[!.]*"):
            if path.name not in kept:
                remove(path)

    def clear(self) -> None:
        """Removes the marks and whatever else is hidden, when the folder has become an index."""
        for path in self.path.glob(".*"):
            remove(path)

    def _finish(self, part: Part, record: FinishedPart) -> FinishedPart:
        write_json(self._mark(part.name, "done"), asdict(record))
        self._mark(part.name, "begun").unlink(missing_ok=True)
        return record

    def _mark(self, name: str, kind: str) -> Path:
        return self.path / _MARKS / f"{name}.{kind}.json"


def describe_files(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of files by their path in a folder, after the system has written them to disk."""
    found = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            value = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
            found[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": value}
    return found


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _files_of(folder: Path, path: str) -> list[Path]:
    start = folder / path
    found = [start] if start.is_file() else [file for file in start.rglob("*") if file.is_file()]
    # A database changes its own files while it is read.
    return [file for file in found if LIVE_FOLDER not in file.relative_to(folder).parts]


def belongs(name: str, path: str) -> bool:
    """Tells whether a file of an index is part of a file or folder there."""
    return name == path or name.startswith(f"{path}/")


def _fits(folder: Path, name: str, expected: Mapping[str, Any]) -> bool:
    path = folder / name
    if not path.is_file() or path.stat().st_size != expected["bytes"]:
        return False
    return expected["bytes"] > HASHED_AT_LOAD or file_hash(path) == expected["sha256"]


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
