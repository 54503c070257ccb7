"""Writes a synthetic library of any size to a folder: a corpus with questions, vectors with queries and exact results.

Every file is written under a temporary name and renamed, and one that is there already is kept, so an interrupted run
goes on where it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.synthetic_texts import TextShape, TextSource
from benchmarks.synthetic_vectors import VectorShape, VectorSource
from rpl.core.errors import DataError
from rpl.core.files import write_json
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.store import open_store, store_rows
from rpl.retrieval.dense.faiss_indexes import Flat

CORPUS, QUESTIONS = "corpus", "questions.json"
EMBEDDINGS, QUERIES, TRUTH = "embeddings.npy", "queries.npy", "truth.npy"
DEPTH = 100
"""How many exact results of each query are kept."""
_SHAPE = "shape.json"
_CHOICE = 20


@dataclass(frozen=True)
class LibraryShape:
    """What a synthetic library looks like; the same shape gives the same files."""

    passages: int = 1_000_000
    queries: int = 320
    seed: int = 0
    vectors: VectorShape = field(default_factory=VectorShape)
    texts: TextShape = field(default_factory=TextShape)


def prepare(folder: Path, shape: LibraryShape) -> None:
    """Makes the folder of a library, or checks that it is of this shape.

    Raises:
        DataError: It holds a library of another shape.
    """
    wanted = json.loads(json.dumps(asdict(shape)))
    path = folder / _SHAPE
    if path.exists() and json.loads(path.read_text()) != wanted:
        raise DataError(f"{folder}: holds a library of another shape; delete it or choose another --work")
    write_json(path, wanted)


def write_vectors(folder: Path, shape: LibraryShape) -> None:
    """Writes the vectors of passages (float32, shape (passages, dim)), of queries, and the exact results of these."""
    source = VectorSource(shape.vectors, shape.seed)
    if not (folder / EMBEDDINGS).exists():
        size = (shape.passages, shape.vectors.dim)
        with _renamed(folder / EMBEDDINGS) as path, progress_bar(shape.passages, "vectors", "passage") as bar:
            rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=size)
            start = 0
            for block in source.passages(shape.passages):
                rows[start : start + len(block)] = block
                start += len(block)
                bar.update(len(block))
            rows.flush()
            del rows
    embeddings = np.load(folder / EMBEDDINGS, mmap_mode="r")
    if not (folder / QUERIES).exists():
        with _renamed(folder / QUERIES) as path:
            np.save(path, source.queries(chosen(shape)))
    if not (folder / TRUTH).exists():
        exact = Flat(gpu=False).load(embeddings, folder)
        with _renamed(folder / TRUTH) as path:
            np.save(path, exact.search(np.load(folder / QUERIES), min(DEPTH, shape.passages))[1].astype(np.int32))


def write_texts(folder: Path, shape: LibraryShape) -> None:
    """Writes the passages, as an index folder holds them, and questions about those that queries were made of."""
    if (folder / QUESTIONS).exists():
        return
    source = TextSource(shape.texts, shape.seed)
    if not (folder / CORPUS).exists():
        with _renamed(folder / CORPUS) as path:
            path.mkdir()
            pairs = source.passages(shape.passages)
            store_rows(((f"p{n}", *pair) for n, pair in enumerate(pairs)), path, shape.passages)
    passages = map(open_store(folder / CORPUS).passage, chosen(shape).tolist())
    write_json(folder / QUESTIONS, [source.question(p.title, p.text, n) for n, p in enumerate(passages)])


def chosen(shape: LibraryShape) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the places of the passages that queries and questions are about, in rising order."""
    rng = np.random.default_rng([shape.seed, _CHOICE])
    return np.sort(rng.choice(shape.passages, min(shape.queries, shape.passages), replace=False))


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside a file, and renames what was written there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npy")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
