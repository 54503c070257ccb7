import pytest

from rpl.errors import RetrieverError
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus import Corpus
from rpl.retrieval.health import check, require_healthy
from rpl.retrieval.library import Library
from rpl.retrieval.rerank import LateInteractionReranker


class Constant(Retriever):
    """Returns the same passages for every query."""

    name = "bm25"

    def __init__(self, corpus):
        self.corpus = corpus

    def search(self, queries, k):
        return [[self.corpus.passage(i) for i in range(min(k, 10))] for _ in queries]


class Dead(Retriever):
    name = "dense"

    def search(self, queries, k):
        raise RetrieverError("server gone")


def test_a_healthy_library(library):
    results = check(library)
    assert [result.name for result in results] == ["corpus", "bm25", "dense", "rerank", "links"]
    assert all(result.ok for result in results), results
    assert all(result.detail and result.seconds >= 0 for result in results)
    require_healthy(library)


def test_absent_backends_are_not_checked(keyword_library):
    assert [result.name for result in check(keyword_library)] == ["corpus", "bm25", "links"]


def test_broken_backends_are_named(corpus, library):
    broken = Library(corpus, Constant(corpus), Dead())
    failed = {result.name: result.detail for result in check(broken) if not result.ok}
    assert set(failed) == {"bm25", "dense"}
    assert "same first result" in failed["bm25"]
    assert failed["dense"] == "RetrieverError: server gone"
    with pytest.raises(RetrieverError, match=r"bm25: .*; dense: .*server gone"):
        require_healthy(broken)


def test_a_reranker_that_reverses_is_noticed(library, monkeypatch):
    original = LateInteractionReranker.rerank
    monkeypatch.setattr(LateInteractionReranker, "rerank", lambda self, q, p: original(self, q, p)[::-1])
    assert [result.name for result in check(library) if not result.ok] == ["rerank"]


def test_tiny_and_untitled_corpora():
    corpus = Corpus(["a", "b"], ["", ""], ["one river", "two castles"])
    results = check(Library(corpus, Constant(corpus)))
    assert results[0].ok
    assert "2 without a title" in results[0].detail
