"""A small corpus, ready-made backends, and a cache folder that no other test sees."""

import random

import pytest

from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.dense.faiss_indexes import Flat
from rpl.retrieval.dense.search import DenseRetriever, embed_corpus, load_embeddings
from rpl.retrieval.keyword.bm25 import BM25Retriever
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.rerank.rerankers import LateInteractionReranker

# Doctest collection would import this file as a test module, under the one name that all conftest files share.
collect_ignore = ["conftest.py"]

WORD_LINES = """
river mountain bridge harbour museum railway festival castle market garden island valley desert forest tower temple
school painter composer writer king queen battle treaty copper silver coffee cotton
"""
WORDS = WORD_LINES.split()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RPL_HOME", str(tmp_path_factory.mktemp("rpl_home")))
    monkeypatch.setenv("RPL_PROGRESS", "0")


def make_corpus(size=120, seed=0):
    """Passages of repeated words with many equal scores, near-copies and two exact copies."""
    rng = random.Random(seed)
    ids, titles, texts = [], [], []
    for i in range(size):
        ids.append(f"p{i}")
        titles.append(f"{rng.choice(WORDS).title()} {i}")
        texts.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 30))) + ".")
    titles[-1], texts[-1] = titles[0], texts[0]
    titles[-2], texts[-2] = titles[0], texts[0]
    return Corpus(ids, titles, texts)


@pytest.fixture(scope="session")
def corpus():
    return make_corpus()


@pytest.fixture(scope="session")
def retrievers(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrievers")
    tokenizer = Tokenizer()
    encoder = HashEncoder()
    for dtype in ("float32", "float16"):
        embed_corpus(corpus, encoder, folder / f"{dtype}.npy", dtype)
    BM25Retriever.build(corpus, tokenizer).save(folder / "bm25")
    return {
        "bm25s": BM25Retriever.build(corpus, tokenizer),
        "bm25s loaded": BM25Retriever.load(folder / "bm25", corpus, tokenizer),
        "memory": MemoryBM25(corpus, tokenizer),
        "dense": DenseRetriever(corpus, encoder, Flat().load(load_embeddings(folder / "float32.npy"), folder)),
        "dense float16": DenseRetriever(corpus, encoder, Flat().load(load_embeddings(folder / "float16.npy"), folder)),
    }


@pytest.fixture
def library(corpus, retrievers):
    dense = retrievers["dense"]
    return LocalLibrary(corpus, retrievers["bm25s"], dense, LateInteractionReranker(dense.encoder))


@pytest.fixture
def keyword_library(corpus, retrievers):
    return LocalLibrary(corpus, retrievers["bm25s"])
