"""Dense search: encodes the query, asks a vector index, and puts the results in a deterministic order."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import DataError, RetrieverError
from rpl.core.progress import progress_bar
from rpl.core.records import Passage
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus.corpus import REBUILD, Corpus
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.dense.shards import Shards
from rpl.retrieval.engines import VectorIndex

SCORE_DECIMALS = 5
"""Scores are rounded to this many decimals before they are ranked. The same text encoded in another batch differs by
about 1e-7; without rounding such noise, and not corpus order, would decide between equal passages."""

SHARD_PASSAGES = 16_384
"""Passages that are encoded and written at once, by one process."""

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


def embed_corpus(
    corpus: Corpus,
    encoder: Encoder,
    path: Path,
    dtype: Literal["float32", "float16"],
    state: Path | None = None,
) -> None:
    """Encodes all passages into a `.npy` file of shape (passages, dim), shard by shard, with a progress bar.

    Args:
        corpus: The passages.
        encoder: Makes the rows.
        path: The file. It may be unfinished, from a process that was killed.
        dtype: Number format of the rows.
        state: File that remembers which shards are done and lets other processes take some of them with
            `share_embedding`; what it says must be of the same corpus, encoder and format. `None` begins anew.
    """
    if state is None:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            prepare_embedding(len(corpus), encoder.dim, path, dtype, Path(folder) / "shards")
            share_embedding(corpus, encoder, path, Path(folder) / "shards")
        return
    prepare_embedding(len(corpus), encoder.dim, path, dtype, state)
    share_embedding(corpus, encoder, path, state)


def prepare_embedding(passages: int, dim: int, path: Path, dtype: str, state: Path) -> None:
    """Makes an embeddings file whose rows are still to come, and the state of its shards, unless both are there."""
    if path.exists() and state.exists():
        return
    state.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=(passages, dim)).flush()
    Shards.create(state, math.ceil(passages / SHARD_PASSAGES))


def share_embedding(corpus: Corpus, encoder: Encoder, path: Path, state: Path) -> None:
    """Encodes the shards that no other process has taken, and returns when all are done; see `embed_corpus`."""
    rows = load_embeddings(path)
    if rows.shape != (len(corpus), encoder.dim):
        raise DataError(f"{path}: has shape {rows.shape} instead of {(len(corpus), encoder.dim)}; {REBUILD}")
    bounds = [(start, min(start + SHARD_PASSAGES, len(corpus))) for start in range(0, len(corpus), SHARD_PASSAGES)]
    with Shards(state) as shards, path.open("r+b", buffering=0) as file:

        def finished() -> int:
            return sum(stop - start for (start, stop), done in zip(bounds, shards.done(), strict=True) if done)

        counted = finished()
        with progress_bar(len(corpus), f"embeddings ({encoder.name})", "passage", initial=counted) as bar:
            for number in shards.take():
                start, stop = bounds[number]
                vectors = encoder.encode(corpus.contents_between(start, stop), "passage", on_batch=bar.update)
                # Written past the mapping, so that a full disk is an error and not a signal that kills the process.
                data = np.ascontiguousarray(vectors, dtype=rows.dtype)
                write_at(file.fileno(), data.data.cast("B"), rows.offset + start * rows.strides[0])
                os.fsync(file.fileno())
                by_all = finished() + stop - start
                bar.update(by_all - counted - (stop - start))
                counted = by_all
            bar.update(len(corpus) - counted)


def load_embeddings(path: Path) -> np.memmap[Any, Any]:
    """Maps an embeddings file into memory.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: the embeddings cannot be read ({error}); {REBUILD}") from error
    assert isinstance(rows, np.memmap)
    return rows


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all of some bytes at an offset of an open file."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
