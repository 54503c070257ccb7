"""Exact BM25 in plain Python: the reference that the fast backend is compared with, and a backend for tiny corpora."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rpl.core.errors import RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.engines import Analysis, KeywordEngine
from rpl.retrieval.keyword.tokens import Tokenizer


class MemoryBM25(Retriever):
    """Scores passages by BM25 as Lucene does, with exact passage lengths and in double precision.

    score(q, d) = sum over the words t of q of idf(t) · tf / (tf + k1 · (1 - b + b · len(d) / mean len)), with
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)). Source: Kamphuis et al., ECIR 2020, "Which BM25 do you mean?",
    row "Lucene (accurate)" without the constant factor k1 + 1.

    Args:
        corpus: The passages; title and text are indexed together.
        tokenizer: Splits passages and queries.
        k1: Term-frequency saturation.
        b: Length normalisation.
    """

    name = "bm25"

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, k1: float = 0.9, b: float = 0.4) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.k1 = k1
        self.b = b
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        for position in range(len(corpus)):
            terms = tokenizer(corpus.contents(position))
            self._lengths.append(len(terms))
            for term, count in Counter(terms).items():
                self._postings[term].append((position, count))
        self._mean = sum(self._lengths) / len(self._lengths) or 1.0

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the passages that share a word with the query, best first; see `Retriever.search`."""
        try:
            return [self._search(query, k) for query in queries]
        except Exception as error:
            raise RetrieverError(f"keyword search failed: {type(error).__name__}: {error}") from error

    def _search(self, query: str, k: int) -> list[Passage]:
        scores: dict[int, float] = defaultdict(float)
        for term in self.tokenizer(query):
            postings = self._postings.get(term, ())
            idf = math.log(1 + (len(self.corpus) - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                norm = self.k1 * (1 - self.b + self.b * self._lengths[position] / self._mean)
                scores[position] += idf * count / (count + norm)
        best = sorted(scores, key=lambda position: (-scores[position], position))[:k]
        return [self.corpus.passage(position, scores[position], rank) for rank, position in enumerate(best)]


@dataclass(frozen=True)
class Memory(KeywordEngine):
    """The reference in memory, indexed anew whenever it is opened."""

    subfolder: ClassVar[str | None] = None

    def build(self, corpus: Corpus, folder: Path, analysis: Analysis) -> None:
        """Writes nothing; see `KeywordEngine.build`."""

    def load(self, corpus: Corpus, folder: Path, analysis: Analysis) -> MemoryBM25:
        """Reads the corpus; see `KeywordEngine.load`."""
        return MemoryBM25(corpus, Tokenizer(analysis.stemmer, analysis.stop_words), analysis.k1, analysis.b)
