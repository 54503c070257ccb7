"""Keyword search with Milvus (extra `milvus`): BM25 weights as sparse vectors, matched by inner product.

Tokens and weights are our own, so that the same settings mean the same on every machine: a passage's vector holds, for
each of its words, the whole BM25 weight of that word in that passage, and a query's vector how often it has the word.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rpl.core.errors import DataError, RetrieverError
from rpl.core.files import write_json
from rpl.core.progress import progress_bar
from rpl.core.records import Passage
from rpl.retrieval.base import MAX_K, Retriever
from rpl.retrieval.corpus.corpus import REBUILD, Corpus
from rpl.retrieval.dense.milvus import Collection, MilvusSettings, build_collection
from rpl.retrieval.engines import Analysis, KeywordEngine
from rpl.retrieval.keyword.tokens import Tokenizer

VOCABULARY_FILE = "vocabulary.json"

_BATCH = 2_000
# Asked for whatever k is, so that a short list is the start of a long one also where scores tie.
_FETCH = MAX_K + 28


class MilvusBM25(Retriever):
    """BM25 with Milvus as its inverted index.

    Args:
        corpus: The passages, in the order they were indexed in.
        tokenizer: The one the index was built with.
        vocabulary: Number of each term.
        collection: Open.
    """

    name = "bm25"
    gather = True

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, vocabulary: dict[str, int], collection: Collection
    ) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._collection = collection

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the passages that share a word with the query, best first; see `Retriever.search`."""
        vectors = [self._vector(query) for query in queries]
        asked = [vector for vector in vectors if vector]
        try:
            answers = iter(self._collection.search(asked, min(_FETCH, len(self.corpus))) if asked else [])
            return [self._passages(next(answers), k) if vector else [] for vector in vectors]
        except RetrieverError:
            raise
        except Exception as error:
            raise RetrieverError(f"keyword search failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Closes the connection."""
        self._collection.close()

    def _vector(self, query: str) -> dict[int, float]:
        terms = Counter(self.tokenizer(query))
        return {self._vocabulary[term]: float(n) for term, n in terms.items() if term in self._vocabulary}

    def _passages(self, hits: Sequence[tuple[float, int]], k: int) -> list[Passage]:
        best = sorted((hit for hit in hits if hit[0] > 0), key=lambda hit: (-hit[0], hit[1]))[:k]
        return [self.corpus.passage(place, score, rank) for rank, (score, place) in enumerate(best)]


@dataclass(frozen=True)
class MilvusKeyword(MilvusSettings, KeywordEngine):
    """Milvus with sparse vectors."""

    subfolder: ClassVar[str | None] = "milvus"
    package: ClassVar[str | None] = "pymilvus"

    index_type: str = "SPARSE_INVERTED_INDEX"
    """Milvus' name of the index."""

    def build(self, corpus: Corpus, folder: Path, analysis: Analysis) -> None:
        """Counts words, then inserts weights; see `KeywordEngine.build`."""
        tokenizer = Tokenizer(analysis.stemmer, analysis.stop_words)
        found: Counter[str] = Counter()
        length = 0
        for position in range(len(corpus)):
            terms = tokenizer(corpus.contents(position))
            length += len(terms)
            found.update(set(terms))
        if not found:
            raise DataError("corpus: no passage holds a word that keyword search could index")
        vocabulary = {term: number for number, term in enumerate(found)}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / VOCABULARY_FILE, list(vocabulary))
        weights = _Weights(len(corpus), length / len(corpus), found, analysis)
        batches = _batches(corpus, tokenizer, vocabulary, weights)
        build_collection(self, folder, "SPARSE_FLOAT_VECTOR", None, batches)

    def load(self, corpus: Corpus, folder: Path, analysis: Analysis) -> MilvusBM25:
        """Opens the collection; see `KeywordEngine.load`."""
        path = folder / VOCABULARY_FILE
        try:
            terms = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); {REBUILD}") from error
        collection = Collection(self, folder, len(corpus))
        tokenizer = Tokenizer(analysis.stemmer, analysis.stop_words)
        return MilvusBM25(corpus, tokenizer, {term: number for number, term in enumerate(terms)}, collection)


class _Weights:
    """BM25 weights of words in passages; the formula is that of `MemoryBM25`."""

    def __init__(self, passages: int, mean: float, found: Counter[str], analysis: Analysis) -> None:
        self._mean, self._k1, self._b = mean, analysis.k1, analysis.b
        self._idf = {term: math.log(1 + (passages - df + 0.5) / (df + 0.5)) for term, df in found.items()}

    def __call__(self, terms: Sequence[str]) -> dict[str, float]:
        norm = self._k1 * (1 - self._b + self._b * len(terms) / self._mean)
        return {term: self._idf[term] * count / (count + norm) for term, count in Counter(terms).items()}


def _batches(
    corpus: Corpus, tokenizer: Tokenizer, vocabulary: dict[str, int], weights: _Weights
) -> Iterator[tuple[int, list[dict[int, float]]]]:
    with progress_bar(len(corpus), "keyword index (Milvus)", "passage") as bar:
        for start in range(0, len(corpus), _BATCH):
            places = range(start, min(start + _BATCH, len(corpus)))
            texts = [weights(tokenizer(corpus.contents(place))) for place in places]
            # A passage without words still needs a vector; number len(vocabulary) belongs to no word.
            yield start, [{vocabulary[t]: w for t, w in text.items()} or {len(vocabulary): 1.0} for text in texts]
            bar.update(len(places))
