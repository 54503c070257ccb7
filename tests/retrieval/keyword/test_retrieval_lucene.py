"""Lucene through pyserini; the tests marked `java` need both it and a JDK."""

import os
import subprocess
import types

import pytest

from rpl.core.errors import ConfigError, DataError, MissingDependencyError, RetrieverError
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.keyword import lucene
from rpl.retrieval.keyword.bm25 import BM25Retriever
from rpl.retrieval.keyword.tokens import Tokenizer


@pytest.fixture(autouse=True)
def _forget_probe():
    lucene.probe_java.cache_clear()
    yield
    lucene.probe_java.cache_clear()


def test_a_missing_java_gives_the_install_line(monkeypatch):
    answer = types.SimpleNamespace(returncode=1, stderr="Traceback\nException: Unable to find libjvm.so\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
    with pytest.raises(
        MissingDependencyError,
        match=r"pip install 'retrieval-program-learning\[lucene\]' and a JDK 21 or newer .*libjvm",
    ):
        lucene.probe_java()


def test_a_hanging_java_is_given_up(monkeypatch):
    def hang(command, timeout, **kwargs):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(MissingDependencyError, match="did not start within 180 s"):
        lucene.probe_java()


def test_lucene_has_its_own_analyser(corpus, tmp_path):
    with pytest.raises(ConfigError, match="leave stemmer and stop_words"):
        lucene.build_lucene(corpus, tmp_path / "lucene", stemmer="german")


def test_threads():
    assert lucene.Lucene(threads=4).threads == 4
    with pytest.raises(ConfigError, match=r"library\.bm25: threads must be at least 1, got 0"):
        lucene.Lucene(threads=0)


def test_the_placeholder_key_reaches_the_child_and_nobody_else(monkeypatch):
    seen = {}

    def run(command, env, **kwargs):
        seen.update(env)
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lucene.probe_java()
    assert seen["OPENAI_API_KEY"] == "unused"
    assert "OPENAI_API_KEY" not in os.environ
    lucene.probe_java.cache_clear()
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    lucene.probe_java()
    assert seen["OPENAI_API_KEY"] == "mine"


@pytest.fixture(scope="module")
def searched(corpus, tmp_path_factory):
    pytest.importorskip("pyserini")
    folder = tmp_path_factory.mktemp("lucene") / "index"
    lucene.build_lucene(corpus, folder)
    return folder


@pytest.mark.java
def test_search(corpus, searched):
    assert [path.name for path in searched.parent.iterdir()] == ["index"]
    retriever = lucene.LuceneRetriever(searched, corpus, threads=2)
    hits = retriever.search([corpus.contents(0)], 3)[0]
    assert [hit.id for hit in hits] == ["p0", "p118", "p119"]
    assert [hit.rank for hit in hits] == [0, 1, 2]


@pytest.mark.java
def test_scores_are_those_of_bm25s_up_to_how_lucene_stores_lengths(corpus, searched):
    """Lucene keeps passage lengths in one byte, exactly up to 40 words; those of this corpus are shorter."""
    queries = ["river bridge", "castle", "silver silver market", "composer of the copper king"]
    ours = BM25Retriever.build(corpus, Tokenizer())
    theirs = lucene.LuceneRetriever(searched, corpus)
    for query in queries:
        wanted = {p.id: p.score for p in ours.search([query], 100)[0]}
        found = {p.id: p.score for p in theirs.search([query], 20)[0]}
        assert found == {id_: pytest.approx(wanted[id_], abs=2e-4) for id_ in found}
    changed = {p.id: p.score for p in lucene.LuceneRetriever(searched, corpus, k1=1.2).search(["castle"], 20)[0]}
    same = {id_: pytest.approx(score, abs=2e-4) for id_, score in changed.items()}
    assert {p.id: p.score for p in theirs.search(["castle"], 20)[0]} != same


@pytest.mark.java
def test_an_index_of_another_corpus_is_refused(corpus, searched):
    smaller = Corpus(corpus.ids[:50], corpus.titles[:50], corpus.texts[:50])
    with pytest.raises(DataError, match="holds 120 passages, the corpus 50"):
        lucene.LuceneRetriever(searched, smaller)
    with pytest.raises(RetrieverError, match="Lucene cannot open this index"):
        lucene.LuceneRetriever(searched.parent / "nothing", corpus)
