"""The fast keyword index against the exact reference, and the reference against numbers worked out by hand."""

import math
import tracemalloc

import bm25s
import numpy as np
import pytest

from rpl.core.errors import ConfigError, DataError
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.engines import Analysis
from rpl.retrieval.keyword import bm25_arrays
from rpl.retrieval.keyword.bm25 import BM25S, BM25Retriever, top_k
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer

QUERIES = ["river bridge", "castle", "composer of the copper king", "garden garden valley", "Market 17 treaty"]


def scores_by_id(retriever, query):
    return {p.id: p.score for p in retriever.search([query], 100)[0]}


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_equals_the_reference(corpus, k1, b):
    tokenizer = Tokenizer()
    fast, exact = BM25Retriever.build(corpus, tokenizer, k1, b), MemoryBM25(corpus, tokenizer, k1, b)
    for query in QUERIES:
        found, wanted = fast.search([query], 50)[0], exact.search([query], 50)[0]
        assert len(found) == len(wanted)
        np.testing.assert_allclose([p.score for p in found], [p.score for p in wanted], rtol=1e-5)
        reference = scores_by_id(exact, query)
        for hit in found:
            assert hit.id not in reference or hit.score == pytest.approx(reference[hit.id], rel=1e-5)


def test_the_tolerance_sees_a_small_change_of_constants(corpus):
    tokenizer = Tokenizer()
    fast, other = BM25Retriever.build(corpus, tokenizer, 0.9, 0.4), MemoryBM25(corpus, tokenizer, 0.9, 0.401)
    found, wanted = fast.search([QUERIES[0]], 50)[0], other.search([QUERIES[0]], 50)[0]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose([p.score for p in found], [p.score for p in wanted], rtol=1e-5)


def test_the_reference_by_hand():
    corpus = Corpus(["a", "b", "c"], ["", "", ""], ["apple apple pear", "pear", "plum plum"])
    hits = MemoryBM25(corpus, Tokenizer("none"), k1=0.9, b=0.4).search(["apple pear"], 10)[0]
    # N = 3, mean length 2, lengths 3, 1, 2; df(apple) = 1, df(pear) = 2.
    apple, pear = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    norm_a, norm_b = 0.9 * (0.6 + 0.4 * 1.5), 0.9 * (0.6 + 0.4 * 0.5)
    assert [hit.id for hit in hits] == ["a", "b"]
    assert hits[0].score == pytest.approx(apple * 2 / (2 + norm_a) + pear / (1 + norm_a), abs=1e-12)
    assert hits[1].score == pytest.approx(pear / (1 + norm_b), abs=1e-12)


def test_the_title_is_searched_too():
    corpus = Corpus(["a", "b"], ["Lyon", "Paris"], ["A city.", "A city."])
    for retriever in (BM25Retriever.build(corpus, Tokenizer()), MemoryBM25(corpus, Tokenizer())):
        assert [p.id for p in retriever.search(["lyon"], 5)[0]] == ["a"]


def test_a_corpus_without_words_is_refused():
    with pytest.raises(DataError, match="no passage holds a word"):
        BM25Retriever.build(Corpus(["a"], [""], ["the of"]), Tokenizer())


def test_a_passage_without_words_is_never_found():
    corpus = Corpus(["a", "b"], ["", ""], ["the", "lyon"])
    assert [p.id for p in BM25Retriever.build(corpus, Tokenizer()).search(["lyon the"], 5)[0]] == ["b"]


def test_loading_checks_the_size(corpus, tmp_path):
    tokenizer = Tokenizer()
    BM25Retriever.build(corpus, tokenizer).save(tmp_path)
    smaller = Corpus(corpus.ids[:50], corpus.titles[:50], corpus.texts[:50])
    with pytest.raises(DataError, match="120 passages, the corpus 50"):
        BM25Retriever.load(tmp_path, smaller, tokenizer)
    (tmp_path / "indices.csc.index.npy").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="cannot be read"):
        BM25Retriever.load(tmp_path, corpus, tokenizer)


def test_top_k_against_a_full_sort():
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.integers(0, 6, size=40).astype(np.float32)
        candidates = np.flatnonzero(scores > 0)
        k = int(rng.integers(1, 45))
        wanted = sorted(candidates.tolist(), key=lambda i: (-scores[i], i))[:k]
        assert top_k(scores, candidates, k).tolist() == wanted


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("France's neighbours", ["franc", "neighbour"]),
        ("France’s", ["franc"]),
        ("Córdoba São Tomé Łódź", ["cordoba", "sao", "tome", "łodz"]),
        ("O'Brien isn't C", ["o'brien", "isn't", "c"]),
        ("東京タワー 7", ["東", "京", "タワー", "7"]),
        ("the AND Of", []),
        ("", []),
    ],
)
def test_tokens(text, terms):
    assert Tokenizer()(text) == terms


def test_tokens_without_stemmer_and_with_stop_words():
    assert Tokenizer("none", stop_words=False)("The neighbours") == ["the", "neighbours"]


def test_unknown_stemmer():
    with pytest.raises(ConfigError, match=r"library\.stemmer must be none or one of .*english.*klingon"):
        Tokenizer("klingon")


def own_index(corpus, tokenizer, k1, b):
    """What bm25s' own indexer makes of the same tokens, numbered in the order of their first use."""
    vocabulary = {}
    numbers = [
        [vocabulary.setdefault(term, len(vocabulary)) for term in tokenizer(text)]
        for text in corpus.contents_between(0, len(corpus))
    ]
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    index.index((numbers, vocabulary), create_empty_token=False, show_progress=False)
    return index


def same_files(one, two):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    return [name for name in names if (one / name).read_bytes() == (two / name).read_bytes()] == names


@pytest.mark.parametrize(("tokens", "passages"), [(1, 1), (64, 7), (100_000, 1024)])
@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 1.0)])
def test_the_files_are_those_of_bm25s_own_indexer(corpus, tmp_path, monkeypatch, tokens, passages, k1, b):
    """In runs and ranges of one token, of some, and of all at once."""
    monkeypatch.setattr(bm25_arrays, "BATCH_TOKENS", tokens)
    monkeypatch.setattr(bm25_arrays, "_PASSAGES", passages)
    own_index(corpus, Tokenizer(), k1, b).save(tmp_path / "own", show_progress=False)
    BM25S().build(corpus, tmp_path / "ours", Analysis(k1, b))
    assert same_files(tmp_path / "own", tmp_path / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "own"], "temporary files are gone"


def test_the_smallest_change_of_a_constant_is_another_file(corpus, tmp_path):
    own_index(corpus, Tokenizer(), 0.9 + 1e-7, 0.4).save(tmp_path / "own", show_progress=False)
    BM25S().build(corpus, tmp_path / "ours", Analysis(0.9, 0.4))
    assert not same_files(tmp_path / "own", tmp_path / "ours")


def test_a_corpus_that_ends_in_passages_without_words(tmp_path, monkeypatch):
    monkeypatch.setattr(bm25_arrays, "BATCH_TOKENS", 1)
    monkeypatch.setattr(bm25_arrays, "_PASSAGES", 1)
    corpus = Corpus(list("abcd"), [""] * 4, ["lyon", "the", "of paris", "and"])
    own_index(corpus, Tokenizer(), 0.9, 0.4).save(tmp_path / "own", show_progress=False)
    BM25S().build(corpus, tmp_path / "ours", Analysis())
    assert same_files(tmp_path / "own", tmp_path / "ours")


def peak_bytes(function):
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_a_run_and_not_of_the_corpus(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(bm25_arrays, "BATCH_TOKENS", 2_000)
    monkeypatch.setattr(bm25_arrays, "_PASSAGES", 64)
    texts = [" ".join(corpus.texts[i % 118 : i % 118 + 3]) for i in range(1_500)]
    many = Corpus([str(i) for i in range(1_500)], [""] * 1_500, texts)
    tokenizer = Tokenizer()
    own_index(many, tokenizer, 0.9, 0.4)  # what is imported and remembered at the first use
    ours = peak_bytes(lambda: BM25S().build(many, tmp_path / "ours", Analysis()))
    theirs = peak_bytes(lambda: own_index(many, tokenizer, 0.9, 0.4))
    assert ours < 450_000
    assert theirs > 2 * 450_000
