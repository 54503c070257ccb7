"""One case of the scale benchmark, in a process of its own: builds an index, or opens one and searches it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import synthetic
from benchmarks.scale_figures import (
    PeakMemory,
    drop_from_cache,
    files_of,
    mapped,
    milliseconds,
    read_into_cache,
    recall,
    resident,
)
from benchmarks.turns import Turns
from rpl.retrieval.corpus.store import open_store
from rpl.retrieval.dense.faiss_search import import_faiss
from rpl.retrieval.engines import DENSE_INDEXES, KEYWORD_ENGINES, Analysis, DenseIndex, KeywordEngine, make

K = 10
"""Results that a query asks for."""
BATCH = 64
COLD = 64
"""Queries, of those there are, that find nothing in memory yet; the others are timed after them."""
_SPARE = 16
"""`DenseRetriever` asks an exact index for so many more, to see ties."""

Search = Callable[[int, int], Any]
"""Answers the queries from one place up to another."""


class Dense:
    """A dense index over the library's vectors."""

    def __init__(self, engine: DenseIndex, library: Path) -> None:
        import_faiss()  # so that it is not counted as part of the index
        self.engine, self.library = engine, library
        self.embeddings = np.load(library / synthetic.EMBEDDINGS, mmap_mode="r")
        self.queries = np.load(library / synthetic.QUERIES)
        self.files = [library / synthetic.EMBEDDINGS]

    def build(self, folder: Path) -> None:
        """Writes the index."""
        folder.mkdir()
        self.engine.build(self.embeddings, folder)

    def open(self, folder: Path) -> Search:
        """Opens the index."""
        self.index = self.engine.load(self.embeddings, folder)
        fetch = self.index.candidates or K + _SPARE
        return lambda start, stop: self.index.search(self.queries[start:stop], fetch)

    def quality(self) -> dict[str, float]:
        """Returns recall against exact search, with its standard error."""
        truth = np.load(self.library / synthetic.TRUTH)
        places = self.index.search(self.queries, self.index.candidates or synthetic.DEPTH)[1]
        figures = {}
        for k in (K, synthetic.DEPTH):
            share, error = recall(places, truth, k)
            figures |= {f"recall@{k}": round(share, 4), f"recall@{k}_error": round(error, 4)}
        return figures

    def cost(self) -> dict[str, int]:
        """Returns what the product says beforehand."""
        passages, dim = self.embeddings.shape
        cost = self.engine.cost(passages, dim, self.embeddings.itemsize)
        return {"disk": cost.disk, "memory": cost.memory, "build_memory": cost.build_memory}


class Keyword:
    """A keyword index over the library's texts."""

    def __init__(self, engine: KeywordEngine, library: Path) -> None:
        import bm25s  # noqa: F401 - so that it is not counted as part of the index

        self.engine, self.analysis = engine, Analysis()
        self.corpus = open_store(library / synthetic.CORPUS)
        self.queries: Sequence[str] = json.loads((library / synthetic.QUESTIONS).read_text())
        self.files = files_of(library / synthetic.CORPUS)

    def build(self, folder: Path) -> None:
        """Writes the index."""
        self.engine.build(self.corpus, folder, self.analysis)

    def open(self, folder: Path) -> Search:
        """Opens the index."""
        retriever = self.engine.load(self.corpus, folder, self.analysis)
        return lambda start, stop: retriever.search(self.queries[start:stop], K)

    def quality(self) -> dict[str, float]:
        """Returns nothing: keyword search is exact."""
        return {}

    def cost(self) -> dict[str, int]:
        """Returns nothing: the engines of keyword search say no cost."""
        return {}


def build(case: Dense | Keyword, folder: Path, turns: Turns) -> None:
    """Builds the index and reports seconds, memory and bytes on disk."""
    turns.ready()
    turns.wait()
    with PeakMemory() as memory:
        started = time.perf_counter()
        case.build(folder)
        seconds = time.perf_counter() - started
    peak = {kind: memory.peak[kind] - memory.start[kind] for kind in ("anonymous", "mapped")}
    disk = sum(path.stat().st_size for path in files_of(folder))
    turns.done(seconds, disk=disk, build_anonymous=peak["anonymous"], build_mapped=peak["mapped"], cost=case.cost())


def serve(case: Dense | Keyword, folder: Path, turns: Turns) -> None:
    """Opens the index and reports times, before and after its files are in memory, with memory and recall."""
    drop_from_cache(files_of(folder, *case.files))
    turns.ready()
    turns.wait()
    before, started = resident(), time.perf_counter()
    search = case.open(folder)
    opened = time.perf_counter() - started
    total = len(case.queries)
    cold = min(COLD, total // 2)
    cold_times = [_timed(search, n, n + 1) for n in range(cold)]
    read_into_cache(files_of(folder, *case.files))
    times = [_timed(search, n, n + 1) for n in range(cold, total)]
    starts = range(cold, total - BATCH + 1, BATCH)
    batches = [_timed(search, n, n + BATCH) / BATCH for n in starts]
    after = resident()
    turns.done(
        sum(cold_times) + sum(times),
        open_s=round(opened, 3),
        queries=len(times),
        single=milliseconds(times),
        cold=milliseconds(cold_times),
        batch=milliseconds(batches) if batches else None,
        memory={
            "anonymous": after["anonymous"] - before["anonymous"],
            "index": mapped(files_of(folder)),
            "data": mapped(case.files),
        },
        resident=after["rss"],
        cost=case.cost(),
        **case.quality(),
    )


def _timed(search: Search, start: int, stop: int) -> float:
    started = time.perf_counter()
    search(start, stop)
    return time.perf_counter() - started


def open_case(engine: str, library: Path) -> Dense | Keyword:
    """Returns the case of an engine, written as `rpl.retrieval.engines.describe` writes it, in JSON."""
    spec = json.loads(engine)
    if _name(spec) in KEYWORD_ENGINES or _name(spec) in KEYWORD_ENGINES.values():
        return Keyword(make("bm25", spec, KeywordEngine, KEYWORD_ENGINES), library)  # type: ignore[type-abstract]
    return Dense(make("dense_index", spec, DenseIndex, DENSE_INDEXES), library)  # type: ignore[type-abstract]


def _name(spec: Any) -> str:
    return spec if isinstance(spec, str) else str(spec["class_path"])


def main() -> None:
    """Reads the command line and works one turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", choices=("build", "serve"))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    turns = Turns()
    case = open_case(args.engine, args.library)
    {"build": build, "serve": serve}[args.phase](case, args.folder, turns)
    turns.finish()


if __name__ == "__main__":
    main()
