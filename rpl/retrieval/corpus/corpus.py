"""The passages of a library, and the reader of corpus files.

A corpus file holds one JSON object a line, either `{"id", "title", "text"}` or the pyserini form `{"id", "contents"}`
in which `contents` is the quoted title, a line break and the text. Files may be gzipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import read_jsonl
from rpl.core.records import Passage

REBUILD = "delete the index folder and build it again"
"""What to do about an index that is damaged or does not fit; ends messages."""

_SLICE = 1024


def contents(title: str, text: str) -> str:
    """Returns the text that is indexed and encoded for a passage: quoted title, line break, text.

    The form is the one E5 and Search-R1 use (`contents` of their corpus); keyword search ignores the quotes. The
    title is indexed as part of the passage, without extra weight.
    """
    return f'"{title}"\n{text}' if title else text


class Corpus:
    """An ordered, immutable collection of passages with unique ids.

    Args:
        ids: Unique, non-empty ids.
        titles: One a passage; may be empty strings.
        texts: One a passage; not empty.
        find: Returns the place of an id, or `None`. With it the columns are used as they are, for instance mapped from
            a file (see `rpl.retrieval.corpus.store`), and trusted; without it they are copied into memory and
            checked.
        fingerprint: What `fingerprint` would compute, where it is known.

    Raises:
        DataError: The lengths differ, an id repeats, or there is no passage.
    """

    def __init__(
        self,
        ids: Sequence[str],
        titles: Sequence[str],
        texts: Sequence[str],
        *,
        find: Callable[[str], int | None] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if not len(ids) == len(titles) == len(texts):
            raise DataError(f"corpus: {len(ids)} ids, {len(titles)} titles and {len(texts)} texts do not fit together")
        if not len(ids):
            raise DataError("corpus: there are no passages")
        if find is None:
            ids, titles, texts = list(ids), list(titles), list(texts)
            places = {id_: position for position, id_ in enumerate(ids)}
            if len(places) != len(ids):
                repeated = next(i for position, i in enumerate(ids) if places[i] != position)
                raise DataError(f"corpus: id {repeated!r} is used by more than one passage")
            find = places.get
        self.ids = ids
        self.titles = titles
        self.texts = texts
        self._find = find
        self._fingerprint = fingerprint

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all ids, titles and texts in order; independent of the form of the file they came from."""
        if self._fingerprint is not None:
            return self._fingerprint
        state = Fingerprint()
        for passage in self:
            state.add(passage.id, passage.title, passage.text)
        return state.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id_: object) -> bool:
        return isinstance(id_, str) and self._find(id_) is not None

    def missing(self, ids: Iterable[str]) -> frozenset[str]:
        """Returns those ids that no passage has."""
        return frozenset(id_ for id_ in ids if id_ not in self)

    def __iter__(self) -> Iterator[Passage]:
        for start in range(0, len(self), _SLICE):
            rows = slice(start, start + _SLICE)
            for id_, title, text in zip(self.ids[rows], self.titles[rows], self.texts[rows], strict=True):
                yield Passage(id_, title, text)

    def get(self, id_: str) -> Passage:
        """Returns a passage by its id.

        Raises:
            KeyError: There is no such passage.
        """
        return self.passage(self.position(id_))

    def position(self, id_: str) -> int:
        """Returns the place of an id in corpus order, from 0.

        Raises:
            KeyError: There is no such passage.
        """
        position = self._find(id_)
        if position is None:
            raise KeyError(id_)
        return position

    def passage(self, position: int, score: float = 0.0, rank: int = 0) -> Passage:
        """Returns the passage at a place in corpus order, with a score and a rank."""
        return Passage(self.ids[position], self.titles[position], self.texts[position], score, rank)

    def contents(self, position: int) -> str:
        """Returns what is indexed for the passage at a place in corpus order."""
        return contents(self.titles[position], self.texts[position])

    def contents_between(self, start: int, stop: int) -> list[str]:
        """Returns what is indexed for the passages at the places from `start` up to `stop`."""
        rows = slice(start, stop)
        return [contents(*row) for row in zip(self.titles[rows], self.texts[rows], strict=True)]


class Fingerprint:
    """The hash behind `Corpus.fingerprint`, passage by passage."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def add(self, *values: str) -> None:
        """Takes in id, title and text of the next passage."""
        for value in values:
            data = value.encode("utf-8")
            self._state.update(len(data).to_bytes(8, "big"))
            self._state.update(data)

    def hexdigest(self) -> str:
        """Returns 16 hexadecimal digits."""
        return self._state.hexdigest()[:16]


def read_corpus(path: str | Path) -> Corpus:
    """Reads a corpus file (`.jsonl` or `.jsonl.gz`), in either form, into memory, and checks every line.

    Raises:
        DataError: The file is missing or damaged, or a line is wrong; the message names file, line and field.
    """
    path = Path(path)
    ids: list[str] = []
    titles: list[str] = []
    texts: list[str] = []
    lines: dict[str, int] = {}
    for number, id_, title, text in read_passages(path):
        if id_ in lines:
            raise repeated_id(path, id_, lines[id_], number)
        lines[id_] = number
        ids.append(id_)
        titles.append(title)
        texts.append(text)
    return Corpus(ids, titles, texts)


def read_passages(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yields line number (from 1), id, title and text of each passage of a corpus file, checked but for repeated ids.

    Raises:
        DataError: The file is missing, damaged or without passages, or a line is wrong; the message names file, line
            and field.
    """
    number = 0
    for number, record in read_jsonl(path):
        where = f"{path}:{number}"
        yield number, text_field(record, "id", where), *title_and_text(record, where)
    if not number:
        raise DataError(f"{path}: there are no passages in this file")


def repeated_id(path: Path, id_: str, first: int, again: int) -> DataError:
    """Returns the error for an id that stands in two lines of a corpus file."""
    return DataError(f"{path}:{again}: id {id_!r} was already used in line {first}; ids must be unique")


def text_field(record: dict[str, Any], field: str, where: str, allow_empty: bool = False) -> str:
    """Returns a field of a record that must be a text.

    Args:
        record: One line of a data file.
        field: Its key.
        where: File and line, for the message.
        allow_empty: Whether a missing (or null) or blank value is allowed; a missing one is the empty string.

    Raises:
        DataError: The field is missing, blank or of another type.
    """
    value = record.get(field)
    if value is None and allow_empty:
        return ""
    if value is None:
        raise DataError(
            f"{where}: field {field!r} is missing; this line has {', '.join(map(repr, record)) or 'no keys'}"
        )
    if not isinstance(value, str):
        raise DataError(f"{where}: field {field!r} must be a string, got {type(value).__name__} {value!r}")
    if not allow_empty and not value.strip():
        raise DataError(f"{where}: field {field!r} is empty")
    if not is_encodable(value):
        raise DataError(f"{where}: field {field!r} holds a lone surrogate, which is not valid Unicode text")
    return value


def is_encodable(text: str) -> bool:
    """Tells whether a text can be written as UTF-8, which tokenizers and files need."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def title_and_text(record: dict[str, Any], where: str) -> tuple[str, str]:
    """Returns title and text of a record in either form of a corpus file.

    Raises:
        DataError: A field is missing, empty or of another type.
    """
    if "contents" not in record or "text" in record:
        return text_field(record, "title", where, allow_empty=True), text_field(record, "text", where)
    head, separator, text = text_field(record, "contents", where).partition("\n")
    if not separator:
        return "", head
    if not text.strip():
        raise DataError(f"{where}: field 'contents' has a title line but no text after it")
    head = head.strip()
    if len(head) >= 2 and head.startswith('"') and head.endswith('"'):
        head = head[1:-1]
    return head, text
