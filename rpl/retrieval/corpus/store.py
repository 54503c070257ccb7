"""Passages on disk: an Arrow file of three columns that is mapped and not read, and a sorted table of id hashes.

A folder holds `corpus.arrow` (record batches of `BATCH_ROWS` passages), `ids.npy` (for each id its 64-bit hash, sorted,
and its place) and `corpus.json` (number of passages, fingerprint). Opening it takes the same time and memory for a
thousand passages as for a hundred million; what is read stays in the system's page cache and no longer.
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rpl.core.errors import DataError
from rpl.core.files import write_json
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.budget import PrintBudget
from rpl.retrieval.corpus.corpus import REBUILD, Corpus, Fingerprint, read_passages, repeated_id

ARROW_FILE = "corpus.arrow"
IDS_FILE = "ids.npy"
INFO_FILE = "corpus.json"

STORE_VERSION = 1
"""Goes up when these files change their form."""

BATCH_ROWS = 16_384
"""Passages of a record batch; every batch but the last has so many."""

BUILD_BYTES_PER_PASSAGE = 24
"""Memory that writing needs for each passage: its hash, its place, and a copy while they are sorted."""

# 64-bit offsets, so that no batch can be too large for them.
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])

Row = tuple[str, str, str]


class RepeatedIdError(Exception):
    """Two rows have one id.

    Attributes:
        id_: The id.
        first: Place of the first row with it.
        again: Place of the second.
    """

    def __init__(self, id_: str, first: int, again: int) -> None:
        super().__init__(id_)
        self.id_, self.first, self.again = id_, first, again


def store_corpus_file(path: Path, folder: Path) -> str:
    """Streams a corpus file into a folder, checking every line, and returns its fingerprint.

    Args:
        path: `.jsonl` or `.jsonl.gz`.
        folder: Exists; what is in it after an error is of no use.

    Raises:
        DataError: The file is missing or damaged, or a line is wrong; the message names file, line and field.
    """
    try:
        return store_rows((row for _, *row in read_passages(path)), folder)  # type: ignore[misc]
    except RepeatedIdError as error:
        lines = _lines_of(path, (error.first, error.again))
        raise repeated_id(path, error.id_, *lines) from error


def store_rows(rows: Iterable[Row], folder: Path, total: int | None = None) -> str:
    """Writes (id, title, text) of passages into a folder and returns their fingerprint.

    Args:
        rows: Valid texts; read once.
        folder: Exists.
        total: Number of rows, for the progress bar.

    Raises:
        RepeatedIdError: An id is not unique.
    """
    fingerprint, hashes = Fingerprint(), array("Q")
    budget, too_long = PrintBudget(), 0
    rows = iter(rows)
    with (
        pa.OSFile(str(folder / ARROW_FILE), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as writer,
        progress_bar(total, "corpus", "passage") as bar,
    ):
        while batch := list(islice(rows, BATCH_ROWS)):
            for row in batch:
                fingerprint.add(*row)
                hashes.append(id_hash(row[0]))
                too_long += budget.exceeded_by(*row)
            columns = [pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
            bar.update(len(batch))
    columns_ = _Columns(folder / ARROW_FILE, len(hashes))
    _write_ids(folder / IDS_FILE, np.frombuffer(hashes, dtype=np.uint64), _Column(columns_, 0))
    found = fingerprint.hexdigest()
    write_json(folder / INFO_FILE, {"passages": len(hashes), "fingerprint": found, "too_long": too_long})
    return found


def open_store(folder: Path) -> Corpus:
    """Maps what `store_rows` wrote.

    Raises:
        DataError: A file is missing or damaged.
    """
    try:
        info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
        passages, fingerprint = int(info["passages"]), str(info["fingerprint"])
        columns = _Columns(folder / ARROW_FILE, passages)
        ids = _Column(columns, 0)
        table = _IdTable(np.load(folder / IDS_FILE, mmap_mode="r", allow_pickle=False), ids)
    except (OSError, ValueError, KeyError, TypeError, EOFError, pa.ArrowException) as error:
        raise DataError(f"{folder}: the corpus cannot be read ({error}); {REBUILD}") from error
    return Corpus(ids, _Column(columns, 1), _Column(columns, 2), find=table.find, fingerprint=fingerprint)


def too_long_passages(folder: Path) -> int | None:
    """Returns how many passages exceed the default print budget, roughly; `None` in what an earlier version wrote."""
    found = json.loads((folder / INFO_FILE).read_text(encoding="utf-8")).get("too_long")
    return None if found is None else int(found)


def id_hash(id_: str) -> int:
    """Returns the 64-bit hash of an id."""
    # What programs pass as an id need not be valid Unicode.
    data = id_.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class _Columns:
    """The record batches of a mapped Arrow file, each opened at its first use."""

    def __init__(self, path: Path, rows: int) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if self._reader.schema != _SCHEMA or self._reader.num_record_batches != -(-rows // BATCH_ROWS):
            raise ValueError(f"{path.name} is not the file of {rows} passages")
        self._batches: list[tuple[_Strings, ...] | None] = [None] * self._reader.num_record_batches

    def batch(self, number: int) -> tuple[_Strings, ...]:
        found = self._batches[number]
        if found is None:
            with self._lock:
                batch = self._reader.get_batch(number)
            found = self._batches[number] = tuple(_Strings(column) for column in batch.columns)
        return found


class _Strings:
    """The values of an Arrow array, from its buffers: several times as fast as through its own objects."""

    def __init__(self, column: Any) -> None:
        _, offsets, data = column.buffers()
        self._offsets = memoryview(offsets).cast("B").cast("q")
        self._data = memoryview(data if data is not None else b"")

    def __getitem__(self, row: int) -> str:
        return str(self._data[self._offsets[row] : self._offsets[row + 1]], "utf-8")


class _Column(Sequence[str]):
    """One column as a sequence that reads what it is asked for."""

    def __init__(self, columns: _Columns, number: int) -> None:
        self._columns = columns
        self._number = number

    def __len__(self) -> int:
        return self._columns.rows

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._at(row) for row in range(*place.indices(len(self)))]
        row = place + len(self) if place < 0 else place
        if not 0 <= row < len(self):
            raise IndexError(f"place {place} is outside of {len(self)} passages")
        return self._at(row)

    def __iter__(self) -> Iterator[str]:
        return map(self._at, range(len(self)))

    def _at(self, row: int) -> str:
        number, row = divmod(row, BATCH_ROWS)
        return self._columns.batch(number)[self._number][row]


class _IdTable:
    """Finds ids by binary search among their sorted hashes; the id itself decides."""

    def __init__(self, table: NDArray[np.uint64], ids: Sequence[str]) -> None:
        if table.dtype != np.uint64 or table.shape != (2, len(ids)):
            raise ValueError(f"{IDS_FILE} has shape {table.shape} instead of (2, {len(ids)})")
        self._hashes, self._places = np.asarray(table[0]), np.asarray(table[1])
        self._ids = ids

    def find(self, id_: str) -> int | None:
        wanted = np.uint64(id_hash(id_))
        at = int(np.searchsorted(self._hashes, wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            place = int(self._places[at])
            if self._ids[place] == id_:
                return place
            at += 1
        return None


def _write_ids(path: Path, hashes: NDArray[np.uint64], ids: Sequence[str]) -> None:
    """Sorts hashes into a file.

    Raises:
        RepeatedIdError: Two ids are equal; of several such pairs the one whose second row comes first.
    """
    order = np.argsort(hashes, kind="stable")
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint64, shape=(2, len(hashes)))
    table[0], table[1] = hashes[order], order
    equal = np.flatnonzero(table[0, 1:] == table[0, :-1])
    repeats = []
    for start in equal:
        # Other ids with the same hash may stand between two that are equal.
        first = int(start)
        while first > 0 and table[0, first - 1] == table[0, start]:
            first -= 1
        again = int(order[start + 1])
        earlier = next((int(p) for p in order[first : start + 1] if ids[int(p)] == ids[again]), None)
        if earlier is not None:
            repeats.append((again, earlier))
    table.flush()
    if repeats:
        again, earlier = min(repeats)
        raise RepeatedIdError(ids[again], earlier, again)


def _lines_of(path: Path, places: tuple[int, int]) -> tuple[int, int]:
    """Returns the line numbers of two passages; empty lines count as lines."""
    first, again = (line for place, (line, *_) in enumerate(read_passages(path)) if place in places)
    return first, again
