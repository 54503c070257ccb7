"""Dense search against brute force, late interaction against loops, encoders against their own promises."""

import numpy as np
import pytest

from rpl.core.errors import DataError, RetrieverError
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.dense.faiss_indexes import Flat
from rpl.retrieval.dense.known_encoders import default_pooling, default_prefixes
from rpl.retrieval.dense.search import SCORE_DECIMALS, DenseRetriever, embed_corpus, load_embeddings
from rpl.retrieval.rerank.rerankers import LateInteractionReranker, max_sim, order_by

TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query"
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
    retriever = DenseRetriever(corpus, encoder, Flat().load(embeddings, tmp_path))
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
    hits = DenseRetriever(corpus, encoder, Flat().load(embeddings, tmp_path)).search(["castle"], 10)[0]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose([h.score for h in hits], scores[wanted], atol=2e-5)


def test_a_long_run_of_ties_keeps_corpus_order(tmp_path):
    """More copies than the spare results of one index search: all of them must be looked at."""
    size = 200
    corpus = Corpus([f"p{i}" for i in range(size)], [""] * size, ["same words"] * size)
    encoder = HashEncoder()
    embed_corpus(corpus, encoder, tmp_path / "e.npy", "float32")
    hits = DenseRetriever(corpus, encoder, Flat().load(load_embeddings(tmp_path / "e.npy"), tmp_path)).search(
        ["same words"], 5
    )[0]
    assert [hit.id for hit in hits] == ["p0", "p1", "p2", "p3", "p4"]


def test_shapes_must_fit(corpus, tmp_path):
    with pytest.raises(DataError, match=r"the dense index has shape \(3, 64\); 120 passages and encoder 'hash' need"):
        DenseRetriever(corpus, HashEncoder(), Flat().load(np.zeros((3, 64), dtype=np.float32), tmp_path))


def test_a_batch_is_one_call_of_encoder_and_index(corpus, tmp_path, monkeypatch):
    """Also where some queries of a batch have ties that run past what was fetched first."""
    copies = Corpus(
        [f"p{i}" for i in range(200)], [""] * 200, ["same words"] * 100 + [f"castle {i}" for i in range(100)]
    )
    encoder = HashEncoder()
    embed_corpus(copies, encoder, tmp_path / "e.npy", "float32")
    retriever = DenseRetriever(copies, encoder, Flat().load(load_embeddings(tmp_path / "e.npy"), tmp_path))
    alone = [retriever.search([query], 5)[0] for query in ("same words", "castle 7", "castle 9 same")]
    calls = []
    original = retriever.index.search
    monkeypatch.setattr(retriever.index, "search", lambda q, k: calls.append((len(q), k)) or original(q, k))
    assert retriever.search(["castle 7", "castle 9 same"], 5) == alone[1:]
    assert calls == [(2, 21)]
    assert retriever.search(["same words", "castle 7", "castle 9 same"], 5) == alone
    assert calls[1:] == [(3, 21), (1, 42), (1, 84), (1, 168)]


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
        ("Qwen/Qwen3-Embedding-0.6B", {}, (f"{TASK}\nQuery:", "")),
        ("intfloat/multilingual-e5-large-instruct", {}, (f"{TASK}\nQuery: ", "")),
    ],
)
def test_prefixes(name, prompts, prefixes):
    assert default_prefixes(name, prompts) == prefixes


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("intfloat/e5-base-v2", "mean"),
        ("/models/multilingual-e5-small/", "mean"),
        ("BAAI/bge-small-en-v1.5", "cls"),
        ("BAAI/bge-m3", "cls"),
        ("Qwen/Qwen3-Embedding-0.6B", "last"),
        ("sentence-transformers/all-MiniLM-L6-v2", "mean"),
    ],
)
def test_pooling_of_known_encoders(name, pooling, caplog):
    assert default_pooling(name) == pooling
    assert caplog.text == ""


def test_unknown_pooling_is_said(caplog):
    assert default_pooling("someone/model") == "mean"
    assert "its pooling is not known; taking the mean" in caplog.text
