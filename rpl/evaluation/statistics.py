"""Intervals and tests for paired evaluations: pure functions of numbers.

Everything here is deterministic: the bootstrap draws with a fixed seed, so equal records give equal intervals.
All intervals are two-sided at 95 % unless told otherwise. Rates get Wilson's interval, which keeps its width where a
bootstrap collapses (no success, or nothing but successes); other means get the percentile bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
DRAWS = 10_000
SEED = 20_240_501
_CHUNK = 1 << 22  # numbers held at once while resampling: 32 MiB

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval and the number of questions behind it.

    `mean` is NaN when `n` is 0 (nothing was measurable); `high` is infinite where a ratio has no upper bound.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0: the only case in which a difference was shown."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, float | int | None]:
        """Returns `{"mean", "low", "high", "n"}`; values that JSON cannot hold (NaN, infinity) become null."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        return {"mean": finite(self.mean), "low": finite(self.low), "high": finite(self.high), "n": self.n}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        """Reads what `to_json` wrote."""

        def number(key: str, missing: float) -> float:
            return missing if data.get(key) is None else float(data[key])

        n = int(data["n"])
        return cls(number("mean", math.nan), number("low", math.nan), number("high", math.inf if n else math.nan), n)


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
"""What a metric is when no question could be measured (no gold passages known)."""


def rate_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Returns the share of ones with Wilson's score interval (Wilson 1927, without continuity correction).

    Args:
        values: Zeros and ones, one a question; none gives `NOTHING`.
        confidence: Coverage in (0, 1).

    Raises:
        ValueError: A value is neither 0 nor 1.

    >>> e = rate_interval([1, 1, 1, 0])
    >>> round(e.mean, 3), round(e.low, 3), round(e.high, 3), e.n
    (0.75, 0.301, 0.954, 4)
    """
    n = len(values)
    if n == 0:
        return NOTHING
    if any(value not in (0, 1) for value in values):
        raise ValueError("a rate needs values that are 0 or 1")
    rate, z = sum(values) / n, _normal_quantile(confidence)
    scale = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # at the ends the exact bound is 0 or 1; rounding must not put it beyond the rate itself
    return Estimate(rate, min(max(0.0, centre - half), rate), max(min(1.0, centre + half), rate), n)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Returns the mean with a percentile-bootstrap interval (Efron 1979) over questions.

    Args:
        values: Finite numbers, one a question; none gives `NOTHING`.
        confidence: Coverage in (0, 1).
    """
    return mean_intervals([values], confidence)[0]


def mean_intervals(columns: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> list[Estimate]:
    """Returns `mean_interval` of several columns over the same questions, resampled once for all of them.

    Args:
        columns: Equally long sequences, one a metric.
        confidence: Coverage in (0, 1).

    Raises:
        ValueError: The columns differ in length.
    """
    n = _common_length(*columns) if columns else 0
    if n == 0:
        return [NOTHING] * len(columns)
    table = np.asarray(columns, dtype=np.float64).T
    lows, highs = _percentiles(bootstrap_means(table), confidence)
    # a constant column can differ from its resampled means in the last bit; the interval must hold the mean
    return [
        Estimate(float(mean), float(min(low, mean)), float(max(high, mean)), n)
        for mean, low, high in zip(table.mean(axis=0), lows, highs, strict=True)
    ]


def macro_mean_interval(groups: Mapping[str, Sequence[float]]) -> Estimate:
    """Returns the unweighted mean over groups (data sets), resampling questions within each group.

    Args:
        groups: Values by group; empty groups are left out.

    >>> macro_mean_interval({"a": [1.0, 1.0, 1.0], "b": [0.0]}).mean
    0.5
    """
    filled = [np.asarray(values, dtype=np.float64) for _, values in sorted(groups.items()) if len(values)]
    if not filled:
        return NOTHING
    mean = float(np.mean([values.mean() for values in filled]))
    resampled = [bootstrap_means(v[:, None], seed=SEED + i)[:, 0] for i, v in enumerate(filled)]
    lows, highs = _percentiles(np.mean(resampled, axis=0)[:, None], CONFIDENCE)
    n = sum(len(values) for values in filled)
    return Estimate(mean, min(float(lows[0]), mean), max(float(highs[0]), mean), n)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Returns the mean of `a - b` over the same questions, with a percentile-bootstrap interval.

    Args:
        a: Scores of one system, one a question.
        b: Scores of the other, in the same order of questions.

    Raises:
        ValueError: The two are not equally long.
    """
    _common_length(a, b)
    return mean_interval([x - y for x, y in zip(a, b, strict=True)])


def ratio_of_means(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Returns `mean(a) / mean(b)` over the same questions, resampling questions and keeping pairs together.

    A resample in which `b` has mean 0 has no ratio: it is counted as unboundedly large, and, where `a` is 0 too, as
    widening both ends. So the interval can only err towards being too wide.

    Args:
        a: Non-negative scores of one system, one a question.
        b: Non-negative scores of the other, in the same order of questions.

    Raises:
        ValueError: The two are not equally long, a score is negative, or `b` is 0 on every question.

    >>> ratio_of_means([1, 1, 1, 0], [1, 0, 1, 0]).mean
    1.5
    """
    n = _common_length(a, b)
    table = np.asarray([a, b], dtype=np.float64).T
    if n and table.min() < 0:
        raise ValueError("a ratio of means needs scores that are not negative")
    if n == 0 or table[:, 1].sum() == 0:
        raise ValueError("the ratio is undefined: the second system scores 0 on every question")
    top, bottom = bootstrap_means(table).T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = top / bottom
    undefined = np.isnan(ratios)
    tail = (1 - CONFIDENCE) / 2
    # ranks instead of interpolation: between two infinities there is no number
    low = float(np.quantile(np.where(undefined, 0.0, ratios), tail, method="inverted_cdf"))
    high = float(np.quantile(np.where(undefined, np.inf, ratios), 1 - tail, method="inverted_cdf"))
    mean = float(table[:, 0].sum() / table[:, 1].sum())
    return Estimate(mean, min(low, mean), max(high, mean), n)


@dataclass(frozen=True, slots=True)
class McNemar:
    """Discordant pairs of two systems on the same questions, and the exact test of their balance."""

    only_a: int
    """Questions that only the first system gets right."""
    only_b: int
    p_value: float


def mcnemar_exact(a: Sequence[float], b: Sequence[float]) -> McNemar:
    """Tests whether two systems are right equally often (McNemar 1947, exact two-sided binomial).

    Args:
        a: Zeros and ones of one system, one a question.
        b: Zeros and ones of the other, in the same order of questions.

    Raises:
        ValueError: The two are not equally long, or a value is neither 0 nor 1.

    >>> mcnemar_exact([1, 1, 1, 1, 0], [0, 0, 0, 1, 0])
    McNemar(only_a=3, only_b=0, p_value=0.25)
    """
    _common_length(a, b)
    if any(value not in (0, 1) for value in (*a, *b)):
        raise ValueError("McNemar's test needs values that are 0 or 1")
    only_a = sum(1 for x, y in zip(a, b, strict=True) if x > y)
    only_b = sum(1 for x, y in zip(a, b, strict=True) if x < y)
    discordant = only_a + only_b
    if discordant == 0:
        return McNemar(only_a, only_b, 1.0)
    # whole numbers up to the division: exact for any number of questions
    tail = sum(math.comb(discordant, i) for i in range(min(only_a, only_b) + 1))
    return McNemar(only_a, only_b, min(1.0, 2 * tail / 2**discordant))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for the number of tests (Holm 1979); the order is kept.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def bootstrap_means(table: Floats, draws: int = DRAWS, seed: int = SEED) -> Floats:
    """Returns the column means of `draws` resamples of the rows.

    Args:
        table: Shape (n, m): n questions, m metrics.
        draws: Number of resamples.
        seed: Seed of the draws.

    Returns:
        Shape (draws, m). Row i of all columns comes from the same resample.
    """
    n = len(table)
    generator = np.random.default_rng(seed)
    out = np.empty((draws, table.shape[1]))
    step = max(1, _CHUNK // n)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        picks = generator.integers(0, n, size=(size, n)) + np.arange(size)[:, None] * n
        counts = np.bincount(picks.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        out[start : start + size] = counts @ table / n
    return out


def _percentiles(samples: Floats, confidence: float) -> tuple[Floats, Floats]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, [tail, 1 - tail], axis=0)
    return low, high


def _common_length(*sequences: Sequence[float]) -> int:
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1:
        raise ValueError(f"paired values must be equally long, got lengths {sorted(lengths)}")
    return lengths.pop()


def _normal_quantile(confidence: float) -> float:
    from statistics import NormalDist

    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)
