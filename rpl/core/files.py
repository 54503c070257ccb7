"""Writes files by atomic replacement, and reads JSON lines with errors that name file and line."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rpl.core.errors import DataError

_FORM = "; the file must have one JSON object a line: convert JSON arrays, indented JSON, CSV, Markdown or PDF first"

_REMEMBERED = 1 << 20
_SETTLED_S = 2.0


def cache_dir() -> Path:
    """Returns the folder for built indexes and resolved models: `$RPL_HOME`, or `~/.cache/rpl`."""
    root = os.environ.get("RPL_HOME")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "rpl"


def nearest_folder(path: Path) -> Path:
    """Returns the nearest folder that exists at a path or above it."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def unwritable(error: BaseException) -> str:
    """The system's reason why something could not be written, as far back as it is known."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror
        reason = reason.__cause__ or reason.__context__
    return " ".join(str(error).split())[:200]


def write_text(path: Path, text: str) -> None:
    """Writes a file under a temporary name in the same folder, then renames it into place."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file as `write_text` does."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file under a temporary name; when it is complete, it is flushed to disk and renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON document, indented, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, records: Iterable[Any]) -> int:
    """Writes one JSON value a line, atomically, and returns how many there were."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    write_text(path, "".join(line + "\n" for line in lines))
    return len(lines)


def append_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Appends one JSON value a line and flushes them to disk; `read_appended` forgives a torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path, on_fault: Callable[[DataError], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields pairs of line number (from 1) and JSON object; empty lines are skipped. `.gz` files are unpacked.

    Args:
        path: The file.
        on_fault: Told of each line that is wrong, instead of the reading ending there.

    Raises:
        DataError: The file does not exist or is damaged, or a line is not UTF-8 or not a JSON object.
    """
    import gzip

    if path.is_dir():
        raise DataError(f"{path}: is a folder; a file of JSON lines (.jsonl or .jsonl.gz) is wanted here")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = _decoded(raw, path, number)
                    record = _json_object(line, path, number) if line.strip() else None
                except DataError as error:
                    if on_fault is None:
                        raise
                    on_fault(error)
                    continue
                if record is not None:
                    yield number, record
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read behind line {number} ({error})") from error


def _json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        hint = _FORM if number == 1 else ""
        raise DataError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno}){hint}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise DataError(f"{path}:{number}: not JSON that can be read ({error})") from error
    if not isinstance(value, dict):
        hint = _FORM if number == 1 else ""
        raise DataError(f"{path}:{number}: expected a JSON object, got {type(value).__name__}{hint}")
    return value


def _decoded(raw: bytes, path: Path, number: int) -> str:
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            what = "it starts as UTF-16 does"
        raise DataError(f"{path}:{number}: cannot be read as UTF-8 ({what}); save the file as UTF-8") from error
    if "\0" in line:
        what = "it has zero bytes, as UTF-16 does"
        raise DataError(f"{path}:{number}: cannot be read as UTF-8 ({what}); save the file as UTF-8")
    return line


def read_appended(path: Path) -> list[dict[str, Any]]:
    """Reads a file that `append_jsonl` wrote, dropping a last line that a killed process left unfinished.

    The torn line is also cut from the file, so that appending can go on.
    """
    if not path.exists():
        return []
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    if end != len(raw):
        with path.open("r+b") as file:
            file.truncate(end)
    return [json.loads(line) for line in raw[:end].splitlines() if line.strip()]


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content.

    That of a large file is remembered in the cache folder, for as long as its path, size, inode and times of change
    stay what they are; a file that was changed within the last seconds is read again, for it may change once more
    without its times moving.
    """
    found = path.stat()
    if found.st_size < _REMEMBERED:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    where = os.path.realpath(path)
    state = [where, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
    memory = cache_dir() / "digests" / f"{digest(where)}.json"
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED_S:
        write_json(memory, {"state": state, "sha256": value})
    return value


def digest(*parts: str | bytes) -> str:
    """Returns a stable 16-digit hexadecimal hash of texts, with boundaries between them."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()[:16]
