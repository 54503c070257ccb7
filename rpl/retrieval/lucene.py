"""Keyword search with Lucene, through pyserini (extra `lucene`): for indexes that must equal published ones.

Java is started in a child process first: a wrong JDK ends the process that starts it, and the class path of a running
JVM can no longer be changed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rpl.errors import ConfigError, MissingDependencyError, RetrieverError
from rpl.files import write_jsonl
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus import Corpus
from rpl.types import Passage

INSTALL = (
    "pip install 'rpl[lucene]' and a JDK 21 with JAVA_HOME set to it "
    "(for instance `conda install -c conda-forge openjdk=21`)"
)
_PROBE_SECONDS = 180
_SPARE = 16


class LuceneRetriever(Retriever):
    """BM25 by Lucene's own code.

    Args:
        folder: A Lucene index whose document ids are the corpus' ids.
        corpus: The passages.
        k1: Term-frequency saturation.
        b: Length normalisation.

    Raises:
        MissingDependencyError: pyserini or a fitting JDK is not installed.
        RetrieverError: The index cannot be opened or has another number of passages.
    """

    name = "bm25"

    def __init__(self, folder: Path, corpus: Corpus, k1: float = 0.9, b: float = 0.4) -> None:
        probe_java()
        from pyserini.search.lucene import LuceneSearcher

        self.corpus = corpus
        self._lock = threading.Lock()
        try:
            self._searcher = LuceneSearcher(str(folder))
            self._searcher.set_bm25(k1, b)
            size = int(self._searcher.num_docs)
        except Exception as error:  # Java exceptions share no base class with ours
            raise RetrieverError(f"{folder}: Lucene cannot open this index: {error}") from error
        if size != len(corpus):
            raise RetrieverError(f"{folder}: the Lucene index holds {size} passages, the corpus {len(corpus)}")

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the passages that share a word with the query, best first; see `Retriever.search`."""
        try:
            with self._lock:
                found = [self._searcher.search(query, k=k + _SPARE) for query in queries]
        except Exception as error:
            raise RetrieverError(f"Lucene search failed: {error}") from error
        return [self._passages([(hit.docid, float(hit.score)) for hit in hits], k) for hits in found]

    def _passages(self, hits: list[tuple[str, float]], k: int) -> list[Passage]:
        places = [(self.corpus.position(id_), score) for id_, score in hits]
        best = sorted(places, key=lambda hit: (-hit[1], hit[0]))[:k]
        return [self.corpus.passage(place, score, rank) for rank, (place, score) in enumerate(best)]


def build_lucene(corpus: Corpus, folder: Path, stemmer: str = "english", stop_words: bool = True) -> None:
    """Indexes a corpus with pyserini's own indexer and analyser, in a child process.

    Raises:
        ConfigError: Another stemmer or stop-word setting than pyserini's default was asked for.
        MissingDependencyError: pyserini or a fitting JDK is not installed.
        RetrieverError: The indexer failed.
    """
    if stemmer != "english" or not stop_words:
        raise ConfigError(
            "library.bm25: lucene uses Lucene's English analyser; leave stemmer and stop_words as they are"
        )
    probe_java()
    with tempfile.TemporaryDirectory() as documents:
        rows = ({"id": id_, "contents": corpus.contents(place)} for place, id_ in enumerate(corpus.ids))
        write_jsonl(Path(documents) / "documents.jsonl", rows)
        command = [sys.executable, "-m", "pyserini.index.lucene", "--collection", "JsonCollection"]
        command += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", "1"]
        command += ["--input", documents, "--index", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RetrieverError(f"pyserini's indexer failed: {_last_lines(done.stderr)}")


@lru_cache(maxsize=1)
def probe_java() -> None:
    """Loads pyserini in a child process, once.

    Raises:
        MissingDependencyError: It does not load; the message says what to install.
    """
    command = [sys.executable, "-c", "from pyserini.search.lucene import LuceneSearcher"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MissingDependencyError(
            f"library.bm25: lucene did not start within {_PROBE_SECONDS} s; {INSTALL}"
        ) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"library.bm25: lucene needs {INSTALL} ({_last_lines(done.stderr)})")


def _last_lines(text: str, count: int = 3) -> str:
    return " | ".join(text.strip().splitlines()[-count:])
