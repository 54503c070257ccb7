"""Open faiss indexes: exact search over mapped rows, and any faiss index with its candidates ranked anew."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import MissingDependencyError
from rpl.retrieval.engines import VectorIndex


class FaissIndex(VectorIndex):
    """A faiss index in memory or mapped.

    Args:
        index: Any faiss index under the inner product.
        candidates: See `VectorIndex.candidates`.
        embeddings: Rows to rank candidates anew with; `None` keeps the scores of the index.
    """

    def __init__(self, index: Any, candidates: int | None = None, embeddings: NDArray[Any] | None = None) -> None:
        self.index = index
        self.size, self.dim = int(index.ntotal), int(index.d)
        self.candidates = candidates
        self._embeddings = embeddings

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the nearest rows; see `VectorIndex.search`."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, places = self.index.search(queries, k)
        if self._embeddings is not None:
            for number, query in enumerate(queries):
                scores[number], places[number] = self._rescore(query, places[number])
        return scores, places

    def _rescore(
        self, query: NDArray[np.float32], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        assert self._embeddings is not None
        # In rising order, so that rows are read from disk front to back and ties come out in corpus order.
        found = np.sort(places[places >= 0])
        scores, order = np.full(len(places), -np.inf, np.float32), np.full(len(places), -1, np.int64)
        if len(found):
            rows = np.ascontiguousarray(self._embeddings[found], dtype=np.float32)
            best, at = import_faiss().knn(query[None], rows, len(found), metric=import_faiss().METRIC_INNER_PRODUCT)
            scores[: len(found)], order[: len(found)] = best[0], found[at[0]]
        return scores, order


class MappedFlatIndex(VectorIndex):
    """Exact search over rows that stay on disk.

    Args:
        embeddings: float32 of shape (passages, dim), mapped or in memory.
    """

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._faiss = import_faiss()
        self._rows = np.asarray(embeddings)
        self.size, self.dim = embeddings.shape

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the nearest rows; see `VectorIndex.search`."""
        found = self._faiss.knn(
            np.ascontiguousarray(queries, dtype=np.float32), self._rows, k, metric=self._faiss.METRIC_INNER_PRODUCT
        )
        return found[0], found[1]


def wants_gpu(faiss: Any, asked: bool | None) -> bool:
    """Tells whether to use a GPU.

    Raises:
        MissingDependencyError: One was asked for and faiss has none.
    """
    present = hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
    if asked and not present:
        raise MissingDependencyError(
            "library.dense_index: gpu is true but faiss finds no GPU; "
            "replace faiss-cpu by a GPU build (conda install -c pytorch faiss-gpu)"
        )
    return present if asked is None else asked


def import_faiss() -> Any:
    """Returns the faiss module.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("dense search needs faiss: pip install faiss-cpu") from error
    if sys.platform == "darwin":
        # Two OpenMP runtimes (torch's and faiss's) in one process crash on macOS when both run threads.
        faiss.omp_set_num_threads(1)
    return faiss
