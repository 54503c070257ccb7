"""What every `Reranker` must do, run on each of them."""

import itertools
import threading

import pytest
import tiny_models

from rpl.core.errors import RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.engines import rerank_engine
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.rerank.yes_no import YesNo

PASSAGES = [
    Passage("a", "River", "river castle", 0.5, 7),
    Passage("b", "King", "king queen king"),
    Passage("c", "", "castle"),
    Passage("copy of a", "River", "river castle"),
    Passage("d", "Queen", "queen river " * 5),
    Passage("copy of c", "", "castle"),
]
QUERIES = ["river", "who is king of the castle?", "queen queen"]


def settings(name, folder):
    if name == "late interaction":
        return "late-interaction"
    return str(tiny_models.cross_encoder(folder)) if name == "cross-encoder" else YesNo(str(tiny_models.yes_no(folder)))


@pytest.fixture(scope="module", params=["late interaction", "cross-encoder", "yes/no"])
def reranker(request, tmp_path_factory):
    config = LibraryConfig(reranker=settings(request.param, tmp_path_factory.mktemp("models")), device="cpu")
    return rerank_engine(config).open(config, HashEncoder())


@pytest.mark.parametrize("query", QUERIES)
def test_the_same_passages_in_order(reranker, query):
    found = reranker.rerank(query, PASSAGES)
    assert sorted(p.id for p in found) == sorted(p.id for p in PASSAGES)
    assert [p.rank for p in found] == list(range(len(PASSAGES)))
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert all(type(p.score) is float for p in found)
    texts = {p.id: (p.title, p.text) for p in PASSAGES}
    assert all((p.title, p.text) == texts[p.id] for p in found)


@pytest.mark.parametrize("query", QUERIES)
def test_copies_keep_the_given_order(reranker, query):
    for given in (PASSAGES, PASSAGES[::-1]):
        found = reranker.rerank(query, given)
        for one, two in itertools.combinations([p.id for p in found], 2):
            if one.removeprefix("copy of ") == two.removeprefix("copy of "):
                order = [p.id for p in given]
                assert order.index(one) < order.index(two)


def test_scores_do_not_depend_on_company_or_place(reranker):
    together = {p.id: p.score for p in reranker.rerank("river king", PASSAGES)}
    assert max(together.values()) - min(together.values()) > 1e-3
    backwards = {p.id: p.score for p in reranker.rerank("river king", PASSAGES[::-1])}
    alone = {p.id: reranker.rerank("river king", [p])[0].score for p in PASSAGES}
    assert backwards == pytest.approx(together, abs=2e-5)
    assert alone == pytest.approx(together, abs=2e-5)
    other = {p.id: p.score for p in reranker.rerank("queen", PASSAGES)}
    assert other != pytest.approx(together, abs=2e-5)


def test_nothing_gives_nothing(reranker):
    assert reranker.rerank("river", []) == []


def test_several_threads_get_what_one_gets(reranker):
    wanted = [reranker.rerank(query, PASSAGES) for query in QUERIES]
    found = {}

    def ask(number):
        found[number] = reranker.rerank(QUERIES[number % 3], PASSAGES)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(9)] == wanted * 3


def test_a_broken_model_is_an_infrastructure_fault(reranker, monkeypatch):
    monkeypatch.setattr(reranker, "encoder" if hasattr(reranker, "encoder") else "_model", None)
    with pytest.raises(RetrieverError, match="NoneType"):
        reranker.rerank("river", PASSAGES)
