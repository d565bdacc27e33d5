"""What chapter 17 asks of ScaleRL's curves: the grid of the paper, and the families it compares."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import curve_fit, minimize_scalar

from rlbook.scaling import Sigmoid, fit_sigmoid
from workshop.ch17.scalerl import (
    ASYMPTOTE_MARGIN,
    INFERRED_R_0,
    PAPER_ASYMPTOTES,
    PAPER_MIDPOINTS,
    compare_curves,
    extrapolate,
    fit_power_law,
    fit_saturating_power_law,
    fit_sigmoid_grid,
    published_curves,
)

GOLDEN = Path(__file__).parents[2] / "rlbook" / "golden" / "scalerl_sigmoid.json"
(GRID,) = (c for c in json.loads(GOLDEN.read_text())["cases"] if c["id"] == "noisy_8b/grid")
UPDATES = np.arange(100, 7401, 100) * 100_000 / 7400  # GPU-hours of the paper's longest run
LONG_RUN = Sigmoid(A=0.645, B=1.70, C_mid=10_909, R_0=INFERRED_R_0)
MIDPOINTS = np.linspace(4000, 40_000, 100)
EVAL_NOISE = 0.004  # at most, of mean@16 on 1,000 prompts


def test_grid_procedure_agrees_with_the_reference():
    fit = fit_sigmoid_grid(GRID["inputs"]["compute"], GRID["inputs"]["reward"], R_0=0.285)
    expected = GRID["outputs"]["fit"]
    np.testing.assert_allclose(
        [fit.curve.A, fit.curve.C_mid, fit.curve.B],
        [expected["A"], expected["Cmid"], expected["B"]],
        rtol=1e-5,
    )
    assert fit.sse == pytest.approx(GRID["outputs"]["sse"], rel=1e-9)


def test_inner_fit_is_that_of_curve_fit():
    rewards = LONG_RUN(UPDATES) + np.random.default_rng(1).normal(0, EVAL_NOISE, len(UPDATES))
    for A, C_mid in ((0.645, 10_909), (0.7, 8000), (0.6, 20_000)):

        def excess(relative, B, height=A - 0.38):
            return height / (1 + relative**-B)

        (B,), _ = curve_fit(excess, UPDATES / C_mid, rewards - 0.38, p0=[1.0])
        ours = fit_sigmoid_grid(UPDATES, rewards, 0.38, asymptotes=[A], midpoints=[C_mid])
        assert abs(ours.curve.B / B - 1) < 2e-4  # curve_fit stops early on a hopeless pair
        theirs = ((excess(UPDATES / C_mid, B) - rewards + 0.38) ** 2).sum()
        assert ours.sse <= theirs * (1 + 1e-9)


def test_inner_fit_survives_a_first_step_that_is_too_long():
    C, R = np.array(GRID["inputs"]["compute"]), np.array(GRID["inputs"]["reward"])
    C_mid = PAPER_MIDPOINTS[2]
    best = minimize_scalar(lambda B: ((Sigmoid(0.61, B, C_mid, 0.285)(C) - R) ** 2).sum(), (0.5, 1))
    ours = fit_sigmoid_grid(C, R, 0.285, asymptotes=[0.61], midpoints=[C_mid])
    assert ours.sse <= best.fun * (1 + 1e-9)
    assert abs(ours.curve.B / best.x - 1) < 1e-4


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("ScaleRL", [0.2664, 0.7048, 0.9004, 0.9716, 0.9967, 0.9991]),
        ("ScaleRL, 32k tokens", [0.0216, 0.1237, 0.3434, 0.6597, 0.9435, 0.9841]),
        ("Scout", [0.1525, 0.4758, 0.7402, 0.8994, 0.9832, 0.9946]),
        ("batch 2048", [0.0331, 0.1537, 0.3712, 0.6573, 0.9301, 0.9774]),
        ("math and code: code", [0.4700, 0.7209, 0.8461, 0.9213, 0.9759, 0.9885]),
    ],
)
def test_share_of_the_gain_of_published_curves(name, shares):
    gain = published_curves()[name].gain([1500, 4000, 8000, 16_000, 50_000, 100_000])
    np.testing.assert_allclose(gain, shares, atol=5e-5)


@pytest.mark.parametrize("name", published_curves())
def test_published_parameters_are_recovered(name):
    true = published_curves()[name]
    compute = np.geomspace(true.C_mid / 8, true.C_mid * 8, 40)
    curve = fit_sigmoid(compute, true(compute), true.R_0).curve
    assert (curve.A, curve.B, curve.C_mid) == pytest.approx((true.A, true.B, true.C_mid), rel=1e-6)
    on_grid = fit_sigmoid_grid(compute, true(compute), true.R_0, midpoints=[true.C_mid]).curve
    np.testing.assert_allclose([on_grid.A, on_grid.B], [true.A, true.B], rtol=1e-6)
    noisy = true(compute) + np.random.default_rng(0).normal(0, EVAL_NOISE, 40)
    curve = fit_sigmoid(compute, noisy, true.R_0).curve
    assert abs(curve.A - true.A) < ASYMPTOTE_MARGIN
    assert abs(curve.B / true.B - 1) < 0.15
    assert abs(curve.C_mid / true.C_mid - 1) < 0.1


def test_long_run_on_the_grid_it_lies_on_and_on_the_stated_one():
    settings = {"compute": UPDATES, "reward": LONG_RUN(UPDATES), "start": 1500, "stop": 50_000}
    fine = fit_sigmoid_grid(R_0=0.38, midpoints=MIDPOINTS, **settings).curve
    assert (fine.A, fine.C_mid, fine.B) == pytest.approx((0.645, 10_909.09, 1.70), rel=1e-4)
    stated = fit_sigmoid_grid(R_0=0.38, **settings).curve
    assert (stated.A, stated.C_mid, stated.B) == pytest.approx((0.645, 10_981.8, 1.7085), rel=1e-4)


@pytest.mark.parametrize(
    ("R_0", "A", "B"), [(0.30, 0.68, 1.06), (0.34, 0.66, 1.33), (0.42, 0.63, 2.35)]
)
def test_a_wrong_start_moves_everything_on_the_grid_too(R_0, A, B):
    rewards = LONG_RUN(UPDATES)
    curve = fit_sigmoid_grid(UPDATES, rewards, R_0, 1500, 50_000, midpoints=MIDPOINTS).curve
    np.testing.assert_allclose([curve.A, curve.B], [A, B], atol=0.01)


@pytest.mark.parametrize(
    ("start", "stop", "A"), [(1500, 50_000, 1.0), (5000, 50_000, 0.74), (30_000, 60_000, 0.648)]
)
def test_power_laws_of_the_paper_follow_from_its_sigmoid(start, stop, A):
    """Appendix A.4 prints 1.0 and 0.74; this is what R_0 = .38 was inferred from."""
    fit = fit_saturating_power_law(UPDATES, LONG_RUN(UPDATES), start, stop)
    assert abs(fit.curve.A - A) < 0.001


def test_power_laws_are_recovered_from_their_own_points():
    C = np.geomspace(10, 1e4, 20)
    saturating = fit_saturating_power_law(C, 0.7 - 2.5 * C**-0.8).curve
    np.testing.assert_allclose([saturating.A, saturating.D, saturating.B], [0.7, 2.5, 0.8], 1e-6)
    rising = fit_power_law(C, 0.1 + 0.02 * C**0.3, R_0=0.1).curve
    np.testing.assert_allclose([rising.D, rising.B], [0.02, 0.3], 1e-6)
    np.testing.assert_allclose(rising(C), 0.1 + 0.02 * C**0.3)
    np.testing.assert_allclose(saturating(C), 0.7 - 2.5 * C**-0.8)


def test_second_half_is_predicted_from_the_first():
    noisy = LONG_RUN(UPDATES) + np.random.default_rng(3).normal(0, EVAL_NOISE, len(UPDATES))
    check = extrapolate(fit_sigmoid, UPDATES, noisy, stop=50_000, start=1500, R_0=0.38)
    assert check.compute.min() > 50_000 and len(check.compute) == 37
    assert check.fit.points == 36
    np.testing.assert_allclose(check.observed, noisy[37:])
    assert check.rmse < 2 * EVAL_NOISE
    assert check.fit.curve([50_000, 100_000]) == pytest.approx([0.6265, 0.6390], abs=0.005)


def test_early_points_decide_what_a_power_law_promises():
    rows = compare_curves(UPDATES, LONG_RUN(UPDATES), 0.38, stops=(16_000, 50_000), start=1500)
    by = {(row["curve"], row["stop"]): row for row in rows}
    assert len(by) == 6
    for stop in (16_000, 50_000):
        assert by["sigmoid", stop]["beyond"] < 1e-6
        assert by["saturating power law", stop]["beyond"] > 0.01
        assert by["power law", stop]["beyond"] > by["saturating power law", stop]["beyond"]
    assert by["power law", 16_000]["bias"] > 0.4
    assert by["power law", 16_000]["A"] == inf
    assert by["sigmoid", 50_000]["A"] == pytest.approx(0.645)


def test_stated_grid():
    assert len(PAPER_ASYMPTOTES) == 71
    np.testing.assert_allclose(np.diff(PAPER_ASYMPTOTES), 0.005)


def test_nothing_left_to_predict_is_named():
    with pytest.raises(ValueError, match="0 points"):
        extrapolate(fit_sigmoid, [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], stop=4, R_0=0.0)
