"""Dense search: encode the query, ask a vector index, and put what it finds in an order that nothing else decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rpl.errors import DataError, RetrieverError
from rpl.progress import progress_bar
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus import REBUILD, Corpus
from rpl.retrieval.encoders import Encoder
from rpl.retrieval.engines import VectorIndex
from rpl.types import Passage

SCORE_DECIMALS = 5
"""Scores are rounded to this many decimals before they are ranked. The same text encoded in another batch differs by
about 1e-7; without rounding such noise, and not corpus order, would decide between equal passages."""

_CHUNK = 4096
_SPARE = 16


class DenseRetriever(Retriever):
    """Nearest neighbours in the embedding space. All work happens under the encoder's lock.

    Args:
        corpus: The passages, in the order of the index.
        encoder: Encodes queries; must be the one the indexed vectors come from.
        index: One vector a passage.

    Raises:
        DataError: The shapes do not fit together.
    """

    name = "dense"
    gather = True

    def __init__(self, corpus: Corpus, encoder: Encoder, index: VectorIndex) -> None:
        if (index.size, index.dim) != (len(corpus), encoder.dim):
            raise DataError(
                f"the dense index has shape {(index.size, index.dim)}; {len(corpus)} passages and encoder "
                f"{encoder.name!r} need ({len(corpus)}, {encoder.dim})"
            )
        self.corpus = corpus
        self.encoder = encoder
        self.index = index

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the nearest passages, best first, with one call of encoder and index; see `Retriever.search`.

        The score is the cosine similarity.
        """
        if not queries:
            return []
        try:
            with self.encoder.lock:
                found = self._nearest(self.encoder.encode(queries, "query"), min(k, len(self.corpus)))
        except RetrieverError:
            raise
        except Exception as error:
            raise RetrieverError(f"dense search failed: {type(error).__name__}: {error}") from error
        return [[self.corpus.passage(place, score, rank) for rank, (score, place) in enumerate(hits)] for hits in found]

    def close(self) -> None:
        """Frees the index."""
        self.index.close()

    def _nearest(self, vectors: NDArray[np.float32], k: int) -> list[list[tuple[float, int]]]:
        """Returns (score, place) of the `k` best a query, ties in corpus order."""
        total = self.index.size
        found: list[list[tuple[float, int]]] = [[] for _ in vectors]
        open_ = list(range(len(vectors)))
        fetch = min(self.index.candidates or k + _SPARE, total)
        while open_:
            scores, places = self.index.search(vectors[open_], fetch)
            rounded = np.round(scores.astype(np.float64), SCORE_DECIMALS)
            undecided = []
            for row, number in enumerate(open_):
                exact = self.index.candidates is None
                # A tie at the k-th place that runs to the end of what was fetched may hide passages earlier in the
                # corpus.
                if exact and fetch < total and not rounded[row, -1] < rounded[row, k - 1]:
                    undecided.append(number)
                    continue
                order = np.lexsort((places[row], -rounded[row]))
                order = order[places[row][order] >= 0][:k]
                found[number] = [(float(rounded[row, i]), int(places[row, i])) for i in order]
            open_, fetch = undecided, min(2 * fetch, total)
        return found


def embed_corpus(corpus: Corpus, encoder: Encoder, path: Path, dtype: Literal["float32", "float16"]) -> None:
    """Encodes all passages into a `.npy` file of shape (passages, dim), chunk by chunk, with a progress bar."""
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=(len(corpus), encoder.dim))
    with progress_bar(len(corpus), f"embeddings ({encoder.name})", "passage") as bar:
        for start in range(0, len(corpus), _CHUNK):
            stop = min(start + _CHUNK, len(corpus))
            texts = [corpus.contents(position) for position in range(start, stop)]
            rows[start:stop] = encoder.encode(texts, "passage", on_batch=bar.update)
    rows.flush()


def load_embeddings(path: Path) -> NDArray[Any]:
    """Maps an embeddings file into memory.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: the embeddings cannot be read ({error}); {REBUILD}") from error
