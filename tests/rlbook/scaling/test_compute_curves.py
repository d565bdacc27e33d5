import json
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.scaling import Sigmoid, bootstrap_sigmoid, fit_sigmoid

GOLDEN = Path(__file__).parents[1] / "golden" / "scalerl_sigmoid.json"
CASES = json.loads(GOLDEN.read_text())["cases"]
LEAST_SQUARES = [case for case in CASES if case["function"] == "least-squares sigmoid fit"]
UPDATES = np.arange(100, 7401, 100) * 100_000 / 7400  # GPU-hours of the paper's longest run
LONG_RUN = Sigmoid(A=0.645, B=1.70, C_mid=10_909, R_0=0.38)
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


def test_curve_by_hand():
    curve = Sigmoid(A=0.8, B=2.0, C_mid=100, R_0=0.2)
    np.testing.assert_allclose(curve([0, 50, 100, 300]), [0.2, 0.32, 0.5, 0.74])
    assert curve(1e12) == pytest.approx(0.8)
    np.testing.assert_allclose(curve.compute_for([0.32, 0.5, 0.74]), [50, 100, 300])
    assert np.isnan(curve.compute_for([0.2, 0.8, 0.9])).all()


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


@pytest.mark.parametrize(
    ("R_0", "A", "B"), [(0.30, 0.68, 1.06), (0.34, 0.66, 1.33), (0.42, 0.63, 2.35)]
)
def test_a_wrong_start_moves_everything(R_0, A, B):
    anywhere = fit_sigmoid(UPDATES, LONG_RUN(UPDATES), R_0, 1500, 50_000).curve
    np.testing.assert_allclose([anywhere.A, anywhere.B], [A, B], atol=0.05)


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


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="2 points with compute in"):
        fit_sigmoid([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 0.1, start=3)
    with pytest.raises(ValueError, match="shapes"):
        fit_sigmoid([1, 2, 3], [0.1, 0.2], 0.1)
    with pytest.raises(ValueError, match="finite"):
        fit_sigmoid([1, 2, 3, 4], [0.1, 0.2, float("nan"), 0.4], 0.1)
    with pytest.raises(ValueError, match="must be positive"):
        Sigmoid(0.6, -1.0, 10, 0.1)
