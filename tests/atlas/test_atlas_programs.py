"""Each kind of question is solved by a short retrieval program, and is not solved by searching for its text."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

import pytest

from rpl.atlas import Atlas, build
from rpl.core.records import Passage, Question
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.links.links import LinkGraph


class World:
    """What programs can call, over one of the two atlases."""

    def __init__(self, mini: bool) -> None:
        self.atlas: Atlas = build(mini)
        passages = self.atlas.passages
        corpus = Corpus([p.id for p in passages], [p.title for p in passages], [p.text for p in passages])
        self.titles = {p.id: p.title for p in passages}
        self._bm25 = MemoryBM25(corpus, Tokenizer())
        self._links = LinkGraph(corpus)

    def bm25(self, query: str, k: int = 10) -> list[Passage]:
        return self._bm25.search([query], k)[0]

    def links(self, passage: Passage, k: int = 10) -> list[Passage]:
        return self._links.links(passage.id, k)


world = cache(World)


def entity(world: World, question: Question) -> str:
    """The city or country that the question names."""
    key = question.id.split("-", 2)[2]
    if key in world.titles:
        title, text = world.titles[key], question.question
        country = next(
            (t for i, t in world.titles.items() if i.startswith("country-") and f"{title} in {t}" in text), ""
        )
        return f"{title} {country}".strip()
    return world.titles[f"country-{key}"]


def geography(world: World, name: str) -> Passage:
    return world.bm25(f"Geography of {name}", k=1)[0]


def one_hop(world: World, question: Question, relation: str) -> list[Passage]:
    name = entity(world, question)
    return [geography(world, name)] if relation in GEOGRAPHY else world.bm25(name, k=1)


def two_hop(world: World, question: Question, relation: str) -> list[Passage]:
    first = world.bm25(entity(world, question), k=1)[0]
    second = world.links(first, k=1)[0]
    if relation.removeprefix("city_") in GEOGRAPHY:
        second = geography(world, second.title)
    return [first, second]


def comparison(world: World, question: Question, relation: str) -> list[Passage]:
    names = sorted({world.titles[i].removeprefix("Geography of ") for i in question.gold_docs})
    assert all(name in question.question for name in names)
    prefix = "Geography of " if relation == "compare_areas" else ""
    return [world.bm25(prefix + name, k=1)[0] for name in names]


def loop(world: World, question: Question, relation: str) -> list[Passage]:
    borders = world.bm25(f"Borders of {entity(world, question)}", k=1)[0]
    around = [p for p in world.links(borders) if borders.title != f"Borders of {p.title}"]
    return [borders, *(geography(world, p.title) if relation.endswith("area") else p for p in around)]


def corpus(world: World, question: Question, relation: str) -> list[Passage]:
    name = entity(world, question)
    if relation.startswith("neighbours"):
        return loop(world, question, relation)
    found = world.bm25(f"city in {name} with time zone", k=10)
    return [p for p in found if f"ity in {name}." in p.text or f"Located in {name}," in p.text]


GEOGRAPHY = {"area", "calling_code", "domain", "currency_code"}
PROGRAMS: dict[str, Callable[[World, Question, str], list[Passage]]] = {
    "one_hop": one_hop,
    "two_hop": two_hop,
    "comparison": comparison,
    "loop": loop,
    "corpus": corpus,
}


def rates(world: World, retrieve: Callable[[Question], list[Passage]]) -> dict[str, float]:
    hits: dict[str, list[bool]] = defaultdict(list)
    for question in world.atlas.questions:
        if question.split != "train" or len(hits[question.type]) < 80:
            hits[question.type].append(set(question.gold_docs) <= {p.id for p in retrieve(question)})
    return {kind: sum(values) / len(values) for kind, values in hits.items()}


@pytest.mark.parametrize("mini", [False, True])
def test_a_short_program_prints_exactly_the_gold_passages(mini: bool) -> None:
    here = world(mini)
    exact: dict[str, list[bool]] = defaultdict(list)
    for question in here.atlas.questions:
        relation = question.id.split("-")[1]
        printed = PROGRAMS[question.type](here, question, relation)
        exact[question.type].append({p.id for p in printed} == set(question.gold_docs))
    share = {kind: sum(values) / len(values) for kind, values in exact.items()}
    assert set(share) == set(PROGRAMS)
    assert min(share.values()) > 0.93, share


def test_searching_for_the_question_solves_one_hop_and_little_else() -> None:
    here = world(False)
    top3 = rates(here, lambda q: here.bm25(q.question, k=3))
    assert top3["one_hop"] > 0.85
    assert top3["two_hop"] < 0.3
    assert top3["loop"] == 0.0
    assert top3["corpus"] < 0.1
    top5 = rates(here, lambda q: here.bm25(q.question, k=5))
    assert top5["two_hop"] < 0.3
    assert top5["loop"] < 0.1
