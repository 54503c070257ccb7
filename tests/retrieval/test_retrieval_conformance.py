"""What every `Retriever` and `Reranker` must do, run on each backend."""

import itertools

import pytest

from rpl.errors import RetrieverError
from rpl.retrieval.base import MAX_K
from rpl.retrieval.encoders import HashEncoder
from rpl.retrieval.rerank import LateInteractionReranker

BACKENDS = ["bm25s", "bm25s loaded", "memory", "dense", "dense float16"]
QUERIES = ["river bridge", "castle", "who painted the copper temple", "Island 7", "silver silver market"]


@pytest.fixture(params=BACKENDS)
def retriever(request, retrievers):
    return retrievers[request.param]


@pytest.mark.parametrize("k", [1, 3, 10, MAX_K])
def test_lists_are_ranked_and_bounded(retriever, corpus, k):
    for hits in retriever.search(QUERIES, k):
        assert 1 <= len(hits) <= k
        assert [hit.rank for hit in hits] == list(range(len(hits)))
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(type(score) is float for score in scores)
        assert len({hit.id for hit in hits}) == len(hits)
        for hit in hits:
            passage = corpus.get(hit.id)
            assert (hit.title, hit.text) == (passage.title, passage.text)


def test_ties_are_in_corpus_order(retriever, corpus):
    ties = 0
    for hits in retriever.search(QUERIES, MAX_K):
        for one, two in itertools.pairwise(hits):
            if one.score == two.score:
                ties += 1
                assert corpus.position(one.id) < corpus.position(two.id)
    assert ties > 0


def test_a_short_list_is_the_start_of_a_long_one(retriever):
    for short, long in zip(retriever.search(QUERIES, 5), retriever.search(QUERIES, 50), strict=True):
        assert [(p.id, p.score) for p in short] == [(p.id, p.score) for p in long[:5]]


def test_copies_of_a_passage_come_out_in_corpus_order(retriever, corpus):
    hits = retriever.search([corpus.contents(0)], 3)[0]
    assert [hit.id for hit in hits] == ["p0", "p118", "p119"]
    assert [hit.id for hit in retriever.search([corpus.contents(0)], 1)[0]] == ["p0"]


def test_a_batch_answers_like_single_queries(retriever):
    assert retriever.search(QUERIES, 7) == [retriever.search([query], 7)[0] for query in QUERIES]


def test_no_queries_give_no_lists(retriever):
    assert retriever.search([], 5) == []


def test_repeats_are_equal(retriever):
    assert retriever.search(QUERIES, 20) == retriever.search(QUERIES, 20)


@pytest.mark.parametrize("backend", ["bm25s", "memory"])
def test_keyword_search_returns_only_passages_that_match(retrievers, backend):
    assert retrievers[backend].search(["zeppelin", "the of and", "?!"], 10) == [[], [], []]
    for hit in retrievers[backend].search(["castle"], MAX_K)[0]:
        assert hit.score > 0
        assert "castle" in f"{hit.title} {hit.text}".lower()


def test_a_broken_encoder_is_an_infrastructure_fault(retrievers, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    dense = retrievers["dense"]
    monkeypatch.setattr(dense.encoder, "encode", fail)
    with pytest.raises(RetrieverError, match="out of memory"):
        dense.search(["castle"], 5)


def test_a_broken_keyword_index_is_an_infrastructure_fault(retrievers, monkeypatch):
    monkeypatch.setattr(retrievers["bm25s"], "_index", None)
    with pytest.raises(RetrieverError):
        retrievers["bm25s"].search(["castle"], 5)


def test_reranker_returns_the_same_passages_in_order(corpus):
    reranker = LateInteractionReranker(HashEncoder())
    passages = [corpus.passage(i) for i in (5, 0, 9, 119, 30)]
    found = reranker.rerank(corpus.contents(9), passages)
    assert sorted(p.id for p in found) == sorted(p.id for p in passages)
    assert found[0].id == "p9"
    assert [p.rank for p in found] == list(range(5))
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    copies = [p.id for p in found if p.id in ("p0", "p119")]
    assert copies == ["p0", "p119"]
    assert [p.id for p in reranker.rerank(corpus.contents(9), passages[::-1]) if p.id in ("p0", "p119")] == [
        "p119",
        "p0",
    ]
    assert reranker.rerank("castle", []) == []
