"""What every `Retriever` and `Reranker` must do, run on each engine."""

import itertools

import numpy as np
import pytest

from rpl.core.errors import RetrieverError
from rpl.retrieval.base import MAX_K
from rpl.retrieval.canary import probe
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.dense.faiss_indexes import HNSW, IVFPQ
from rpl.retrieval.dense.search import DenseRetriever, embed_corpus, load_embeddings
from rpl.retrieval.engines import dense_index, keyword_engine
from rpl.retrieval.keyword.lucene import LuceneRetriever
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.rerank.rerankers import LateInteractionReranker

KEYWORD = ["bm25s", "memory", pytest.param("lucene", marks=pytest.mark.java)]
DENSE = {
    "flat": ("flat", "float32"),
    "flat float16": ("flat", "float16"),
    "fp16": ("fp16", "float32"),
    "sq8": ("sq8", "float32"),
    "hnsw": ("hnsw", "float32"),
    "hnsw in 8 bits": (HNSW(storage="sq8"), "float16"),
    "ivfpq": (IVFPQ(lists=4, bits=4), "float32"),
    "milvus dense": ("milvus", "float32"),
}
QUERIES = ["river bridge", "castle", "who painted the copper temple", "Island 7", "silver silver market"]


def build_keyword(name, corpus, folder):
    config = LibraryConfig(bm25=name)
    engine = keyword_engine(config)
    engine.build(corpus, folder / "keyword", config.analysis)
    return engine.load(corpus, folder / "keyword", config.analysis)


def build_dense(index, dtype, corpus, folder):
    embed_corpus(corpus, HashEncoder(), folder / "embeddings.npy", dtype)
    embeddings = load_embeddings(folder / "embeddings.npy")
    engine = dense_index(LibraryConfig(dense_index=index))
    (folder / "dense").mkdir()
    engine.build(embeddings, folder / "dense")
    return DenseRetriever(corpus, HashEncoder(), engine.load(embeddings, folder / "dense"))


def needs(name):
    if name.startswith("milvus"):
        pytest.importorskip("pymilvus")
        pytest.importorskip("milvus_lite")
    if name == "lucene":
        pytest.importorskip("pyserini")


@pytest.fixture(scope="module", params=[*KEYWORD, *DENSE])
def retriever(request, corpus, tmp_path_factory):
    needs(request.param)
    folder = tmp_path_factory.mktemp("engine")
    if request.param in DENSE:
        retriever = build_dense(*DENSE[request.param], corpus, folder)
    else:
        retriever = build_keyword(request.param, corpus, folder)
    yield retriever
    getattr(retriever, "close", lambda: None)()


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
    # Anserini lowers scores that tie by steps of a millionth.
    assert ties > 0 or isinstance(retriever, LuceneRetriever)


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


@pytest.mark.parametrize("retriever", KEYWORD, indirect=True)
def test_keyword_search_returns_only_passages_that_match(retriever):
    assert retriever.search(["zeppelin", "the of and", "?!"], 10) == [[], [], []]
    mixed = retriever.search(["?!", "castle", "zeppelin"], MAX_K)
    assert [bool(hits) for hits in mixed] == [False, True, False]
    for hit in mixed[1]:
        assert hit.score > 0
        assert "castle" in f"{hit.title} {hit.text}".lower()


@pytest.mark.parametrize("retriever", DENSE, indirect=True)
def test_dense_scores_are_those_of_the_exact_index(retriever, retrievers):
    """All candidates are looked at here, so that what is found and in which order may not depend on the index."""
    for found, wanted in zip(retriever.search(QUERIES, 20), retrievers["dense"].search(QUERIES, 20), strict=True):
        np.testing.assert_allclose([p.score for p in found], [p.score for p in wanted], atol=1e-3)
    other = retrievers["dense"].search(["castle hill"], 20)[0]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            [p.score for p in retriever.search(["castle"], 20)[0]], [p.score for p in other], atol=1e-3
        )


def test_the_canaries_pass(retriever, corpus):
    report = probe(retriever.search, corpus)
    assert (report.tried, report.found, report.same_answer) == (8, 8, False)


@pytest.mark.parametrize("retriever", DENSE, indirect=True)
def test_a_broken_encoder_is_an_infrastructure_fault(retriever, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(retriever.encoder, "encode", fail)
    with pytest.raises(RetrieverError, match="out of memory"):
        retriever.search(["castle"], 5)


def test_a_broken_index_is_an_infrastructure_fault(retriever, monkeypatch):
    inner = next(n for n in ("_index", "index", "_searcher", "_postings") if hasattr(retriever, n))
    monkeypatch.setattr(retriever, inner, None)
    with pytest.raises(RetrieverError):
        retriever.search(["castle"], 5)


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
