"""Links against a slow reference: a dictionary of titles in which every run of words of a text is looked up."""

import os
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpl.atlas import build
from rpl.retrieval.corpus.corpus import Corpus, read_corpus
from rpl.retrieval.keyword.stopwords import STOP_WORDS
from rpl.retrieval.links.links import LinkGraph
from rpl.retrieval.links.surface_forms import fold, folded_text
from rpl.retrieval.links.titles import TitleTable

WORD = re.compile(r"\w+")
STYLES = {"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‐": "-", "‑": "-", "\0": " "}


def tidy(text):
    return " ".join(unicodedata.normalize("NFC", text).translate(str.maketrans(STYLES)).split())


def folded(text):
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def capital(text):
    return any(c.isupper() for c in text)


class SlowLinks:
    def __init__(self, corpus, longest=None):
        self.corpus = corpus
        self.positions = defaultdict(list)
        self.lower = set()
        self.longest = longest  # words of the longest title; None tries all lengths
        self.keys = [self.add(title, position) for position, title in enumerate(corpus.titles)]
        for position, title in enumerate(corpus.titles):
            match = re.match(r"^(.*\S)\s*\([^()]*\)$", title.strip())
            if match:
                self.add(match.group(1), position)

    def add(self, title, position):
        clean = tidy(title)
        spans = [m.span() for m in WORD.finditer(clean)]
        if not spans:
            return None
        surface = clean[spans[0][0] : spans[-1][1]]
        outside = set(clean[: spans[0][0]] + clean[spans[-1][1] :])
        if outside - set(" \"'.,:;!?¡¿…*" + (")" if "(" in surface else "")):
            return None
        key = folded(surface)
        letters = sum(c.isalpha() for c in key)
        if letters < (1 if surface.lower() == surface.upper() else 3) or key in STOP_WORDS:
            return None
        self.positions[key].append(position)
        if not capital(surface):
            self.lower.add(key)
        return key

    def links(self, start):
        own = self.keys[start]
        text = tidy(self.corpus.texts[start])
        spans = [m.span() for m in WORD.finditer(text)]
        found, word = [], 0
        while word < len(spans):
            step = 1
            for last in reversed(range(word, min(len(spans), word + (self.longest or len(spans))))):
                mention = text[spans[word][0] : spans[last][1]]
                key = folded(mention)
                if key in self.positions and (key in self.lower or capital(mention)):
                    found += self.positions[key]
                    if key != own:
                        step = last - word + 1
                        break
            word += step
        others = dict.fromkeys(p for p in found if p != start)
        return sorted(others, key=lambda p: own is not None and self.keys[p] == own)


def assert_equal_links(corpus, slow, starts, graph=None):
    graph = graph or LinkGraph(corpus)
    for start in starts:
        found = [corpus.position(p.id) for p in graph.links(corpus.ids[start], len(corpus))]
        assert found == slow.links(start), corpus.passage(start)


WORD_LINES = """
Ana ana BELA Bela Cór cor Cor Dan ß SS ﬁn fin ½ 1⁄2 ﾞ x̂y xy XY U2 The in 1984 東京 Ⓐ İda ida O'Brien O’Brien ς Σ
(film) (Film) ( ) Ana-Bela
"""
WORDS = WORD_LINES.split()
JOINS = [" ", " ", " ", ", ", "-", "–", "", "\u0302", "\n", "! ", " (", ")", "\0"]
phrases = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINS)), max_size=4).map(
    lambda parts: "".join(word + join for word, join in parts)
)
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINS)), min_size=1, max_size=14).map(
    lambda parts: "".join(word + join for word, join in parts)
)


@given(st.lists(st.tuples(phrases, texts), min_size=1, max_size=8))
@example([("Ana (film)", "Ana"), ("Ana", "x"), ("Ana (film)", "Ana (film) Ana"), ("ANA (Film)", "Ana")])
@example([("½ way", "1⁄2 way ½ way"), ("xy", "x̂y XY"), ("x̂y", "xy")])
@example([("in", "x"), ("IN", "x"), ("", "!")])
def test_on_awkward_titles_and_texts(passages):
    titles, texts = zip(*passages, strict=True)
    corpus = Corpus([f"p{n}" for n in range(len(titles))], titles, texts)
    assert_equal_links(corpus, SlowLinks(corpus), range(len(corpus)))


@pytest.fixture(scope="module")
def atlas():
    passages = build(mini=False).passages
    corpus = Corpus([p.id for p in passages], [p.title for p in passages], [p.text for p in passages])
    return corpus, SlowLinks(corpus, longest=12)


def test_on_atlas(atlas):
    corpus, slow = atlas
    assert_equal_links(corpus, slow, range(0, len(corpus), 5))


def test_the_comparison_notices_a_title_that_is_missed(atlas):
    corpus, slow = atlas
    start, target = next((start, found[0]) for start in range(len(corpus)) if (found := slow.links(start)))
    titles = [title if title != corpus.titles[target] else "" for title in corpus.titles]
    with pytest.raises(AssertionError):
        assert_equal_links(corpus, slow, [start], LinkGraph(corpus, TitleTable.build(titles)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mini", "2wikimultihopqa", "bamboogle", "hotpotqa", "musique", "nq", "popqa", "scifact", "triviaqa"]
)
def test_on_real_passages(name):
    root = os.environ.get("RPL_TEST_DATA")
    if not root:
        pytest.skip("RPL_TEST_DATA is not set")
    (path,) = (Path(root) / name).glob("corpus.jsonl*")
    corpus = read_corpus(path)
    longest = max(len(WORD.findall(tidy(title))) for title in corpus.titles)
    assert_equal_links(corpus, SlowLinks(corpus, longest), range(0, len(corpus), max(1, len(corpus) // 300)))


@given(st.text(), st.text())
def test_folding_goes_character_by_character(left, right):
    """Places in the folded text are found by adding lengths up, which needs this."""
    assert fold(left + right) == fold(left) + fold(right)
    assert fold(left) == folded(left)


@given(texts)
def test_pieces_of_a_folded_text(text):
    parts = folded_text(text)
    assert "".join(parts.pieces) == tidy(text)
    assert [parts.original(n, n) for n in range(parts.words)] == WORD.findall(tidy(text))
    assert parts.text == folded(tidy(text))
    assert parts.ends[-1] == len(parts.text)
