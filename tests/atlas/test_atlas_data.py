"""The data set keeps its promises; answers are recomputed from the gold passages' texts alone."""

import re
from collections import Counter

import pytest

from rpl.atlas import Atlas, build
from rpl.atlas.selection import FULL, MINI
from rpl.core.answers import exact_match, normalize_answer
from rpl.core.records import Passage, Question

COUNTRY_OF_CITY = re.compile(r"(?:[Cc]ity in|Located in) ([^.,]+)[.,]")
POPULATION = re.compile(r"([\d,]+) (?:people|inhabitants)|(?:Population:|population of .+? is) ([\d,]+)")
AREA = re.compile(r"([\d,]+) square kilometres")


@pytest.fixture(scope="module", params=[False, True], ids=["atlas", "atlas-mini"])
def atlas(request: pytest.FixtureRequest) -> Atlas:
    return build(request.param)


@pytest.fixture(scope="module")
def by_id(atlas: Atlas) -> dict[str, Passage]:
    return {p.id: p for p in atlas.passages}


def relation(question: Question) -> str:
    return question.id.split("-")[1]


def countries_of(passage: Passage, by_id: dict[str, Passage]) -> str:
    if passage.id.startswith("city-"):
        match = COUNTRY_OF_CITY.search(passage.text)
        assert match, passage
        return match.group(1)
    return passage.title.removeprefix("Borders of ").removeprefix("Geography of ")


def population(passage: Passage) -> int:
    match = POPULATION.search(passage.text)
    assert match, passage
    return int((match.group(1) or match.group(2)).replace(",", ""))


def area(passage: Passage) -> int:
    match = AREA.search(passage.text)
    assert match, passage
    return int(match.group(1).replace(",", ""))


def test_sizes(atlas: Atlas) -> None:
    quotas, passages = (FULL, (2_500, 3_500)) if len(atlas.passages) > 500 else (MINI, (120, 180))
    assert passages[0] <= len(atlas.passages) <= passages[1]
    counts = Counter((q.split, q.type) for q in atlas.questions)
    assert counts == {(s, kind): n for s, kinds in quotas.items() for kind, n in kinds.items()}


def test_ids_and_gold_resolve(atlas: Atlas, by_id: dict[str, Passage]) -> None:
    assert len(by_id) == len(atlas.passages)
    assert len({q.id for q in atlas.questions}) == len(atlas.questions)
    for q in atlas.questions:
        assert q.gold_docs
        assert set(q.gold_docs) <= set(by_id)
        assert len(set(q.gold_docs)) == len(q.gold_docs) == q.hops
        assert q.answers
        assert all(normalize_answer(a) for a in q.answers)


def test_no_question_text_repeats(atlas: Atlas) -> None:
    texts = Counter(normalize_answer(q.question) for q in atlas.questions)
    assert texts.most_common(1)[0][1] == 1


def test_no_country_is_in_two_splits(atlas: Atlas, by_id: dict[str, Passage]) -> None:
    splits: dict[str, set[str]] = {}
    for q in atlas.questions:
        for gold in q.gold_docs:
            splits.setdefault(countries_of(by_id[gold], by_id), set()).add(q.split)
    assert all(len(s) == 1 for s in splits.values()), {c: s for c, s in splits.items() if len(s) > 1}
    assert {s for values in splits.values() for s in values} == {"train", "val", "test"}


def test_neighbours_named_by_a_loop_question_are_gold(atlas: Atlas, by_id: dict[str, Passage]) -> None:
    for q in atlas.questions:
        if q.type != "loop":
            continue
        borders, *around = (by_id[i] for i in q.gold_docs)
        names = {countries_of(p, by_id) for p in around}
        assert 2 <= len(names) <= 5
        listed = re.split(r", | and ", re.split(r": | lie ", borders.text.rstrip("."))[-1])
        # A name may hold an "and" of its own, so the pieces are compared and not the names.
        assert set(listed) == {piece for name in names for piece in re.split(r", | and ", name)}


def test_answers_are_functions_of_the_gold_passages(atlas: Atlas, by_id: dict[str, Passage]) -> None:
    checked: Counter[str] = Counter()
    for q in atlas.questions:
        gold = [by_id[i] for i in q.gold_docs]
        name = relation(q)
        if name.startswith(("neighbour_", "compare_")):
            if name.startswith("neighbour_"):
                gold = gold[1:]
            value = area if name.endswith(("area", "areas")) else population
            ranked = sorted(gold, key=value, reverse=not name.endswith(("fewest_people", "smallest_area")))
            assert value(ranked[0]) != value(ranked[1])
            expected = ranked[0].title.removeprefix("Geography of ")
        elif name.startswith("cities_"):
            assert 2 <= len(gold) <= 6
            ranked = sorted(gold, key=population, reverse=True)
            expected = {
                "cities_count": str(len(gold)),
                "cities_largest": ranked[0].title,
                "cities_smallest": ranked[-1].title,
                "cities_second": ranked[1].title,
                "cities_three": ", ".join(p.title for p in ranked[:3]),
            }[name]
        elif name.startswith("neighbours_"):
            before, after = (
                r"(?:the currency the|use the|pay with the|have|where|is(?! the))",
                r"(?:[?.]| as| is| the main)",
            )
            asked = re.findall(rf"{before} ([\w ']+?){after}", q.question)[-1]
            expected = str(sum(bool(re.search(rf"\b{asked}\b", p.text)) for p in gold[1:]))
        else:
            assert any(q.answers[0] in p.text for p in gold), (q, gold)
            assert q.answers[0] in gold[-1].text or q.type == "one_hop"
            continue
        checked[name] += 1
        assert exact_match(expected, q.answers) == 1.0, (q, expected)
        assert exact_match(q.answers[0], [expected]) == 1.0
    assert len(checked) >= 9


def test_full_atlas_has_every_relation_in_every_large_split() -> None:
    atlas = build()
    relations = {s: {relation(q) for q in atlas.questions if q.split == s} for s in ("train", "test")}
    assert relations["train"] == relations["test"]
    assert len(relations["train"]) == 36


def test_names_that_several_passages_share_are_told_apart_in_questions() -> None:
    atlas = build()
    titles = Counter(p.title for p in atlas.passages)
    shared = {title for title, n in titles.items() if n > 1}
    assert len(shared) > 80, "retrieval should meet name-sakes"
    by_id = {p.id: p for p in atlas.passages}
    for q in atlas.questions:
        if q.type == "corpus":
            continue
        for p in (by_id[i] for i in q.gold_docs):
            if p.title in shared and p.title in q.question:
                assert countries_of(p, by_id) in q.question, q


def test_any_prefix_has_the_mix_of_the_whole() -> None:
    questions = [q for q in build().questions if q.split == "test"]
    total = Counter(q.type for q in questions)
    for n in (16, 50, 100, 200):
        counts = Counter(q.type for q in questions[:n])
        for kind, whole in total.items():
            assert abs(counts[kind] - n * whole / len(questions)) <= 1.0
    assert len({relation(q) for q in questions[:70]}) >= 33


def test_passages_are_short_and_carry_few_digits() -> None:
    for p in build().passages:
        assert len(p.text.split()) <= 45, p
        assert sum(c.isdigit() for c in p.text) <= 16, p
        assert "{" not in p.text
        assert p.title.strip() == p.title != ""


def test_mini_questions_stay_in_their_full_split() -> None:
    full = {q.id: q.split for q in build().questions}
    shared = [q for q in build(mini=True).questions if q.id in full]
    assert len(shared) > 10
    assert all(full[q.id] == q.split for q in shared)
