"""What an index will cost, said before it is built."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rpl.errors import ConfigError
from rpl.retrieval.corpus import Corpus
from rpl.retrieval.encoders import Encoder
from rpl.retrieval.tokens import Tokenizer

_SAMPLE = 200
_ENCODED_SAMPLE = 16
_POSTING_BYTES = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """Size and duration of an index, from a sample of the corpus."""

    passages: int
    corpus_bytes: int
    keyword_bytes: int
    embedding_bytes: int
    """passages × dim × bytes of a number; 0 without embeddings."""
    seconds: float

    @property
    def disk_bytes(self) -> int:
        """Space the index folder will take."""
        return self.corpus_bytes + self.keyword_bytes + self.embedding_bytes

    def __str__(self) -> str:
        return (
            f"{self.passages:,} passages: about {_size(self.disk_bytes)} on disk "
            f"(embeddings {_size(self.embedding_bytes)}, keyword index {_size(self.keyword_bytes)}), "
            f"{_size(self.embedding_bytes + self.corpus_bytes)} of memory in use, {_duration(self.seconds)}"
        )


def estimate(corpus: Corpus, tokenizer: Tokenizer, encoder: Encoder | None, dtype: str = "float32") -> Estimate:
    """Measures a sample of the corpus and projects it to the whole.

    Args:
        corpus: The passages.
        tokenizer: Of keyword search.
        encoder: `None` where there will be no embeddings.
        dtype: Number format of the embeddings.
    """
    step = max(1, len(corpus) // _SAMPLE)
    sample = [corpus.contents(position) for position in range(0, len(corpus), step)]
    scale = len(corpus) / len(sample)
    started = time.perf_counter()
    terms = sum(len(set(tokenizer(text))) for text in sample)
    seconds = 2 * (time.perf_counter() - started) * scale
    embedding_bytes = 0
    if encoder is not None:
        embedding_bytes = len(corpus) * encoder.dim * np.dtype(dtype).itemsize
        texts = sample[:: max(1, len(sample) // _ENCODED_SAMPLE)]
        # The first call also pays for what a model sets up once.
        encoder.encode(texts[:1], "passage")
        started = time.perf_counter()
        encoder.encode(texts, "passage")
        seconds += (time.perf_counter() - started) / len(texts) * len(corpus)
    corpus_bytes = int(sum(len(text.encode()) + 40 for text in sample) * scale)
    return Estimate(len(corpus), corpus_bytes, int(terms * _POSTING_BYTES * scale), embedding_bytes, seconds)


def require_space(folder: Path, needed: int) -> None:
    """Stops before a build that would fill the disk.

    Raises:
        ConfigError: There is less free space than the index needs.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"library.index_dir: the index needs about {_size(needed)} but only {_size(free)} are free at {folder}; "
            "choose another folder or embedding_dtype: float16"
        )


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
