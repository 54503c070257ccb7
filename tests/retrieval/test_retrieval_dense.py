"""Dense search against brute force, late interaction against loops, encoders against their own promises."""

import numpy as np
import pytest

from rpl.errors import DataError, RetrieverError
from rpl.retrieval.corpus import Corpus
from rpl.retrieval.dense import SCORE_DECIMALS, DenseRetriever, embed_corpus, load_embeddings
from rpl.retrieval.encoders import HashEncoder, default_prefixes
from rpl.retrieval.rerank import LateInteractionReranker, max_sim, order_by

QUERIES = ["river bridge", "castle", "who painted the copper temple", "queen", "silver market 3"]


def brute_force(embeddings, query, k):
    scores = np.round(embeddings.astype(np.float64) @ query.astype(np.float64), SCORE_DECIMALS)
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k], scores


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_equals_brute_force(corpus, tmp_path, dtype, k):
    encoder = HashEncoder()
    embed_corpus(corpus, encoder, tmp_path / "e.npy", dtype)
    embeddings = load_embeddings(tmp_path / "e.npy")
    assert embeddings.dtype == dtype
    retriever = DenseRetriever(corpus, encoder, embeddings)
    for text in QUERIES:
        wanted, scores = brute_force(embeddings, encoder.encode([text], "query")[0], k)
        hits = retriever.search([text], k)[0]
        np.testing.assert_allclose([h.score for h in hits], scores[wanted], atol=2e-5)
        # Where two scores differ by less than the rounding step, single and double precision may disagree.
        gaps = np.abs(np.diff(scores[wanted]))
        if not ((gaps > 0) & (gaps < 5e-5)).any() and k < 100:
            assert [h.id for h in hits] == [corpus.ids[i] for i in wanted]


def test_the_tolerance_sees_another_query(corpus, tmp_path):
    encoder = HashEncoder()
    embed_corpus(corpus, encoder, tmp_path / "e.npy", "float32")
    embeddings = load_embeddings(tmp_path / "e.npy")
    wanted, scores = brute_force(embeddings, encoder.encode(["castle hill"], "query")[0], 10)
    hits = DenseRetriever(corpus, encoder, embeddings).search(["castle"], 10)[0]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose([h.score for h in hits], scores[wanted], atol=2e-5)


def test_a_long_run_of_ties_keeps_corpus_order(tmp_path):
    """More copies than the spare results of one index search: all of them must be looked at."""
    size = 200
    corpus = Corpus([f"p{i}" for i in range(size)], [""] * size, ["same words"] * size)
    encoder = HashEncoder()
    embed_corpus(corpus, encoder, tmp_path / "e.npy", "float32")
    hits = DenseRetriever(corpus, encoder, load_embeddings(tmp_path / "e.npy")).search(["same words"], 5)[0]
    assert [hit.id for hit in hits] == ["p0", "p1", "p2", "p3", "p4"]


def test_shapes_must_fit(corpus):
    with pytest.raises(DataError, match=r"embeddings have shape \(3, 64\)"):
        DenseRetriever(corpus, HashEncoder(), np.zeros((3, 64), dtype=np.float32))


def test_damaged_embeddings(tmp_path):
    (tmp_path / "e.npy").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="cannot be read"):
        load_embeddings(tmp_path / "e.npy")


def test_hash_encoder():
    encoder = HashEncoder()
    vectors = encoder.encode(["river bridge", "bridge river", "castle", "?"], "passage")
    assert vectors.shape == (4, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert vectors[0] @ vectors[1] == pytest.approx(1.0, abs=1e-6)
    assert abs(vectors[0] @ vectors[2]) < 0.6
    np.testing.assert_array_equal(HashEncoder().encode(["castle"], "query")[0], vectors[2])
    assert [len(t) for t in encoder.encode_tokens(["river bridge castle", "?"], "passage")] == [3, 1]


def test_max_sim_against_loops():
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 8)).astype(np.float32)
    passages = [rng.standard_normal((n, 8)).astype(np.float32) for n in (1, 5, 3)]
    wanted = [np.mean([max(float(q @ p) for p in passage) for q in query]) for passage in passages]
    np.testing.assert_allclose(max_sim(query, passages), wanted, rtol=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(max_sim(query[:3], passages), wanted, rtol=1e-5)


def test_reranking_does_not_depend_on_what_is_cached(corpus):
    passages = [corpus.passage(i) for i in range(30)]
    small, large = LateInteractionReranker(HashEncoder(), cache_mb=0), LateInteractionReranker(HashEncoder())
    for query in QUERIES:
        assert small.rerank(query, passages) == large.rerank(query, passages) == large.rerank(query, passages)


def test_token_vectors_are_computed_once(corpus, monkeypatch):
    encoder = HashEncoder()
    reranker = LateInteractionReranker(encoder)
    encoded = []
    original = encoder.encode_tokens
    monkeypatch.setattr(encoder, "encode_tokens", lambda t, kind: encoded.append((kind, len(t))) or original(t, kind))
    reranker.rerank("river", [corpus.passage(i) for i in range(5)])
    reranker.rerank("castle", [corpus.passage(i) for i in range(3, 7)])
    assert encoded == [("query", 1), ("passage", 5), ("query", 1), ("passage", 2)]


def test_a_broken_reranker_is_an_infrastructure_fault(corpus, monkeypatch):
    passages = [corpus.passage(0), corpus.passage(1)]
    with pytest.raises(RetrieverError, match="one finite score"):
        order_by(passages, np.array([1.0, np.nan]))
    with pytest.raises(RetrieverError, match="one finite score"):
        order_by(passages, np.array([[1.0], [2.0]]))
    reranker = LateInteractionReranker(HashEncoder())
    monkeypatch.setattr(reranker.encoder, "encode_tokens", lambda *a: 1 / 0)
    with pytest.raises(RetrieverError, match="late interaction failed: ZeroDivisionError"):
        reranker.rerank("river", passages)


@pytest.mark.parametrize(
    ("name", "prompts", "prefixes"),
    [
        ("intfloat/e5-base-v2", {}, ("query: ", "passage: ")),
        ("/models/multilingual-e5-small/", {}, ("query: ", "passage: ")),
        ("BAAI/bge-small-en-v1.5", {}, ("Represent this sentence for searching relevant passages: ", "")),
        ("BAAI/bge-m3", {}, ("", "")),
        ("all-MiniLM-L6-v2", {"query": "", "document": ""}, ("", "")),
        ("someone/model", {"query": "q: ", "document": "d: "}, ("q: ", "d: ")),
        ("intfloat/e5-base-v2", {"query": "q: "}, ("q: ", "")),
        ("someone/the5-base", {}, ("", "")),
    ],
)
def test_prefixes(name, prompts, prefixes):
    assert default_prefixes(name, prompts) == prefixes
