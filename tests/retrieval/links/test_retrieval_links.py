import random

import pytest

from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.links.links import LinkGraph


def linked(text, titles, k=100):
    """Titles linked from a passage with this text, in order, as pairs of title and id."""
    corpus = Corpus(["start", *map(str, range(len(titles)))], ["Start page", *titles], [text, *["x"] * len(titles)])
    return [p.title for p in LinkGraph(corpus).links("start", k)]


@pytest.mark.parametrize(
    ("text", "titles", "found"),
    [
        ("Born in New York City in May.", ["York", "New York", "New York City", "City"], ["New York City"]),
        ("New York and York.", ["York", "New York"], ["New York", "York"]),
        ("From Lyon to Paris, then Lyon.", ["Paris", "Lyon"], ["Lyon", "Paris"]),
        ("A European in Europeia.", ["Europe"], []),
        ("It lies in FRANCE, France's north.", ["France"], ["France"]),
        ("He saw Cordoba and Sao Tome.", ["Córdoba", "São Tomé"], ["Córdoba", "São Tomé"]),
        ("Łódź and Zürich", ["Zürich", "Łódź"], ["Łódź", "Zürich"]),
        ("The O’Brien family", ["O'Brien"], ["O'Brien"]),
        ("A stay in Paris. Texas came later.", ["Paris, Texas"], []),
        ("A stay in Paris, Texas.", ["Paris, Texas", "Paris"], ["Paris, Texas"]),
        ("He came from St. Louis.", ["St. Louis"], ["St. Louis"]),
        ("A company named Yahoo! was sold.", ["Yahoo!"], ["Yahoo!"]),
        ("the currency fell", ["Currency"], []),
        ("songs of the Beatles", ["The Beatles"], ["The Beatles"]),
        ("written for iPod use", ["iPod"], ["iPod"]),
        ("In 1984 it won, It did, for U2.", ["1984", "It", "U2"], []),
        ("The music of Pepo was new.", ["Pepo (film)", "Pepo"], ["Pepo", "Pepo (film)"]),
        ("The album was new.", ["÷ (album)"], []),
        ("Line\nbreak in New\nYork", ["New York"], ["New York"]),
        ("Jean–Luc spoke", ["Jean-Luc"], ["Jean-Luc"]),
        ("nothing", ["", "!!!"], []),
    ],
)
def test_mentions(text, titles, found):
    assert linked(text, titles) == found


def test_passages_of_one_title_are_all_returned_in_corpus_order():
    corpus = Corpus(list("abcd"), ["Lyon", "Start", "Lyon", "Rhône"], ["x", "On the Rhône lies Lyon.", "y", "z"])
    assert [p.id for p in LinkGraph(corpus).links("b", 10)] == ["d", "a", "c"]
    assert [p.id for p in LinkGraph(corpus).links("b", 2)] == ["d", "a"]


def test_self_is_left_out_and_pieces_of_the_same_article_come_last():
    corpus = Corpus(list("abc"), ["Lyon", "Lyon", "Rhône"], ["Lyon lies on the Rhône.", "More on Lyon.", "A river."])
    graph = LinkGraph(corpus)
    assert [p.id for p in graph.links("a", 10)] == ["c", "b"]
    assert [p.id for p in graph.links("b", 10)] == ["a"]
    assert graph.links("c", 10) == []


def test_the_own_title_does_not_hide_shorter_ones():
    titles = ["Borders of Mongolia", "Mongolia", "China"]
    texts = ["The borders of Mongolia: China.", "The borders of Mongolia are long.", "x"]
    graph = LinkGraph(Corpus(list("abc"), titles, texts))
    assert [p.id for p in graph.links("a", 10)] == ["b", "c"]
    assert [p.id for p in graph.links("b", 10)] == ["a"]


def test_ranks_scores_and_repeats():
    corpus = Corpus(list("abc"), ["Start", "Lyon", "Rhône"], ["Lyon, Rhône, Lyon", "x", "y"])
    graph = LinkGraph(corpus)
    found = graph.links("a", 10)
    assert [(p.id, p.rank, p.score) for p in found] == [("b", 0, 1.0), ("c", 1, 0.5)]
    assert graph.links("a", 10) == found


def test_unknown_id():
    with pytest.raises(KeyError):
        LinkGraph(Corpus(["a"], ["A"], ["x"])).links("z", 1)


def test_against_a_slow_search():
    """Every link is found by trying all titles at all places, longest first."""
    names = ["Ana", "Ana Bela", "Bela", "Bela Cor Dan", "Cor", "Dan Ana", "Eva"]
    rng = random.Random(3)
    for _ in range(100):
        words = [rng.choice(["Ana", "Bela", "Cor", "Dan", "Eva", "and"]) for _ in range(12)]
        wanted, i = [], 0
        while i < len(words):
            fits = [n for n in names if words[i : i + len(n.split())] == n.split()]
            best = max(fits, key=lambda n: len(n.split()), default=None)
            if best:
                wanted.append(best)
            i += len(best.split()) if best else 1
        assert linked(" ".join(words), names) == list(dict.fromkeys(wanted))
