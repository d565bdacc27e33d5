import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, ttest_1samp

from rlbook.stats import bootstrap_interval, t_interval, wilson_interval


def test_t_interval_by_hand():
    # mean 3, s = √2.5, t(4 degrees of freedom, 97.5 %) = 2.7764 from any table
    interval = t_interval([1, 2, 3, 4, 5])
    assert interval.mean == 3
    assert interval.high - 3 == pytest.approx(2.7764 * np.sqrt(2.5 / 5), abs=1e-4)


def test_t_interval_agrees_with_the_t_test_per_column():
    curves = np.random.default_rng(0).normal(size=(6, 4))
    interval = t_interval(curves, level=0.9)
    for column, low, high in zip(curves.T, interval.low, interval.high, strict=True):
        expected = ttest_1samp(column, 0).confidence_interval(0.9)
        assert (low, high) == pytest.approx((expected.low, expected.high))


def test_t_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(size=(5, 20_000))
    interval = t_interval(draws)
    covered = np.mean((interval.low < 0) & (interval.high > 0))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 20_000)


def test_bootstrap_approaches_the_normal_interval():
    values = np.random.default_rng(2).exponential(size=400)
    interval = bootstrap_interval(values, resamples=4000)
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert interval == bootstrap_interval(values, resamples=4000)


def test_bootstrap_takes_other_statistics():
    interval = bootstrap_interval([1, 1, 1, 9], np.median, resamples=500)
    assert interval.mean == 1
    assert 1 == interval.low < interval.high <= 9


def test_pairing_removes_the_difficulty_of_prompts():
    rng = np.random.default_rng(3)
    difficulty = rng.uniform(size=64)
    before = difficulty + 0.01 * rng.normal(size=64)
    after = difficulty + 0.05 + 0.01 * rng.normal(size=64)
    paired = bootstrap_interval(after - before, resamples=2000)
    assert paired.low > 0.04
    assert paired.high < 0.06
    separate = bootstrap_interval(after, resamples=2000)
    assert separate.high - separate.low > 5 * (paired.high - paired.low)


def test_wilson_bounds_solve_the_score_equation():
    interval = wilson_interval(3, 20)

    def score(p):
        return (3 / 20 - p) ** 2 - 1.959964**2 * p * (1 - p) / 20

    assert interval.low == pytest.approx(brentq(score, 1e-9, 3 / 20), abs=1e-6)
    assert interval.high == pytest.approx(brentq(score, 3 / 20, 1 - 1e-9), abs=1e-6)


def test_wilson_at_the_ends_and_its_coverage():
    assert wilson_interval(0, 10).low == pytest.approx(0, abs=1e-12)
    assert wilson_interval(10, 10).high == pytest.approx(1, abs=1e-12)
    successes = np.arange(41)
    interval = wilson_interval(successes, 40)
    covered = (interval.low < 0.1) & (interval.high > 0.1)
    assert 0.92 < binom.pmf(successes, 40, 0.1) @ covered < 0.98


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: t_interval([1.0]), "at least two seeds"),
        (lambda: bootstrap_interval([1.0]), "at least two rows"),
        (lambda: wilson_interval(3, 2), "0 ≤ successes ≤ trials"),
    ],
)
def test_missing_evidence_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
