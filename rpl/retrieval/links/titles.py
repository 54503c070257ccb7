"""All titles of a corpus in a static trie, with the passages of each: one pass over a text finds what it mentions.

The trie is marisa-trie's (Yata, "Prefix/Patricia Trie Dictionary Compression by Nesting", 2011): a few bytes a title,
mapped from disk, and it yields every title that begins at a place of a text. Aho-Corasick packages were left out: their
automata take hundreds of bytes a title and have to be read into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rpl.core.errors import DataError
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.corpus import REBUILD
from rpl.retrieval.links.surface_forms import MAX_CHARACTERS, folded_text, has_capital, surface_forms

_TRIE_FILE = "titles.marisa"
_CHUNK = 65_536


class TitleTable:
    """Finds mentions of titles; `build` and `load` make one.

    Args:
        trie: A `marisa_trie.Trie` of the N different surface forms; it numbers them from 0.
        capital: `(N,)`, bool: a mention of this form needs a capital letter.
        offsets: `(2N + 1,)`. Form `n` has two rows of passages: from `offsets[2n]` those with it as title, from
            `offsets[2n + 1]` those whose title is this form and a disambiguation, up to `offsets[2n + 2]`.
        passages: Places in corpus order, rising within a row.
    """

    def __init__(
        self, trie: Any, capital: NDArray[np.bool_], offsets: NDArray[np.int64], passages: NDArray[np.uint32]
    ) -> None:
        self._trie = trie
        self._capital = capital
        self._offsets = offsets
        self._passages = passages

    @classmethod
    def build(cls, titles: Sequence[str], folder: Path | None = None) -> TitleTable:
        """Reads all titles twice, in order.

        Args:
            titles: One a passage, at most 2³² of them; may be empty strings.
            folder: Where the table is written; `None` keeps it in memory. With a folder, memory holds 16 bytes a form
                and, while the trie is made, the texts of all forms.
        """
        from marisa_trie import Trie

        with progress_bar(2 * len(titles), "titles", "passage") as bar:
            trie = Trie(_keys(titles, bar))
            capital = _array(folder, "capital", (len(trie),), np.bool_)
            rows = _array(folder, "rows", (len(titles), 2), np.int32)
            _look_up(titles, trie, capital, rows, bar)
        offsets, passages = _gather(rows, 2 * len(trie), folder)
        if folder is not None:
            del rows  # Windows does not delete a file that is mapped
            (folder / "rows.npy").unlink()
            trie.save(str(folder / _TRIE_FILE))
        return cls(trie, capital, offsets, passages)

    @classmethod
    def load(cls, folder: Path) -> TitleTable:
        """Maps what `build` wrote.

        Raises:
            DataError: The files cannot be read or do not fit together.
        """
        from marisa_trie import Trie

        try:
            trie = Trie().mmap(str(folder / _TRIE_FILE))
            # Elements of plain arrays are read faster than those of memmap objects.
            capital, offsets, passages = (
                np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
                for name in ("capital", "offsets", "passages")
            )
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise DataError(f"{folder}: the title index cannot be read ({error}); {REBUILD}") from error
        forms = len(trie)
        if len(capital) != forms or len(offsets) != 2 * forms + 1 or offsets[-1] != len(passages):
            raise DataError(f"{folder}: the files of the title index do not fit together; {REBUILD}")
        return cls(trie, capital, offsets, passages)

    def __len__(self) -> int:
        """Returns the number of surface forms."""
        return len(self._capital)

    def number(self, title: str) -> int | None:
        """Returns the number of a title's surface form; `None` where it has none or the corpus does not."""
        form, _ = surface_forms(title)
        return None if form is None else self._trie.get(form.key)

    def passages(self, number: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Returns the passages with a form as their title, and those with it and a disambiguation."""
        first, second, end = self._offsets[2 * number : 2 * number + 3]
        return self._passages[first:second], self._passages[second:end]

    def mentions(self, text: str, own: int | None = None) -> Iterator[int]:
        """Yields the numbers of the forms that a text mentions, each once, in order of first mention.

        Args:
            text: Any text.
            own: A form that does not hide shorter ones inside it.
        """
        folded = folded_text(text)
        # Where a word folds to nothing, several end at one place: a mention takes them all.
        last_word = {end: word for word, end in enumerate(folded.ends[1::2])}
        seen: set[int] = set()
        word = 0
        while word < folded.words:
            step = 1
            begin = folded.ends[2 * word]
            forms = list(self._trie.iter_prefixes_with_ids(folded.text[begin : begin + MAX_CHARACTERS]))
            for key, number in reversed(forms):
                last = last_word.get(begin + len(key))
                if last is None or (self._capital[number] and not has_capital(folded.original(word, last))):
                    continue
                if number not in seen:
                    seen.add(number)
                    yield number
                if number != own:
                    step = last - word + 1
                    break
            word += step


def _chunks(titles: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for begin in range(0, len(titles), _CHUNK):
        yield begin, titles[begin : begin + _CHUNK]


def _keys(titles: Sequence[str], bar: Any) -> Iterator[str]:
    """Yields all surface forms; the same one may come once a chunk."""
    for _, chunk in _chunks(titles):
        for title in dict.fromkeys(chunk):
            for form in surface_forms(title):
                if form is not None:
                    yield form.key
        bar.update(len(chunk))


def _look_up(titles: Sequence[str], trie: Any, capital: NDArray[np.bool_], rows: NDArray[np.int32], bar: Any) -> None:
    """Fills `capital` and the rows of each passage: those of its two surface forms, -1 where it lacks one."""
    capital[:] = True
    for begin, chunk in _chunks(titles):
        known: dict[str, list[int]] = {}
        for title in dict.fromkeys(chunk):
            known[title] = [-1, -1]
            for kind, form in enumerate(surface_forms(title)):
                if form is not None:
                    number = trie[form.key]
                    # One title in lower case is enough to allow mentions in lower case.
                    capital[number] &= form.capital
                    known[title][kind] = 2 * number + kind
        rows[begin : begin + len(chunk)] = [known[title] for title in chunk]
        bar.update(len(chunk))


def _gather(rows: NDArray[np.int32], count: int, folder: Path | None) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Turns the rows of each passage into the passages of each row, in chunks; returns offsets and passages."""
    offsets = _array(folder, "offsets", (count + 1,), np.int64)
    for begin in range(0, len(rows), _CHUNK):
        chunk = rows[begin : begin + _CHUNK].ravel()
        np.add.at(offsets, chunk[chunk >= 0] + 1, 1)
    np.cumsum(offsets, out=offsets)
    passages = _array(folder, "passages", (int(offsets[-1]),), np.uint32)
    free = offsets[:-1].copy()
    for begin in range(0, len(rows), _CHUNK):
        chunk = rows[begin : begin + _CHUNK].ravel()
        order = np.argsort(chunk, kind="stable")
        order = order[chunk[order] >= 0]
        wanted, firsts, counts = np.unique(chunk[order], return_index=True, return_counts=True)
        places = np.repeat(free[wanted] - firsts, counts) + np.arange(len(order))
        passages[places] = begin + order // 2
        free[wanted] += counts
    return offsets, passages


def _array(folder: Path | None, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Returns an array of zeros, in a mapped file where there is a folder."""
    if folder is None:
        return np.zeros(shape, dtype)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
