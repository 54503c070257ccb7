"""Synthetic passages and questions: words by a double power law, and articles that keep to words of their own.

The frequency of the r-th word falls as 1/r up to rank 7,873 and as r^-1.77 after it (Gerlach and Altmann, 2013,
"Stochastic model for the vocabulary growth in natural languages"). The first ranks are the stop words of keyword
search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic_vectors import PASSAGES_AN_ARTICLE, article_sizes
from rpl.retrieval.keyword.stopwords import STOP_WORDS

_KNEE, _TAIL = 7873, 1.77
_TITLES, _WORDS, _QUESTIONS = range(10, 13)
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aiou"]
_SHORTEST = 3200
"""Words of fewer syllables are left out: real ones are longer, and some of these are stop words."""


@dataclass(frozen=True)
class TextShape:
    """What the passages look like."""

    words: int = 100
    """Words of a passage."""
    vocabulary: int = 2_000_000
    own_words: int = 20
    """Different words that an article keeps coming back to."""
    own_share: float = 0.4
    """Share of a passage's words, stop words left out, that are drawn from them."""
    question_words: int = 10
    """Words of a question, all from one passage, without stop words."""


class TextSource:
    """Draws titles and texts; the first n are the same however many are drawn after them.

    Args:
        shape: What they look like.
        seed: Decides all of them.
        passages_an_article: Mean number of passages that share an article. With the same seed and mean as those of a
            `VectorSource`, articles are the same as there.
    """

    def __init__(self, shape: TextShape, seed: int = 0, passages_an_article: float = PASSAGES_AN_ARTICLE) -> None:
        self.shape, self.seed, self.passages_an_article = shape, seed, passages_an_article
        ranks = np.arange(1, self.shape.vocabulary + 1, dtype=np.float64)
        chances = np.where(ranks <= _KNEE, 1 / ranks, _KNEE ** (_TAIL - 1) * ranks**-_TAIL)
        self._chances = np.cumsum(chances) / chances.sum()
        self._content = float(self._chances[len(STOP_WORDS) - 1])
        self._words = Words()

    def passages(self, count: int) -> Iterator[tuple[str, str]]:
        """Yields the title and text of `count` passages."""
        block = 0
        while count > 0:
            for pair in self._block(block):
                yield pair
                count -= 1
                if count == 0:
                    return
            block += 1

    def question(self, title: str, text: str, number: int) -> str:
        """Returns a question about a passage: words of its title and text."""
        rng = np.random.default_rng([self.seed, _QUESTIONS, number])
        words = [word for word in f"{title} {text}".lower().split() if word not in STOP_WORDS]
        return " ".join(rng.choice(words, self.shape.question_words))

    def _block(self, block: int) -> Iterator[tuple[str, str]]:
        rng = np.random.default_rng([self.seed, _TITLES, block])
        sizes = article_sizes(block, self.seed, self.passages_an_article)
        titles = self._draw(rng, (len(sizes), 4), self._content)
        lengths = rng.integers(1, 5, len(sizes))
        own = self._draw(rng, (len(sizes), self.shape.own_words), self._content)
        own[:, :4] = titles
        rng = np.random.default_rng([self.seed, _WORDS, block])
        for article, size in enumerate(sizes):
            title = " ".join(map(self._words.__getitem__, titles[article, : lengths[article]].tolist())).title()
            words = self._draw(rng, (int(size), self.shape.words), 0.0)
            chosen = (rng.random(words.shape) < self.shape.own_share) & (words >= len(STOP_WORDS))
            words[chosen] = rng.choice(own[article], int(chosen.sum()))
            for row in words.tolist():
                yield title, " ".join(map(self._words.__getitem__, row)) + "."

    def _draw(self, rng: np.random.Generator, shape: tuple[int, int], least: float) -> NDArray[np.int64]:
        """Returns places in the vocabulary, by their chances; `least` leaves out what comes before that chance."""
        places = np.searchsorted(self._chances, least + (1 - least) * rng.random(shape))
        return np.minimum(places, len(self._chances) - 1)  # the last sum may be a rounding below one


class Words(dict[int, str]):
    """The words by their rank from 0, made as they are asked for; no two are equal."""

    def __init__(self) -> None:
        super().__init__(enumerate(sorted(STOP_WORDS)))

    def __missing__(self, rank: int) -> str:
        """Makes a word of syllables, shorter for lower ranks."""
        syllables = []
        number = rank - len(STOP_WORDS) + _SHORTEST
        while number:
            number, place = divmod(number, len(_SYLLABLES))
            syllables.append(_SYLLABLES[place])
        self[rank] = word = "".join(reversed(syllables))
        return word
