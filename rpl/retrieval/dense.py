"""Dense search: exact inner product over unit vectors, with faiss."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rpl.errors import DataError, MissingDependencyError, RetrieverError
from rpl.progress import progress_bar
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus import REBUILD, Corpus
from rpl.retrieval.encoders import Encoder
from rpl.types import Passage

SCORE_DECIMALS = 5
"""Scores are rounded to this many decimals before they are ranked. The same text encoded in another batch differs by
about 1e-7; without rounding such noise, and not corpus order, would decide between equal passages."""

_CHUNK = 4096
_SPARE = 16


class DenseRetriever(Retriever):
    """Nearest neighbours in the embedding space. All work happens under the encoder's lock.

    Args:
        corpus: The passages, in the order of the embeddings.
        encoder: Encodes queries; must be the one the embeddings come from.
        embeddings: Unit vectors, float32 or float16, of shape (passages, dim).

    Raises:
        DataError: The shapes do not fit together.
        MissingDependencyError: faiss is not installed.
    """

    name = "dense"

    def __init__(self, corpus: Corpus, encoder: Encoder, embeddings: NDArray[Any]) -> None:
        if embeddings.shape != (len(corpus), encoder.dim):
            raise DataError(
                f"embeddings have shape {embeddings.shape}; {len(corpus)} passages and encoder {encoder.name!r} "
                f"need ({len(corpus)}, {encoder.dim})"
            )
        self.corpus = corpus
        self.encoder = encoder
        self._index = _flat_index(embeddings)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the nearest passages, best first; see `Retriever.search`. The score is the cosine similarity."""
        if not queries:
            return []
        try:
            with self.encoder.lock:
                vectors = self.encoder.encode(queries, "query")
                return [self._nearest(vector[None], min(k, len(self.corpus))) for vector in vectors]
        except RetrieverError:
            raise
        except Exception as error:
            raise RetrieverError(f"dense search failed: {type(error).__name__}: {error}") from error

    def _nearest(self, vector: NDArray[np.float32], k: int) -> list[Passage]:
        total = len(self.corpus)
        fetch = min(k + _SPARE, total)
        while True:
            scores, places = self._index.search(np.ascontiguousarray(vector, dtype=np.float32), fetch)
            rounded = np.round(scores[0].astype(np.float64), SCORE_DECIMALS)
            # A tie at the k-th place that runs to the end of what was fetched may hide passages earlier in the corpus.
            if fetch == total or rounded[-1] < rounded[k - 1]:
                break
            fetch = min(2 * fetch, total)
        order = np.lexsort((places[0], -rounded))[:k]
        return [
            self.corpus.passage(int(places[0][i]), float(rounded[i]), rank) for rank, i in enumerate(order.tolist())
        ]


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


def _flat_index(embeddings: NDArray[Any]) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("dense search needs faiss: pip install faiss-cpu") from error
    if sys.platform == "darwin":
        # Two OpenMP runtimes (torch's and faiss's) in one process crash on macOS when both run threads.
        faiss.omp_set_num_threads(1)
    dim = embeddings.shape[1]
    if embeddings.dtype == np.float16:
        index: Any = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexFlatIP(dim)
    for start in range(0, len(embeddings), 65_536):
        index.add(np.ascontiguousarray(embeddings[start : start + 65_536], dtype=np.float32))
    return index
