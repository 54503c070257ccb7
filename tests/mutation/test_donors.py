import inspect

import pytest

from rpl.core.records import Passage
from rpl.mutation.donors import (
    MAX_CONSTANTS,
    MAX_DONOR_CHARS,
    MAX_QUERIES,
    Donors,
    capitalised_spans,
    collect_donors,
    content_words,
    noun_phrases,
)
from rpl.programs.grammar import parse

CHAD = Passage("c1", "Borders of Chad", "Chad borders Libya, Niger and the Central African Republic.")


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("What is the currency of Chad?", ["Chad"]),
        ("Is Lyon or Porto-Novo larger?", ["Lyon", "Porto-Novo"]),
        ("Were Scott Derrickson and Ed Wood of one nation?", ["Scott Derrickson", "Ed Wood"]),
        ("Who was the mayor of Rio de Janeiro in 1990?", ["Rio de Janeiro"]),
        ("Did Euro 2024 take place in New York City's Harbour?", ["Euro 2024", "New York City", "Harbour"]),
        ("which river is it?", []),
        ("In St. Louis, who?", ["St Louis"]),
        ("", []),
    ],
)
def test_capitalised_spans_keep_names_whole(text: str, spans: list[str]) -> None:
    assert capitalised_spans(text) == spans


def test_phrases_and_words_leave_stop_words_out() -> None:
    assert noun_phrases("Which time zone is Lyon in?") == ["time zone", "Lyon"]
    assert noun_phrases("the population of the capital of Togo")[:2] == ["population of the capital", "capital of Togo"]
    assert content_words("How many people live in Togo?") == ["people", "live"]


def test_queries_come_in_order_of_promise() -> None:
    sibling = parse("for p in bm25('Chad money', k=1): print(p)")
    donors = collect_donors('What is the "hard currency" of Chad?', [CHAD], [sibling])
    order = ["hard currency", "Chad", "Borders of Chad", "Chad money", "Libya"]
    places = [donors.queries.index(text) for text in order]
    assert places == sorted(places)
    assert donors.siblings == (sibling,)
    assert "Central African Republic" in donors.queries
    assert "Chad" in donors.constants
    assert donors.words[0] == "hard"


def test_donors_are_bounded_distinct_and_deterministic() -> None:
    passages = [Passage(f"p{i}", f"Title Number{i}", f"Alpha{i} met Beta{i}. " + "Long" * 60) for i in range(200)]
    donors = collect_donors("Who met Alpha7 and alpha7?", passages)
    assert donors == collect_donors("Who met Alpha7 and alpha7?", list(passages))
    assert len(donors.queries) <= MAX_QUERIES
    assert len(donors.constants) <= MAX_CONSTANTS
    assert len({q.casefold() for q in donors.queries}) == len(donors.queries)
    assert all(0 < len(q) <= MAX_DONOR_CHARS for q in donors.queries)


def test_every_donor_text_stands_in_what_was_given() -> None:
    """Answer-blind: each word of each donor comes from the question, the passages or the siblings."""
    donors = collect_donors("Which neighbour of Chad has the most people?", [CHAD])
    known = f"Which neighbour of Chad has the most people? {CHAD.title} {CHAD.text}"
    texts = (*donors.queries, *donors.constants, *donors.words, *donors.names, *donors.heads)
    assert all(word in known or word == "in" for text in texts for word in text.split())


def test_pages_of_a_kind_are_asked_for_by_analogy() -> None:
    donors = collect_donors("Which neighbour of Mali has the most people?", [CHAD])
    assert donors.heads == ("Borders of",)
    assert "Borders of Mali" in donors.queries
    assert "in Mali" in donors.constants
    assert donors.names == ("Mali",)
    assert list(inspect.signature(collect_donors).parameters) == ["question", "retrieved", "siblings"]


def test_an_empty_question_gives_no_donors() -> None:
    assert collect_donors("") == Donors()
