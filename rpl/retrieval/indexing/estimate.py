"""Estimates what each part of an index will cost, and refuses a build for which disk or memory do not suffice."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from rpl.core.errors import ConfigError
from rpl.core.units import duration_text, format_table, size_text
from rpl.retrieval.corpus import store as corpus_store
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.dense.search import SHARD_PASSAGES
from rpl.retrieval.engines import dense_index
from rpl.retrieval.indexing.sampling import Sample
from rpl.retrieval.keyword import bm25_arrays
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.links.surface_forms import surface_forms

_ENCODED = 16
_POSTING_BYTES = 8
_TERM_BYTES = 26
"""A term in the files: its spelling and number in JSON, and where its column begins."""
_TERM_MEMORY = 160
"""A term in a dictionary, with its number."""
_HEAPS = (0.4, 0.7)
"""Bounds of the exponent by which a vocabulary grows with the text (Heaps' law); 0.5 to 0.6 in English."""
_REACHED = 0.5
"""Share of the rate of matrix products that the build of a dense index reaches."""
_KEYWORD_WORK = 1.5
"""Time of a keyword index over that of splitting the passages into words."""


@dataclass(frozen=True, slots=True)
class PartCost:
    """What one part of an index takes. Sizes are bytes."""

    name: str
    disk: int = 0
    temporary: int = 0
    """More disk, while it is made."""
    build_memory: int = 0
    memory: int = 0
    """To search fast; mapped files that a search reads much of count in full."""
    seconds: float | None = 0.0
    """`None` if it cannot be known beforehand."""
    reused: bool = False
    """Whether it is there already."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Size and duration of an index, from a sample of the corpus."""

    passages: int
    parts: tuple[PartCost, ...]
    """In the order in which they are made."""

    @property
    def disk(self) -> int:
        """Space that the finished index will take, in bytes, besides what is there already."""
        return sum(part.disk for part in self.parts)

    @property
    def peak_disk(self) -> int:
        """Most space in use while it is built."""
        done, most = 0, 0
        for part in self.parts:
            most = max(most, done + part.disk + part.temporary)
            done += part.disk
        return most

    @property
    def build_memory(self) -> int:
        """Most memory in use while it is built; parts are made one after the other."""
        return max(part.build_memory for part in self.parts)

    @property
    def memory(self) -> int:
        """Memory in use while it is searched."""
        return sum(part.memory for part in self.parts)

    @property
    def seconds(self) -> float:
        """Time that is known of; see `PartCost.seconds`."""
        return sum(part.seconds or 0.0 for part in self.parts)

    def __str__(self) -> str:
        unknown = [part.name for part in self.parts if part.seconds is None]
        more = f" without {', '.join(unknown)}" if unknown else ""
        reused = [part.name for part in self.parts if part.reused]
        duration = f"about {duration_text(self.seconds)}" if self.seconds >= 1 else duration_text(self.seconds)
        known = f" ({', '.join(reused)} there already)" if reused else ""
        return (
            f"{self.passages:,} passages: about {size_text(self.disk)} on disk and {size_text(self.peak_disk)} while "
            f"it is built, {size_text(self.memory)} of memory in use, {duration}{more}{known}"
        )

    def table(self) -> str:
        """Returns the figures as lines of text, by part."""
        head = ("part", "on disk", "temporary", "memory to build", "memory to search", "time")
        rows = [(part.name, *_row(part)) for part in self.parts]
        total = PartCost("", self.disk, self.peak_disk - self.disk, self.build_memory, self.memory, self.seconds)
        return format_table([head, *rows, ("in all", *_row(total))])


def estimate(
    sample: Sample,
    config: LibraryConfig,
    encoder: Encoder | None,
    reused: Collection[str] = (),
    given_embeddings: bool = False,
    freed: int = 0,
) -> Estimate:
    """Measures a sample of a corpus and projects it to the whole.

    Args:
        sample: Of the corpus.
        config: What will be built.
        encoder: `None` where there will be no embeddings.
        reused: Names of parts that are there already.
        given_embeddings: Whether embeddings come from elsewhere and are not computed.
        freed: Bytes that are given back on the same disk while embeddings are written.
    """
    parts = [_corpus(sample), _keyword(sample, config), _links(sample)]
    if encoder is not None:
        size = sample.passages * encoder.dim * np.dtype(config.embedding_dtype).itemsize
        shard = min(sample.passages, SHARD_PASSAGES) * (encoder.dim * 8 + 2_000)
        known = given_embeddings or "embeddings" in reused
        seconds = None if known else _encoding_seconds(sample, encoder)
        parts.append(PartCost("embeddings", max(0, size - freed), build_memory=shard, seconds=seconds))
        cost = dense_index(config).cost(
            sample.passages, encoder.dim, itemsize=np.dtype(config.embedding_dtype).itemsize
        )
        seconds = cost.products and cost.products / (_REACHED * _products_a_second())
        parts.append(PartCost("dense", cost.disk, 0, cost.build_memory, cost.memory, seconds))
    kept = [PartCost(p.name, memory=p.memory, reused=True) if p.name in reused else p for p in parts]
    return Estimate(sample.passages, tuple(kept))


def require_room(cost: Estimate, folder: Path) -> None:
    """Stops before a build that would fill the disk or the memory.

    Args:
        cost: Of the build.
        folder: Where it is built.

    Raises:
        ConfigError: There is less free space or memory than it needs.
    """
    free, available = free_room(folder)
    advice = _advice(cost)
    if cost.peak_disk > free:
        raise ConfigError(
            f"library.index_dir: building the index needs about {size_text(cost.peak_disk)} but only {size_text(free)} "
            f"are free at {folder}; choose another folder{advice}"
        )
    if available is not None and cost.build_memory > available:
        largest = max(cost.parts, key=lambda part: part.build_memory)
        raise ConfigError(
            f"library: building the index needs about {size_text(cost.build_memory)} of memory, for the part "
            f"{largest.name}, but only {size_text(available)} are available; build it on a larger machine{advice}"
        )


def free_room(folder: Path) -> tuple[int, int | None]:
    """Returns the free bytes of the disk below a folder, and those of memory, where the system says how many."""
    return shutil.disk_usage(folder).free, _available_memory()


def _available_memory() -> int | None:
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # no group, or one without a limit
        pass
    return min(found, default=None)


def _row(part: PartCost) -> tuple[str, ...]:
    sizes = (part.disk, part.temporary, part.build_memory, part.memory)
    duration = "not known" if part.seconds is None else duration_text(part.seconds)
    return (*map(size_text, sizes), "there already" if part.reused else duration)


def _corpus(sample: Sample) -> PartCost:
    values = sum(len(value.encode("utf-8", "replace")) for row in sample.rows for value in row) / len(sample.rows)
    # Three offsets of 8 bytes; a hash and a place.
    disk = int(sample.passages * (values + 24 + 16))
    sorting = sample.passages * corpus_store.BUILD_BYTES_PER_PASSAGE
    batch = min(sample.passages, corpus_store.BATCH_ROWS) * 3 * values
    return PartCost("corpus", disk, 0, int(sorting + batch), 0, sample.passages * sample.read_seconds)


def _keyword(sample: Sample, config: LibraryConfig) -> PartCost:
    tokenizer = Tokenizer(config.stemmer, config.stop_words)
    texts = sample.texts
    tokenizer(texts[0])
    started = time.perf_counter()
    terms = [tokenizer(text) for text in texts]
    seconds = (time.perf_counter() - started) / len(texts)
    scale = sample.passages / len(texts)
    postings = int(sum(len(set(words)) for words in terms) * scale)
    words = int(sum(map(len, terms)) * scale)
    vocabulary = _vocabulary(terms, scale)
    if config.bm25 == "memory":
        return PartCost("keyword", memory=postings * 100, seconds=0.0)
    disk = postings * _POSTING_BYTES + vocabulary * _TERM_BYTES
    batch = min(words * 60, bm25_arrays.BUILD_BYTES)
    return PartCost(
        "keyword",
        disk,
        postings * bm25_arrays.TEMPORARY_BYTES_PER_POSTING,
        build_memory=batch + vocabulary * _TERM_MEMORY + sample.passages * 24,
        memory=disk + vocabulary * _TERM_MEMORY,
        seconds=_KEYWORD_WORK * seconds * sample.passages,
    )


def _vocabulary(terms: Sequence[Sequence[str]], scale: float) -> int:
    """Returns how many different terms the whole has, by Heaps' law through the half and the whole of the sample."""
    half = len({word for words in terms[::2] for word in words})
    whole = len({word for words in terms for word in words})
    exponent = math.log2(whole / half) if half else _HEAPS[0]
    return int(whole * scale ** min(max(exponent, _HEAPS[0]), _HEAPS[1]))


def _links(sample: Sample) -> PartCost:
    titles = [title for _, title, _ in sample.rows]
    started = time.perf_counter()
    for title in titles:
        surface_forms(title)
    # Titles are read twice, and their passages gathered.
    seconds = 3 * (time.perf_counter() - started) / len(titles)
    letters = sum(len(title.encode("utf-8", "replace")) for title in titles) / len(titles)
    forms = sample.passages * sample.titles
    disk = int(sample.passages * 4 + forms * (17 + 0.5 * letters))
    return PartCost("links", disk, sample.passages * 8, int(forms * (letters + 60)), 0, seconds * sample.passages)


def _encoding_seconds(sample: Sample, encoder: Encoder) -> float:
    texts = sample.texts
    texts = texts[:: max(1, len(texts) // _ENCODED)][:_ENCODED]
    # The first call also pays for what a model sets up once.
    encoder.encode(texts[:1], "passage")
    started = time.perf_counter()
    encoder.encode(texts, "passage")
    return (time.perf_counter() - started) / len(texts) * sample.passages


@lru_cache(maxsize=1)
def _products_a_second() -> float:
    """Returns how many multiply-adds of large matrix products this machine does in a second, with all its threads."""
    rows, columns, dim = 1024, 4096, 384
    a, b = np.ones((rows, dim), np.float32), np.ones((dim, columns), np.float32)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return rows * columns * dim / min(times)


def _advice(cost: Estimate) -> str:
    """Returns what to change where the dense parts are the largest; empty otherwise."""
    dense = [part for part in cost.parts if part.name in ("embeddings", "dense")]
    if not dense or sum(part.disk + part.build_memory for part in dense) < 0.3 * (cost.disk + cost.build_memory):
        return ""
    return ", embedding_dtype: float16, or a smaller dense_index (sq8, ivfpq)"
