"""Real questions, where a folder with benchmark data is named by RPL_TEST_DATA; skipped otherwise."""

import os
from pathlib import Path

import pytest

from rpl.retrieval.corpus.corpus import read_corpus
from rpl.retrieval.corpus.coverage import gold_coverage
from rpl.retrieval.corpus.questions import read_questions
from rpl.retrieval.keyword.bm25 import BM25Retriever
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.links.links import LinkGraph


@pytest.fixture(scope="module")
def mini():
    root = os.environ.get("RPL_TEST_DATA")
    if not root:
        pytest.skip("RPL_TEST_DATA is not set")
    folder = Path(root) / "mini"
    return read_corpus(folder / "corpus.jsonl"), read_questions(folder / "questions.jsonl")


def test_gold_passages_are_in_the_corpus(mini):
    corpus, questions = mini
    questions = read_questions(Path(os.environ["RPL_TEST_DATA"]) / "mini" / "questions.jsonl")
    assert gold_coverage(questions, corpus).share == 1.0
    assert len(questions) == 96


def test_keyword_search_recalls_the_gold_passages(mini):
    corpus, questions = mini
    asked = [q for q in questions if q.gold_docs]
    lists = BM25Retriever.build(corpus, Tokenizer()).search([q.question for q in asked], 20)

    def recall(k):
        found = [len(set(q.gold_docs) & {p.id for p in hits[:k]}) for q, hits in zip(asked, lists, strict=True)]
        return sum(n / len(q.gold_docs) for n, q in zip(found, asked, strict=True)) / len(asked)

    # Measured .888 and .939; without stemming .860 and .941.
    assert recall(5) > 0.87
    assert recall(20) > 0.92


def test_links_lead_from_one_gold_passage_to_another(mini):
    """Multi-hop questions are built on mentions: following links must reach further gold passages."""
    corpus, questions = mini
    graph = LinkGraph(corpus)
    reached = sum(
        any(p.id in q.gold_docs for start in q.gold_docs for p in graph.links(start, 20))
        for q in questions
        if len(q.gold_docs) == 2
    )
    assert reached >= 15
