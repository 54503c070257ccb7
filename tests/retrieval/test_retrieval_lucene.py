"""Lucene through pyserini; the tests marked `java` need both it and a JDK."""

import subprocess
import types

import pytest

from rpl.errors import ConfigError, MissingDependencyError
from rpl.retrieval import lucene


@pytest.fixture(autouse=True)
def _forget_probe():
    lucene.probe_java.cache_clear()
    yield
    lucene.probe_java.cache_clear()


def test_a_missing_java_gives_the_install_line(monkeypatch):
    answer = types.SimpleNamespace(returncode=1, stderr="Traceback\nException: Unable to find libjvm.so\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rpl\[lucene\]' and a JDK 21 .*libjvm"):
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


@pytest.mark.java
def test_search(corpus, tmp_path):
    pytest.importorskip("pyserini")
    lucene.build_lucene(corpus, tmp_path / "lucene")
    retriever = lucene.LuceneRetriever(tmp_path / "lucene", corpus)
    hits = retriever.search([corpus.contents(0)], 3)[0]
    assert [hit.id for hit in hits] == ["p0", "p118", "p119"]
    assert [hit.rank for hit in hits] == [0, 1, 2]
