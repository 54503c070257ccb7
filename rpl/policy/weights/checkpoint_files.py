"""Checkpoint files and folders that are never half-written, and that show it when they are damaged.

A checkpoint file is a zip archive with a checksum of each of its parts. A folder of shards (FSDP2) has none, so that
the digest of each of its files is kept beside them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from rpl.core.errors import CheckpointError
from rpl.core.files import replacing, unwritable, write_json

META = "meta.pt"
"""Beside the shards: everything of a checkpoint that is neither weight nor optimizer state."""
DIGESTS = "digests.json"
"""Beside the shards, written last: the SHA-256 of every other file."""
UNREADABLE = (OSError, KeyError, RuntimeError, EOFError, ValueError, TypeError, AttributeError, pickle.UnpicklingError)


def save_file(checkpoint: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint under a temporary name in the same folder, flushes it to disk and renames it into place.

    Raises:
        CheckpointError: It cannot be written, as where the disk is full. An earlier file of this name is as it was.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
    except (OSError, RuntimeError) as error:  # torch hides the reason that the system gave
        raise CheckpointError(f"{path}: the checkpoint cannot be written: {unwritable(error)}") from error


def file_digests(files: list[Path]) -> dict[str, str]:
    """Flushes files to disk and returns the SHA-256 of each by name."""
    digests = {}
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def finish_folder(folder: Path, shards: dict[str, str]) -> None:
    """Completes a folder of shards by the digests of all its files.

    Args:
        folder: Where all ranks have written their shards.
        shards: Digests by file name, of all ranks.
    """
    rest = [path for path in folder.iterdir() if path.name not in shards]
    write_json(folder / DIGESTS, shards | file_digests(rest))


def verify(path: Path) -> None:
    """Reads a checkpoint as a whole and compares it with its checksums.

    Raises:
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    reason = _folder_damage(path) if path.is_dir() else _file_damage(path)
    if reason is not None:
        raise CheckpointError(f"{path}: damaged, or not a checkpoint of RPL: {reason}")


def _folder_damage(folder: Path) -> str | None:
    if not (folder / META).is_file():
        return f"the folder has no {META}"
    if not (folder / DIGESTS).is_file():
        return f"the folder has no {DIGESTS}, so it was not written to the end"
    try:
        expected = json.loads((folder / DIGESTS).read_text())
    except ValueError as error:
        return f"{DIGESTS}: {error}"
    for name, digest in sorted(expected.items()):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if file_digests([folder / name])[name] != digest:
            return f"{name} is not what was written"
    return None


def _file_damage(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        return f"{error} ({path.stat().st_size} bytes)"
    return None if part is None else f"{part} is not what was written"


def read_header(path: Path) -> dict[str, Any]:
    """Everything of a checkpoint but weights and optimizer state, without reading those.

    Raises:
        CheckpointError: It cannot be read, or it is not one of RPL's.
    """
    try:
        if path.is_dir():
            header = torch.load(path / META, weights_only=True)
        else:
            header = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        _ = header["rpl"]["iteration"]
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path}: not a checkpoint of RPL, or damaged: {type(error).__name__}: {reason}"
        ) from error
    return {name: value for name, value in header.items() if name not in ("state_dict", "optimizer_states")}


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """Finds the checkpoint of a folder that a run should go on from.

    Returns:
        The one of most steps that is whole, or `None`, and what is wrong with each that had more.
    """
    found, damaged = [], []
    for path in folder.glob("*.ckpt"):
        try:
            found.append((read_header(path)["global_step"], path.stat().st_mtime_ns, path))
        except CheckpointError as error:
            damaged.append(str(error))
    for _, _, path in sorted(found, reverse=True):
        try:
            verify(path)
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            return path, damaged
    return None, damaged
