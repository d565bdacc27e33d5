"""Several seeds of several recipes: what is drawn, what a common asymptote does, open ends."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from rlbook.scaling import (
    Points,
    Sigmoid,
    bootstrap_common_asymptote,
    bootstrap_seeds,
    bootstrap_sigmoid,
    difference,
    distinct_draws,
    fit_common_asymptote,
    fit_sigmoid,
    open_end,
)

UPDATES = np.arange(5.0, 105, 5)
R_0 = 0.3
FAST, SLOW = Sigmoid(0.8, 2.0, 20, R_0), Sigmoid(0.8, 1.4, 30, R_0)


def runs(curve, seeds, noise=0.01, shift=0.0, first=0):
    """Runs on a curve; each has noise of its own, and A moved by its seed's N(0, shift)."""
    made = {}
    for seed in range(first, first + seeds):
        rng = np.random.default_rng([seed, 7])
        own = Sigmoid(curve.A + shift * rng.standard_normal(), curve.B, curve.C_mid, R_0)
        made[seed] = Points(UPDATES, own(UPDATES) + rng.normal(0, noise, len(UPDATES)))
    return made


def test_a_given_asymptote_leaves_the_fit_of_another_solver():
    noisy = FAST(UPDATES) + np.random.default_rng(0).normal(0, 0.02, len(UPDATES))
    for A in (0.75, 0.9):

        def model(C, B, log_C_mid, A=A):
            return R_0 + (A - R_0) / (1 + (np.exp(log_C_mid) / C) ** B)

        (B, log_C_mid), _ = curve_fit(model, UPDATES, noisy, p0=[1.5, 3.0])
        ours = fit_sigmoid(UPDATES, noisy, R_0, A=A).curve
        assert (ours.A, ours.R_0) == (A, R_0)
        assert (ours.B, ours.C_mid) == pytest.approx((B, np.exp(log_C_mid)), rel=1e-4)


def test_a_given_asymptote_with_an_unknown_start():
    curve = fit_sigmoid(UPDATES, FAST(UPDATES), None, A=0.8).curve
    assert (curve.B, curve.C_mid, curve.R_0) == pytest.approx((2.0, 20, R_0), rel=1e-5)


def test_a_common_asymptote_is_the_mean_and_undoes_what_a_free_one_traded():
    recipes = {"fast": runs(FAST, 1, 0), "slow": runs(SLOW, 1, 0)}
    for fit, true in zip(fit_common_asymptote(recipes, R_0).values(), (FAST, SLOW), strict=True):
        assert (fit.curve.A, fit.curve.B, fit.curve.C_mid) == pytest.approx(
            (0.8, true.B, true.C_mid), rel=1e-6
        )
    apart = {"high": runs(Sigmoid(0.9, 2.0, 20, R_0), 1, 0), "low": runs(FAST, 1, 0)}
    low = fit_common_asymptote(apart, R_0)["low"].curve
    np.testing.assert_allclose(low.A, 0.85, rtol=1e-6)


def test_intervals_over_seeds_cover_the_truth_where_those_within_a_run_do_not():
    """Seeds end at different A: the noise within a run is no measure of that."""
    within, between = [], []
    for start in range(0, 128, 8):
        made = runs(FAST, 8, noise=0.005, shift=0.03, first=start)
        over_seeds = bootstrap_seeds(made, R_0, resamples=40).interval("A")
        one = bootstrap_sigmoid(*made[start], R_0, resamples=40).interval("A")
        between.append(over_seeds.low < FAST.A < over_seeds.high)
        within.append(one.low < FAST.A < one.high)
    assert np.mean(between) > 0.75
    assert np.mean(within) < 0.6


def test_what_seeds_share_cancels_in_a_difference():
    """The same seeds move both recipes' A by ±0.05 together; the recipes are the same."""
    pairs = {name: runs(FAST, 6, noise=0.002, shift=0.05) for name in ("one", "other")}
    pairs["other"] = {seed: Points(C, R + 0.01) for seed, (C, R) in pairs["other"].items()}
    boots = {name: bootstrap_seeds(made, R_0, resamples=80) for name, made in pairs.items()}
    paired = difference(boots["other"], boots["one"], "A")
    alone = boots["one"].interval("A")
    assert 0 < paired.low < 0.02 and paired.high < 0.02
    assert paired.high - paired.low < 0.2 * (alone.high - alone.low)
    elsewhere = bootstrap_seeds(runs(FAST, 6, 0.002, 0.05, first=100), R_0, resamples=80)
    unpaired = difference(elsewhere, boots["one"], "A")
    assert unpaired.high - unpaired.low > alone.high - alone.low


def test_every_draw_is_a_fit_of_whole_runs():
    made = {s: Points(UPDATES, Sigmoid(A, 2, 20, R_0)(UPDATES)) for s, A in ((3, 0.7), (5, 0.9))}
    boot = bootstrap_seeds(made, R_0, resamples=40)
    assert {round(r.A, 6) for r in boot.replicas} == {0.7, 0.8, 0.9}
    turned = bootstrap_seeds(dict(reversed(made.items())), R_0, resamples=40)
    asymptotes = [[r.A for r in b.replicas] for b in (boot, turned)]
    np.testing.assert_allclose(*asymptotes, rtol=1e-6)
    assert distinct_draws(2) == 3 and distinct_draws(3) == 10


def test_in_every_draw_all_recipes_have_one_asymptote():
    recipes = {"fast": runs(FAST, 4, shift=0.03), "slow": runs(SLOW, 4, shift=0.03)}
    common = bootstrap_common_asymptote(recipes, R_0, resamples=30)
    pairs = list(zip(common["fast"].replicas, common["slow"].replicas, strict=True))
    assert all(fast.A == slow.A for fast, slow in pairs)
    assert len({fast.A for fast, _ in pairs}) > 5
    steeper = difference(common["fast"], common["slow"], "B")
    assert steeper.low > 0 and abs(steeper.mean - 0.6) < 0.15


@pytest.mark.parametrize(
    ("last", "told"), [(0.5, "midpoint may lie"), (1.2, "midpoint|A may lie"), (10, None)]
)
def test_points_that_end_before_the_bend_leave_the_end_open(last, told):
    compute = np.linspace(1, last * FAST.C_mid, 30)
    noisy = FAST(compute) + np.random.default_rng(2).normal(0, 0.02, 30)
    why = open_end(bootstrap_sigmoid(compute, noisy, R_0, resamples=60), compute[-1])
    assert (why is None) if told is None else any(part in why for part in told.split("|"))


def test_an_asymptote_where_the_fit_stops_is_open():
    """Its interval is narrow for a wrong reason: what lies above 1 was never looked at."""
    far = Sigmoid(1.0, 1.35, 35, R_0)
    boot = bootstrap_sigmoid(
        UPDATES, far(UPDATES) + np.random.default_rng(3).normal(0, 0.004, 20), R_0, resamples=60
    )
    A = boot.interval("A")
    assert A.high - A.low < 0.1 * (far(100) - R_0) and boot.interval("C_mid").high < 50
    assert "no further than 1" in open_end(boot, 100)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least two runs, got 1"):
        bootstrap_seeds(runs(FAST, 1), R_0)
    one, other = (bootstrap_seeds(runs(FAST, 2), R_0, resamples=n) for n in (3, 4))
    with pytest.raises(ValueError, match="3 draws against 4"):
        difference(one, other, "A")
