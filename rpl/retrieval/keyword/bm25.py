"""Keyword search with bm25s: scores are computed when the index is built, a query only adds columns up."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import DataError, MissingDependencyError, RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus.corpus import REBUILD, Corpus
from rpl.retrieval.engines import Analysis, KeywordEngine
from rpl.retrieval.keyword.bm25_arrays import build_arrays
from rpl.retrieval.keyword.tokens import Tokenizer


class BM25Retriever(Retriever):
    """BM25 in Lucene's variant over title and text; `build` and `load` make one.

    Args:
        corpus: The passages, in the order they were indexed in.
        tokenizer: The one the index was built with.
        index: A `bm25s.BM25` object.
    """

    name = "bm25"

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, index: Any) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self._index = index

    @classmethod
    def build(cls, corpus: Corpus, tokenizer: Tokenizer, k1: float = 0.9, b: float = 0.4) -> BM25Retriever:
        """Indexes a corpus for use in this process.

        Raises:
            DataError: No passage holds a single indexable word.
        """
        # The arrays stay mapped after their files are gone.
        with tempfile.TemporaryDirectory(prefix="rpl-bm25-") as scratch:
            return cls(corpus, tokenizer, _index(corpus, tokenizer, k1, b, Path(scratch)))

    def save(self, folder: Path) -> None:
        """Writes the index files into a folder."""
        self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> BM25Retriever:
        """Reads what `save` wrote; large arrays stay on disk and are mapped.

        Raises:
            DataError: The files cannot be read or belong to a corpus of another size.
        """
        try:
            index = _bm25s().BM25.load(folder, mmap=True, backend="numpy")
            passages = int(index.scores["num_docs"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise DataError(f"{folder}: the keyword index cannot be read ({error}); {REBUILD}") from error
        if passages != len(corpus):
            raise DataError(f"{folder}: the keyword index holds {passages} passages, the corpus {len(corpus)}")
        return cls(corpus, tokenizer, index)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the passages that share a word with the query, best first; see `Retriever.search`."""
        try:
            return [self._search(query, k) for query in queries]
        except Exception as error:
            raise RetrieverError(f"keyword search failed: {type(error).__name__}: {error}") from error

    def _search(self, query: str, k: int) -> list[Passage]:
        numbers = self._index.get_tokens_ids(self.tokenizer(query))
        if not numbers:
            return []
        scores = self._index.get_scores_from_ids(numbers)
        best = top_k(scores, np.flatnonzero(scores > 0), k)
        return [self.corpus.passage(int(p), float(scores[p]), rank) for rank, p in enumerate(best)]


@dataclass(frozen=True)
class BM25S(KeywordEngine):
    """bm25s: pure Python and numpy, files mapped from disk; the default."""

    subfolder: ClassVar[str | None] = "bm25"
    package: ClassVar[str | None] = "bm25s"

    def build(self, corpus: Corpus, folder: Path, analysis: Analysis) -> None:
        """Writes the index; see `KeywordEngine.build`."""
        tokenizer = Tokenizer(analysis.stemmer, analysis.stop_words)
        # Beside the index, where there is room for it, and not in /tmp.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            index = _index(corpus, tokenizer, analysis.k1, analysis.b, Path(scratch))
            BM25Retriever(corpus, tokenizer, index).save(folder)

    def load(self, corpus: Corpus, folder: Path, analysis: Analysis) -> BM25Retriever:
        """Maps the index; see `KeywordEngine.load`."""
        return BM25Retriever.load(folder, corpus, Tokenizer(analysis.stemmer, analysis.stop_words))


def top_k(scores: NDArray[Any], candidates: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Returns the places of the `k` highest scores among `candidates`, equal scores in rising order of place.

    Args:
        scores: One a passage, in corpus order.
        candidates: Places in rising order.
        k: How many to return at most, at least 1.

    >>> top_k(np.array([1.0, 3.0, 3.0, 2.0]), np.arange(4), 3).tolist()
    [1, 2, 3]
    """
    values = scores[candidates]
    if len(values) > k:
        # Everything that ties with the k-th score stays in, so that corpus order decides and not the partition.
        bound = np.partition(values, -k)[-k]
        candidates = candidates[values >= bound]
        values = scores[candidates]
    return candidates[np.argsort(-values, kind="stable")[:k]]


def _index(corpus: Corpus, tokenizer: Tokenizer, k1: float, b: float, scratch: Path) -> Any:
    """Returns a `bm25s.BM25` object of a corpus, as its own indexer would make it."""
    arrays = build_arrays(corpus, tokenizer, k1, b, scratch)
    index = _bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy")
    index.scores = {
        "data": arrays.data,
        "indices": arrays.indices,
        "indptr": arrays.indptr,
        "num_docs": len(corpus),
    }
    index.nonoccurrence_array = None
    index.vocab_dict = arrays.vocabulary
    index.unique_token_ids_set = range(len(arrays.vocabulary))
    return index


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependencyError("keyword search needs bm25s: pip install bm25s") from error
    # Its import turns its own debug messages on.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s
