"""Dense search with Milvus (extra `milvus`): embedded in a file, or on a cluster where one machine is outgrown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rpl.core.progress import progress_bar
from rpl.retrieval.base import MAX_K
from rpl.retrieval.dense.milvus import Collection, MilvusSettings, build_collection
from rpl.retrieval.engines import DenseIndex, IndexCost, VectorIndex

_BATCH_BYTES = 8 << 20
_CANDIDATES = 2 * MAX_K


class MilvusIndex(VectorIndex):
    """A Milvus collection of dense vectors; which index it has inside decides whether it finds all of them.

    Args:
        collection: Open.
        size: Number of vectors.
        dim: Length of a vector.
    """

    def __init__(self, collection: Collection, size: int, dim: int) -> None:
        self._collection = collection
        self.size, self.dim = size, dim
        self.candidates = min(_CANDIDATES, size)

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the nearest rows; see `VectorIndex.search`."""
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        places = np.full((len(queries), k), -1, dtype=np.int64)
        vectors = [np.asarray(query, dtype=np.float32) for query in queries]
        for row, hits in enumerate(self._collection.search(vectors, k)):
            for column, (score, place) in enumerate(hits):
                scores[row, column], places[row, column] = score, place
        return scores, places

    def close(self) -> None:
        """Closes the connection."""
        self._collection.close()


@dataclass(frozen=True)
class MilvusDense(MilvusSettings, DenseIndex):
    """Milvus, by default with the index that it chooses itself."""

    package: ClassVar[str | None] = "pymilvus"

    def build(self, embeddings: NDArray[Any], folder: Path) -> None:
        """Inserts all rows; see `DenseIndex.build`."""
        build_collection(self, folder, embeddings.shape[1], _batches(embeddings))

    def load(self, embeddings: NDArray[Any], folder: Path) -> VectorIndex:
        """Opens the collection; see `DenseIndex.load`."""
        size, dim = embeddings.shape
        return MilvusIndex(Collection(self, folder, size), size, dim)

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns the size of the vectors where they lie in a file here, and nothing where a server has them."""
        size = passages * dim * 4 if self.uri is None else 0
        return IndexCost(disk=size, memory=size, build_memory=size)


def _batches(embeddings: NDArray[Any]) -> Iterator[tuple[int, list[NDArray[np.float32]]]]:
    passages, dim = embeddings.shape
    step = max(1, _BATCH_BYTES // (4 * dim))
    with progress_bar(passages, "dense index (Milvus)", "passage") as bar:
        for start in range(0, passages, step):
            rows = np.asarray(embeddings[start : start + step], dtype=np.float32)
            yield start, list(rows)
            bar.update(len(rows))
