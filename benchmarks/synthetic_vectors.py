"""Synthetic unit vectors with the neighbour structure of a sentence encoder's.

A vector is the unit vector along

    common direction + topics + subtopics + themes + article + passage

where each term after the first is normal noise that all passages below the same node of a tree share, with variances
that fall along the principal axes by a power law, rotated so that no coordinate is special. There are several trees,
and each article has its place in all of them, as a person has a country and a profession: clusters overlap. Some
articles are scattered more widely than others. The shape was fitted to MiniLM (`benchmarks/likeness.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

ARTICLES_A_BLOCK = 4096
"""Articles are drawn so many at a time, each block from a random stream of its own."""
PASSAGES_AN_ARTICLE = 6.0
"""Mean, about that of Wikipedia cut into pieces of a hundred words."""

_SIZES, _TREE, _ARTICLES, _PASSAGES, _QUERIES = range(5)


@dataclass(frozen=True)
class VectorShape:
    """What the vectors look like. Shares are of the squared length and need not add up to one."""

    dim: int = 384
    common: float = 0.014
    """Share of the direction that all vectors have in common."""
    trees: tuple[float, ...] = (0.62, 0.38)
    """How much each of an article's places decides; they add up to one."""
    nodes: tuple[int, ...] = (64, 1024, 16_384)
    """Topics, subtopics and themes of a tree."""
    shares: tuple[float, ...] = (0.37, 0.33, 0.12)
    """Share of each of them, over all trees."""
    article: float = 0.04
    passage: float = 0.30
    scatter: float = 0.45
    """Standard deviation of the logarithm of how widely articles, their passages and queries are scattered."""
    crowding: float = 0.8
    """Standard deviation of the logarithm of how many children the nodes of a level get."""
    exponent: float = 2.2
    """Variance along the i-th principal axis falls as (i + offset) to minus this."""
    offset: float = 85.0
    query: float = 0.92
    """Length of the noise that is added to an article's vector to make a query."""


def article_sizes(block: int, seed: int, mean: float = PASSAGES_AN_ARTICLE) -> NDArray[np.int64]:
    """Returns the number of passages of each article of a block, shape (ARTICLES_A_BLOCK,): geometric, at least 1."""
    return np.random.default_rng([seed, _SIZES, block]).geometric(1 / mean, ARTICLES_A_BLOCK)


class VectorSource:
    """Draws vectors; the first n are the same however many are drawn after them.

    Args:
        shape: What they look like.
        seed: Decides all of them.
        passages_an_article: Mean number of passages that share an article.
    """

    def __init__(self, shape: VectorShape, seed: int = 0, passages_an_article: float = PASSAGES_AN_ARTICLE) -> None:
        self.shape, self.seed, self.passages_an_article = shape, seed, passages_an_article
        variances = (np.arange(1, shape.dim + 1) + shape.offset) ** -shape.exponent
        self._axes = np.sqrt(variances / variances.sum()).astype(np.float32)

    @cached_property
    def _rotation(self) -> Array:
        drawn = np.random.default_rng([self.seed, _TREE, 0]).standard_normal((self.shape.dim, self.shape.dim))
        return np.linalg.qr(drawn)[0].astype(np.float32)

    @cached_property
    def _trees(self) -> list[tuple[Array, NDArray[np.float64]]]:
        """For each tree the sum of its levels by lowest node, shape (nodes, dim), and up to where each is drawn."""
        return [self._tree(number, part) for number, part in enumerate(self.shape.trees)]

    def _tree(self, number: int, part: float) -> tuple[Array, NDArray[np.float64]]:
        rng = np.random.default_rng([self.seed, _TREE, 1 + number])
        centres, weights = np.zeros((1, self.shape.dim), np.float32), np.ones(1)
        for nodes, share in zip(self.shape.nodes, self.shape.shares, strict=True):
            parents = _drawn(rng, np.cumsum(weights) / weights.sum(), nodes)
            centres = centres[parents] + np.float32(np.sqrt(share * part)) * self._noise(rng, nodes)
            weights = rng.lognormal(0.0, self.shape.crowding, nodes)
        return centres, np.cumsum(weights) / weights.sum()

    def passages(self, count: int) -> Iterator[Array]:
        """Yields the vectors of `count` passages in corpus order, in slices of shape (some, dim)."""
        block = 0
        while count > 0:
            articles, scatter, sizes = self._articles(block)
            rng = np.random.default_rng([self.seed, _PASSAGES, block])
            noise = np.float32(np.sqrt(self.shape.passage)) * self._noise(rng, int(sizes.sum()))
            noise *= np.repeat(scatter, sizes, axis=0)
            vectors = unit((np.repeat(articles, sizes, axis=0) + noise) @ self._rotation)[:count]
            yield vectors
            count -= len(vectors)
            block += 1

    def queries(self, positions: NDArray[np.int64]) -> Array:
        """Returns queries about the articles that passages belong to, shape (positions, dim).

        A question is about an article rather than one passage of it: its vector is that of the article with noise.

        Args:
            positions: Places of passages in corpus order, rising.
        """
        found: list[Array] = []
        block = start = 0
        while sum(map(len, found)) < len(positions):
            articles, _, sizes = self._articles(block)
            stop = start + int(sizes.sum())
            inside = positions[(positions >= start) & (positions < stop)] - start
            found.append(articles[np.repeat(np.arange(len(sizes)), sizes)[inside]])
            block, start = block + 1, stop
        about = np.concatenate(found)
        rng = np.random.default_rng([self.seed, _QUERIES])
        length = self.shape.query * rng.lognormal(0.0, self.shape.scatter, (len(about), 1)).astype(np.float32)
        return unit((about + length * self._noise(rng, len(about))) @ self._rotation)

    def _articles(self, block: int) -> tuple[Array, Array, NDArray[np.int64]]:
        """The vectors of a block's articles, unrotated, how widely each is scattered, and their sizes."""
        rng = np.random.default_rng([self.seed, _ARTICLES, block])
        sizes = article_sizes(block, self.seed, self.passages_an_article)
        scatter = rng.lognormal(0.0, self.shape.scatter, (len(sizes), 1)).astype(np.float32)
        articles = np.float32(np.sqrt(self.shape.article)) * scatter * self._noise(rng, len(sizes))
        articles[:, 0] += np.float32(np.sqrt(self.shape.common))
        for centres, sums in self._trees:
            articles += centres[_drawn(rng, sums, len(sizes))]
        return articles, scatter, sizes

    def _noise(self, rng: np.random.Generator, count: int) -> Array:
        """Normal noise of unit mean square length, along the principal axes."""
        return rng.standard_normal((count, self.shape.dim), dtype=np.float32) * self._axes


def _drawn(rng: np.random.Generator, sums: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Returns places drawn by their chances, whose running sums are given."""
    return np.minimum(np.searchsorted(sums, rng.random(count)), len(sums) - 1)  # the last may be just below one


def unit(vectors: Array) -> Array:
    """Returns vectors scaled to length one."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
