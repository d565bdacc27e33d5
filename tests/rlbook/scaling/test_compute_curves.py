import json
from math import inf, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit, minimize_scalar

from rlbook.scaling.compute_curves import (
    ASYMPTOTE_MARGIN,
    INFERRED_R_0,
    PAPER_ASYMPTOTES,
    PAPER_MIDPOINTS,
    Sigmoid,
    bootstrap_sigmoid,
    compare_curves,
    extrapolate,
    fit_power_law,
    fit_saturating_power_law,
    fit_sigmoid,
    fit_sigmoid_grid,
    published_curves,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "scalerl_sigmoid.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
LEAST_SQUARES = [case for case in CASES if case["function"] == "least-squares sigmoid fit"]
UPDATES = np.arange(100, 7401, 100) * 100_000 / 7400  # GPU-hours of the paper's longest run
LONG_RUN = Sigmoid(A=0.645, B=1.70, C_mid=10_909, R_0=INFERRED_R_0)
MIDPOINTS = np.linspace(4000, 40_000, 100)
EVAL_NOISE = 0.004  # at most, of mean@16 on 1,000 prompts

sigmoids = st.builds(
    Sigmoid,
    A=st.floats(0.5, 0.95),
    B=st.floats(0.6, 4),
    C_mid=st.floats(10, 1e5),
    R_0=st.floats(0, 0.4),
)


@pytest.mark.parametrize("case", LEAST_SQUARES, ids=lambda case: case["id"])
def test_finds_the_optimum_of_the_reference_solver(case):
    inputs, expected = case["inputs"], case["outputs"]
    fit = fit_sigmoid(inputs["compute"], inputs["reward"], case["kwargs"]["R0"])
    curve, reference = fit.curve, expected["fit"]
    assert fit.sse <= expected["sse"] * (1 + 1e-9) + 1e-28
    assert (curve.A, curve.B, curve.C_mid, curve.R_0) == pytest.approx(
        tuple(reference[name] for name in ("A", "B", "Cmid", "R0")), rel=case["rtol"], abs=1e-12
    )
    np.testing.assert_allclose(
        curve(expected["extrapolate_at"]), expected["extrapolated"], rtol=case["rtol"]
    )


def test_grid_procedure_agrees_with_the_reference():
    (case,) = (case for case in CASES if case["id"] == "noisy_8b/grid")
    fit = fit_sigmoid_grid(case["inputs"]["compute"], case["inputs"]["reward"], R_0=0.285)
    expected = case["outputs"]["fit"]
    np.testing.assert_allclose(
        [fit.curve.A, fit.curve.C_mid, fit.curve.B],
        [expected["A"], expected["Cmid"], expected["B"]],
        rtol=1e-5,
    )
    assert fit.sse == pytest.approx(case["outputs"]["sse"], rel=1e-9)


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
    (case,) = (case for case in CASES if case["id"] == "noisy_8b/grid")
    C, R = np.array(case["inputs"]["compute"]), np.array(case["inputs"]["reward"])
    C_mid = PAPER_MIDPOINTS[2]
    best = minimize_scalar(lambda B: ((Sigmoid(0.61, B, C_mid, 0.285)(C) - R) ** 2).sum(), (0.5, 1))
    ours = fit_sigmoid_grid(C, R, 0.285, asymptotes=[0.61], midpoints=[C_mid])
    assert ours.sse <= best.fun * (1 + 1e-9)
    assert abs(ours.curve.B / best.x - 1) < 1e-4


def test_curve_by_hand():
    curve = Sigmoid(A=0.8, B=2.0, C_mid=100, R_0=0.2)
    np.testing.assert_allclose(curve([0, 50, 100, 300]), [0.2, 0.32, 0.5, 0.74])
    assert curve(1e12) == pytest.approx(0.8)
    np.testing.assert_allclose(curve.compute_for([0.32, 0.5, 0.74]), [50, 100, 300])
    assert np.isnan(curve.compute_for([0.2, 0.8, 0.9])).all()


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


@settings(max_examples=25, deadline=None)
@given(sigmoids)
def test_any_sigmoid_is_recovered_from_its_own_points(true):
    compute = np.geomspace(true.C_mid / 30, true.C_mid * 30, 30)
    for R_0 in (true.R_0, None):
        curve = fit_sigmoid(compute, true(compute), R_0).curve
        np.testing.assert_allclose(curve(compute), true(compute), atol=1e-7)
        np.testing.assert_allclose([curve.A, curve.B], [true.A, true.B], rtol=1e-4)


@given(sigmoids, st.floats(0.01, 100))
def test_curve_rises_between_its_ends_and_inverts(curve, relative):
    compute = relative * curve.C_mid
    low, high = curve(compute), curve(1.01 * compute)
    assert curve.R_0 <= low < high <= curve.A
    assert curve.compute_for(low) == pytest.approx(compute, rel=1e-5)


def test_the_inverse_linearises():
    """log C^B against log C is a line of slope B, which is how B can be read off a plot."""
    C, F = UPDATES[[10, 60]], LONG_RUN.compute_for(LONG_RUN(UPDATES[[10, 60]])) ** LONG_RUN.B
    assert log(F[1] / F[0]) / log(C[1] / C[0]) == pytest.approx(LONG_RUN.B)


def test_far_out_a_sigmoid_is_a_power_law():
    C = np.array([3e6, 1e7])
    D = (LONG_RUN.A - LONG_RUN.R_0) * LONG_RUN.C_mid**LONG_RUN.B
    np.testing.assert_allclose(LONG_RUN.A - LONG_RUN(C), D / C**LONG_RUN.B, rtol=1e-3)


def test_long_run_on_the_grid_it_lies_on_and_on_the_stated_one():
    settings = {"compute": UPDATES, "reward": LONG_RUN(UPDATES), "start": 1500, "stop": 50_000}
    fine = fit_sigmoid_grid(R_0=0.38, midpoints=MIDPOINTS, **settings).curve
    assert (fine.A, fine.C_mid, fine.B) == pytest.approx((0.645, 10_909.09, 1.70), rel=1e-4)
    stated = fit_sigmoid_grid(R_0=0.38, **settings).curve
    assert (stated.A, stated.C_mid, stated.B) == pytest.approx((0.645, 10_981.8, 1.7085), rel=1e-4)


@pytest.mark.parametrize(
    ("R_0", "A", "B"), [(0.30, 0.68, 1.06), (0.34, 0.66, 1.33), (0.42, 0.63, 2.35)]
)
def test_a_wrong_start_moves_everything(R_0, A, B):
    rewards = LONG_RUN(UPDATES)
    on_grid = fit_sigmoid_grid(UPDATES, rewards, R_0, 1500, 50_000, midpoints=MIDPOINTS).curve
    np.testing.assert_allclose([on_grid.A, on_grid.B], [A, B], atol=0.01)
    anywhere = fit_sigmoid(UPDATES, rewards, R_0, 1500, 50_000).curve
    np.testing.assert_allclose([anywhere.A, anywhere.B], [A, B], atol=0.05)


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


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    compute, rng = np.geomspace(1500, 50_000, 36), np.random.default_rng(0)
    covered = []
    for seed in range(16):
        noisy = LONG_RUN(compute) + rng.normal(0, EVAL_NOISE, 36)
        boot = bootstrap_sigmoid(compute, noisy, 0.38, resamples=40, seed=seed)
        intervals = [boot.interval(name, 0.9) for name in ("A", "B", "C_mid")]
        band = boot.band(100_000, 0.9)
        truth = [LONG_RUN.A, LONG_RUN.B, LONG_RUN.C_mid, LONG_RUN(100_000)]
        covered.append([i.low < x < i.high for i, x in zip([*intervals, band], truth, strict=True)])
    assert (np.mean(covered, axis=0) > 0.7).all()
    assert np.mean(covered) < 1


def test_bootstrap_is_repeatable_and_refits():
    rng = np.random.default_rng(0)
    compute = np.geomspace(1500, 50_000, 20)
    noisy = LONG_RUN(compute) + rng.normal(0, EVAL_NOISE, 20)
    one, two = (bootstrap_sigmoid(compute, noisy, None, resamples=5, seed=4) for _ in range(2))
    assert one == two and len(one.replicas) == 5
    assert one.curve == fit_sigmoid(compute, noisy, None).curve
    assert len({replica.R_0 for replica in one.replicas}) == 5


def test_zero_compute_and_order_do_not_matter():
    C = np.array([400.0, 0.0, 100.0, 50.0, 900.0])
    R = Sigmoid(0.8, 2.0, 100, 0.2)(C)
    assert fit_sigmoid(C, R, 0.2).curve == fit_sigmoid(np.sort(C)[1:], np.sort(R)[1:], 0.2).curve
    assert fit_sigmoid(C, R, 0.2).points == 4


def test_stated_grid():
    assert len(PAPER_ASYMPTOTES) == 71
    np.testing.assert_allclose(np.diff(PAPER_ASYMPTOTES), 0.005)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="2 points with compute in"):
        fit_sigmoid([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 0.1, start=3)
    with pytest.raises(ValueError, match="shapes"):
        fit_sigmoid([1, 2, 3], [0.1, 0.2], 0.1)
    with pytest.raises(ValueError, match="finite"):
        fit_sigmoid([1, 2, 3, 4], [0.1, 0.2, float("nan"), 0.4], 0.1)
    with pytest.raises(ValueError, match="must be positive"):
        Sigmoid(0.6, -1.0, 10, 0.1)
    with pytest.raises(ValueError, match="0 points"):
        extrapolate(fit_sigmoid, [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], stop=4, R_0=0.0)
