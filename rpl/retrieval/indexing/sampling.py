"""A sample of a corpus, from which the cost of its index is estimated: blocks of consecutive passages all over it."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rpl.core.errors import DataError
from rpl.retrieval.corpus.corpus import Corpus, contents, read_passages, text_field, title_and_text

_BLOCKS = 40
_BLOCK_PASSAGES = 25
_WHOLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Sample:
    """Passages of a corpus, and what they say about all of them."""

    passages: int
    """How many the corpus has; an estimate where it is a large file."""
    blocks: list[list[tuple[str, str, str]]]
    """Id, title and text of consecutive passages, at least one."""
    read_seconds: float
    """How long reading and checking one passage takes."""

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """All passages of the sample."""
        return [row for block in self.blocks for row in block]

    @property
    def texts(self) -> list[str]:
        """What is indexed of them."""
        return [contents(title, text) for _, title, text in self.rows]

    @property
    def titles(self) -> float:
        """Different titles a passage, in [0, 1]: the pieces of an article follow each other."""
        return sum(len({title for _, title, _ in block if title}) for block in self.blocks) / len(self.rows)


def sample_corpus(corpus: Corpus) -> Sample:
    """Samples passages that can be reached by their place."""
    step = max(_BLOCK_PASSAGES, len(corpus) // _BLOCKS)
    started = time.perf_counter()
    blocks = []
    for start in range(0, len(corpus), step):
        part = slice(start, start + _BLOCK_PASSAGES)
        blocks.append(list(zip(corpus.ids[part], corpus.titles[part], corpus.texts[part], strict=True)))
    seconds = time.perf_counter() - started
    return Sample(len(corpus), blocks, seconds / sum(map(len, blocks)))


def sample_file(path: Path) -> Sample:
    """Samples a corpus file: all over a plain one, at the start of a packed one. Lines that are wrong are left out.

    Raises:
        DataError: The file does not exist, or no passage stands before its first wrong line.
    """
    started = time.perf_counter()
    try:
        share, lines = _packed(path) if path.suffix == ".gz" else _plain(path)
    except (OSError, EOFError, zlib.error):
        share, lines = 1.0, []
    blocks = [block for block in map(_passages, lines) if block]
    if not blocks:
        # The reader says what is wrong, with the line.
        _, *row = next(read_passages(path))
        blocks = [[(row[0], row[1], row[2])]]
    found = sum(map(len, blocks))
    return Sample(max(1, round(found / share)), blocks, (time.perf_counter() - started) / found)


def _plain(path: Path) -> tuple[float, list[list[bytes]]]:
    """Returns blocks of lines, and their share of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            return _spread([line for line in file if line.strip()])
        blocks, read = [], 0
        for number in range(_BLOCKS):
            file.seek(number * (size // _BLOCKS))
            if number:
                file.readline()
            lines = [line for _ in range(_BLOCK_PASSAGES) if (line := file.readline())]
            blocks.append(lines)
            read += sum(map(len, lines))
        return read / size, blocks


def _packed(path: Path) -> tuple[float, list[list[bytes]]]:
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
        lines = []
        while raw.tell() < _WHOLE_BYTES and (line := file.readline()):
            lines.append(line)
        if not file.peek(1):
            return _spread([line for line in lines if line.strip()])
        share, blocks = _spread(lines)
        return share * raw.tell() / path.stat().st_size, blocks


def _spread(lines: list[bytes]) -> tuple[float, list[list[bytes]]]:
    """Returns blocks of consecutive lines, and their share of all."""
    step = max(_BLOCK_PASSAGES, len(lines) // _BLOCKS)
    blocks = [lines[start : start + _BLOCK_PASSAGES] for start in range(0, len(lines), step)]
    return sum(map(len, blocks)) / max(1, len(lines)), blocks


def _passages(lines: Iterable[bytes]) -> list[tuple[str, str, str]]:
    found = []
    for line in lines:
        try:
            record = json.loads(line)
            found.append((text_field(record, "id", ""), *title_and_text(record, "")))
        except (ValueError, AttributeError, RecursionError, DataError):
            continue
    return found
