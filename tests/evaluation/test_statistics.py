"""Intervals and tests against scipy, hand numbers and slow references; each tolerance has a twin that must fail."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy.stats

from rpl.evaluation.statistics import (
    NOTHING,
    Estimate,
    holm,
    macro_mean_interval,
    mcnemar_exact,
    mean_interval,
    mean_intervals,
    paired_difference,
    rate_interval,
    ratio_of_means,
)


def _numbers(n: int, seed: int) -> list[float]:
    source = random.Random(seed)
    return [source.gammavariate(2.0, 10.0) for _ in range(n)]


def _bits(n: int, rate: float, seed: int) -> list[int]:
    source = random.Random(seed)
    return [int(source.random() < rate) for _ in range(n)]


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (57, 200), (1, 1), (0, 1)])
def test_wilson_equals_scipy(successes: int, n: int) -> None:
    got = rate_interval([1] * successes + [0] * (n - successes))
    want = scipy.stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=1e-12)
    assert (got.mean, got.n) == (successes / n, n)
    assert got.low <= got.mean <= got.high


def test_wilson_tolerance_tells_another_interval_apart() -> None:
    got = rate_interval([1] * 3 + [0] * 7)
    other = scipy.stats.binomtest(3, 10).proportion_ci(0.95, method="wilsoncc")
    assert (got.low, got.high) != pytest.approx((other.low, other.high), abs=1e-12)


def test_a_rate_refuses_other_values() -> None:
    with pytest.raises(ValueError, match="0 or 1"):
        rate_interval([0.5, 1.0])
    with pytest.raises(ValueError, match="confidence"):
        rate_interval([1], confidence=95)


def test_bootstrap_agrees_with_scipy() -> None:
    values = _numbers(120, seed=1)
    got = mean_interval(values)
    want = scipy.stats.bootstrap(
        (np.asarray(values),), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    width = want.high - want.low
    assert got.mean == pytest.approx(float(np.mean(values)), abs=1e-12)
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=0.05 * width)


def test_bootstrap_tolerance_tells_ninety_percent_apart() -> None:
    values = _numbers(120, seed=1)
    got, narrow = mean_interval(values), mean_interval(values, confidence=0.9)
    width = got.high - got.low
    assert narrow.low != pytest.approx(got.low, abs=0.05 * width)
    assert narrow.high != pytest.approx(got.high, abs=0.05 * width)


def test_bootstrap_is_deterministic_and_columns_share_resamples() -> None:
    a, b = _numbers(50, seed=2), _numbers(50, seed=3)
    assert mean_interval(a) == mean_interval(a)
    first, second = mean_intervals([a, b])
    assert first.low == pytest.approx(mean_interval(a).low, abs=1e-9)
    assert second.high == pytest.approx(mean_interval(b).high, abs=1e-9)
    assert second.high != pytest.approx(mean_interval(a).high, abs=1e-9)


def test_chunked_resampling_equals_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    from rpl.evaluation import statistics

    table = np.asarray([_numbers(40, seed=4)]).T
    whole = statistics.bootstrap_means(table, draws=500)
    monkeypatch.setattr(statistics, "_CHUNK", 40 * 7)
    assert statistics.bootstrap_means(table, draws=500) == pytest.approx(whole, abs=1e-12)
    assert statistics.bootstrap_means(table, draws=500, seed=1) != pytest.approx(whole, abs=1e-12)


def test_constant_values_have_no_width() -> None:
    got = mean_interval([0.1] * 30)
    assert got.low <= got.mean <= got.high
    assert got.high - got.low == pytest.approx(0, abs=1e-12)


def test_no_values_is_nothing_and_survives_json() -> None:
    assert rate_interval([]) is NOTHING
    assert mean_interval([]) is NOTHING
    assert macro_mean_interval({"a": []}) is NOTHING
    assert NOTHING.to_json() == {"mean": None, "low": None, "high": None, "n": 0}
    assert math.isnan(Estimate.from_json(NOTHING.to_json()).mean)
    whole = Estimate(0.5, 0.4, 0.6, 9)
    assert Estimate.from_json(whole.to_json()) == whole
    open_ended = Estimate(2.0, 1.0, math.inf, 4)
    assert Estimate.from_json(open_ended.to_json()) == open_ended


def test_macro_mean_weighs_groups_equally() -> None:
    got = macro_mean_interval({"small": [0.0, 1.0], "large": [1.0] * 100})
    assert got.mean == pytest.approx(0.75)
    assert got.n == 102
    # of two questions a resample keeps none, one or two right: the macro mean is 0.5, 0.75 or 1
    assert (got.low, got.high) == pytest.approx((0.5, 1.0))


def test_paired_difference_is_narrower_than_an_unpaired_one() -> None:
    base = _numbers(100, seed=5)
    better = [value + 1 + 0.1 * (i % 3) for i, value in enumerate(base)]
    got = paired_difference(better, base)
    assert got.mean == pytest.approx(float(np.mean(better) - np.mean(base)))
    assert got.excludes_zero
    unpaired = paired_difference(better, sorted(base))
    assert not unpaired.excludes_zero
    assert not paired_difference(base, base).excludes_zero
    assert paired_difference(base, better).excludes_zero


def test_paired_difference_standard_error_follows_the_formula() -> None:
    a, b = _bits(400, 0.5, 6), _bits(400, 0.4, 7)
    test = mcnemar_exact(a, b)
    n, gap = 400, test.only_a - test.only_b
    se = math.sqrt(test.only_a + test.only_b - gap * gap / n) / n
    got = paired_difference(a, b)
    assert got.mean == pytest.approx(gap / n)
    assert got.high - got.low == pytest.approx(2 * 1.96 * se, rel=0.05)
    assert got.high - got.low != pytest.approx(2 * 1.645 * se, rel=0.05)


def test_unequal_lengths_are_refused() -> None:
    for function in (paired_difference, ratio_of_means, mcnemar_exact):
        with pytest.raises(ValueError, match="equally long"):
            function([1, 0], [1])
    with pytest.raises(ValueError, match="equally long"):
        mean_intervals([[1.0], [1.0, 2.0]])


def test_ratio_against_a_slow_reference() -> None:
    a, b = _bits(80, 0.6, 8), _bits(80, 0.4, 9)
    got = ratio_of_means(a, b)
    source, ratios = random.Random(0), []
    for _ in range(4_000):
        picks = source.choices(range(80), k=80)
        ratios.append(sum(a[i] for i in picks) / sum(b[i] for i in picks))
    low, high = np.quantile(ratios, [0.025, 0.975])
    width = high - low
    assert got.mean == sum(a) / sum(b)
    assert (got.low, got.high) == pytest.approx((low, high), abs=0.06 * width)
    narrow = np.quantile(ratios, [0.05, 0.95])
    assert (got.low, got.high) != pytest.approx(tuple(narrow), abs=0.06 * width)


def test_ratio_of_equal_systems_is_exactly_one() -> None:
    assert ratio_of_means([1, 0, 1, 1], [1, 0, 1, 1]).mean == 1.0
    assert ratio_of_means([1] * 9, [1] * 9) == Estimate(1.0, 1.0, 1.0, 9)


def test_ratio_is_open_above_where_the_denominator_can_vanish() -> None:
    got = ratio_of_means([1, 1, 0, 0], [1, 0, 0, 0])
    assert got.mean == 2.0
    assert got.high == math.inf
    assert got.low < 2.0
    with pytest.raises(ValueError, match="undefined"):
        ratio_of_means([1, 0], [0, 0])
    with pytest.raises(ValueError, match="negative"):
        ratio_of_means([-1, 0], [1, 0])


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (5, 5), (2, 9), (30, 12), (400, 300)])
def test_mcnemar_equals_the_exact_binomial_test(only_a: int, only_b: int) -> None:
    a = [1] * only_a + [0] * only_b + [1, 0]
    b = [0] * only_a + [1] * only_b + [1, 0]
    got = mcnemar_exact(a, b)
    want = scipy.stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert (got.only_a, got.only_b) == (only_a, only_b)
    assert got.p_value == pytest.approx(want, abs=1e-12)


def test_mcnemar_tolerance_tells_the_one_sided_test_apart() -> None:
    got = mcnemar_exact([1] * 9 + [0] * 2, [0] * 9 + [1] * 2)
    one_sided = scipy.stats.binomtest(9, 11, alternative="greater").pvalue
    assert got.p_value != pytest.approx(one_sided, abs=1e-12)
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar_exact([0.5], [1])


def test_holm_by_hand() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04, made monotone
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
