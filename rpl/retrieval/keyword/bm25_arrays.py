"""The arrays of a BM25 index from a stream of passages, in memory that does not grow with the number of passages.

bm25s' own indexer holds each token of the corpus as a Python object, some 40 bytes; this one holds numbers, and of
those a *run* at a time: it sorts the postings of a run of passages by term and appends them to files. At the end it
walks over ranges of terms, gathers the postings of a range from all runs, weighs them and appends them to the arrays.
The weights are those of bm25s to the last bit, and so are the arrays.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rpl.core.errors import DataError
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.keyword.tokens import Tokenizer

BATCH_TOKENS = 1 << 22
"""Tokens of a run, and postings of a range: what is in memory at a time."""

BUILD_BYTES = 60 * BATCH_TOKENS
"""Memory of a run or a range, with the copies that sorting makes."""

TEMPORARY_BYTES_PER_POSTING = 8
"""Disk space besides that of the finished index: the runs and the arrays are there together, then the arrays twice."""

_PASSAGES = 1_024


@dataclass(frozen=True)
class BM25Arrays:
    """A matrix of BM25 weights by column (CSC): a column a term, a row a passage."""

    data: NDArray[np.float32]
    """Weights, by term and then by passage."""
    indices: NDArray[np.int32]
    """The passage of each."""
    indptr: NDArray[np.int64]
    """Where the column of each term begins, and the end of the last."""
    vocabulary: dict[str, int]
    """The column of each term."""


def build_arrays(corpus: Corpus, tokenizer: Tokenizer, k1: float, b: float, scratch: Path) -> BM25Arrays:
    """Indexes a corpus.

    Args:
        corpus: The passages; title and text are indexed together.
        tokenizer: Splits them.
        k1: Term-frequency saturation.
        b: Length normalisation.
        scratch: An empty folder for temporary files. The arrays of the result are mapped from there.

    Raises:
        DataError: No passage holds a single indexable word.
    """
    with _Runs(scratch) as runs:
        vocabulary, lengths = _read(corpus, tokenizer, runs)
    if not vocabulary:
        raise DataError("corpus: no passage holds a word that keyword search could index")
    found = runs.counted(len(vocabulary))
    indptr = np.zeros(len(vocabulary) + 1, dtype=np.int64)
    np.cumsum(found, out=indptr[1:])
    mean = lengths.sum() / len(lengths)
    # The same operations in the same order and precision as in bm25s, so that the results are the same.
    norms = k1 * ((1 - b) + b * lengths / mean)
    idf = _idf(found, len(corpus)).astype(np.float32)
    data, indices = scratch / "data", scratch / "indices"
    with data.open("wb") as data_file, indices.open("wb") as indices_file:
        for first, last in _ranges(indptr):
            passages, counts = runs.gather(first, last, indptr)
            weights = np.repeat(idf[first:last], found[first:last]) * (counts / (norms[passages] + counts))
            weights.astype(np.float32).tofile(data_file)
            passages.tofile(indices_file)
    runs.remove()
    return BM25Arrays(_mapped(data, np.float32), _mapped(indices, np.int32), indptr, vocabulary)


def _read(corpus: Corpus, tokenizer: Tokenizer, runs: _Runs) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Splits all passages into runs; returns the vocabulary, in order of first use, and the passages' lengths."""
    vocabulary: dict[str, int] = {}
    lengths, terms = array("q"), array("i")
    first = 0
    with progress_bar(len(corpus), "keyword index", "passage") as bar:
        for start in range(0, len(corpus), _PASSAGES):
            texts = corpus.contents_between(start, start + _PASSAGES)
            for text in texts:
                words = tokenizer(text)
                lengths.append(len(words))
                terms.extend([vocabulary.setdefault(word, len(vocabulary)) for word in words])
            bar.update(len(texts))
            if len(terms) >= BATCH_TOKENS:
                runs.add(terms, first, lengths[first:])
                terms, first = array("i"), len(lengths)
    if first < len(lengths):
        runs.add(terms, first, lengths[first:])
    return vocabulary, np.frombuffer(lengths, dtype=np.int64)


class _Runs:
    """Postings on disk: each run sorted by term and then by passage, its passages behind those of the run before."""

    def __init__(self, folder: Path) -> None:
        # Of each posting its passage and count; of each term in a run its number and where its postings end.
        self._paths = [folder / name for name in ("passages", "counts", "terms", "ends")]
        self._files = [path.open("wb") for path in self._paths]
        self._bounds: list[tuple[int, int, int]] = [(0, 0, 0)]

    def __enter__(self) -> _Runs:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def add(self, terms: array[int], first: int, lengths: array[int]) -> None:
        """Appends the tokens of passages `first`, `first + 1`, … with these numbers of tokens."""
        numbers = np.array(terms, dtype=np.int64)
        passages = np.repeat(np.arange(first, first + len(lengths)), np.array(lengths))
        pairs, counts = np.unique((numbers << 32) | passages, return_counts=True)
        distinct, sizes = np.unique((pairs >> 32).astype(np.int32), return_counts=True)
        start_terms, start_postings, _ = self._bounds[-1]
        ends = np.cumsum(sizes, dtype=np.int64) + start_postings
        columns = (pairs.astype(np.int32), counts.astype(np.float32), distinct, ends)
        for file, column in zip(self._files, columns, strict=True):
            column.tofile(file)
        self._bounds.append((start_terms + len(distinct), start_postings + len(pairs), start_postings))

    def counted(self, vocabulary: int) -> NDArray[np.int64]:
        """Maps what was written and returns in how many passages each term is."""
        types: tuple[DTypeLike, ...] = (np.int32, np.float32, np.int32, np.int64)
        self._passages, self._counts, self._terms, self._ends = map(_mapped, self._paths, types)
        found = np.zeros(vocabulary, dtype=np.int64)
        for terms, starts, ends in self._each():
            found[terms] += ends - starts
        return found

    def gather(self, first: int, last: int, indptr: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Returns passages and counts of the terms in [first, last), by term and then by passage."""
        base = indptr[first]
        passages = np.empty(indptr[last] - base, dtype=np.int32)
        counts = np.empty(len(passages), dtype=np.float32)
        heads = indptr[first:last] - base
        for terms, starts, ends in self._each():
            low, high = np.searchsorted(terms, [first, last])
            if low == high:
                continue
            here, sizes = terms[low:high] - first, ends[low:high] - starts[low:high]
            rows = slice(starts[low], ends[high - 1])
            offsets = np.arange(rows.stop - rows.start) - np.repeat(starts[low:high] - rows.start, sizes)
            target = np.repeat(heads[here], sizes) + offsets
            passages[target] = self._passages[rows]
            counts[target] = self._counts[rows]
            heads[here] += sizes
        return passages, counts

    def remove(self) -> None:
        """Deletes the files."""
        for path in self._paths:
            path.unlink()

    def _each(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Yields, for each run, its terms and where the postings of each begin and end."""
        for (low, *_), (high, _, start) in zip(self._bounds, self._bounds[1:], strict=False):
            ends = self._ends[low:high]
            starts = np.concatenate([np.array([start], dtype=np.int64), ends[:-1]]) if len(ends) else ends
            yield self._terms[low:high], starts, ends


def _ranges(indptr: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields ranges of terms with about `BATCH_TOKENS` postings, at least one term each."""
    first, terms = 0, len(indptr) - 1
    while first < terms:
        last = int(np.searchsorted(indptr, indptr[first] + BATCH_TOKENS, side="right")) - 1
        last = min(max(last, first + 1), terms)
        yield first, last
        first = last


def _idf(found: NDArray[np.int64], passages: int) -> NDArray[np.float64]:
    # `math.log` and not numpy's, whose last bit may differ; few numbers are different.
    numbers, place = np.unique(found, return_inverse=True)
    return np.array([math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in numbers.tolist()])[place]


def _mapped(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    size = path.stat().st_size
    return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)
