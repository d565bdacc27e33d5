"""The table of baselines: every row by hand, the wobble of the moving mean by simulation."""

from math import sqrt

import pytest
import torch

from rlbook.exact import FillerPolicy, TokenTree, expected_gradient
from rlbook.objectives import group_normalize
from workshop.shared.worlds.baseline_cost import baseline_moments, bias_variance_table, ema_variance


@pytest.mark.parametrize("p", [0.05, 0.3, 0.7, 0.95])
def test_baselines_of_a_long_answer(p):
    """One deciding token, ten fillers: every row from E[(r - b)² ((a - p)² + 10/4)]."""
    policy, n = FillerPolicy.of(p, fillers=10), 8
    rows = {row["baseline"]: row for row in bias_variance_table(policy, policy.rewards, n)}
    pull = {1: (1 - p) ** 2 + 2.5, 0: p**2 + 2.5}
    best = p * pull[1] / (p * pull[1] + (1 - p) * pull[0])

    def variance(b, wobble=0.0):
        square = p * (1 - b) ** 2 * pull[1] + (1 - p) * b**2 * pull[0]
        return (square + wobble * (p * (1 - p) + 2.5) - (p * (1 - p)) ** 2) / n

    assert rows["none"]["variance"] == pytest.approx(variance(0))
    assert rows["none, rewards +1"]["variance"] == pytest.approx(variance(-1))
    assert rows["EMA"]["variance"] == pytest.approx(variance(p, p * (1 - p) / n * 0.1 / 1.9))
    assert rows["greedy"]["variance"] == pytest.approx(variance(float(p > 0.5)))
    assert rows["optimal"]["variance"] == pytest.approx(variance(best))
    assert rows["optimal"]["value"] == pytest.approx(best)
    assert rows["batch mean"]["factor"] == pytest.approx(7 / 8)
    unbiased = set(rows) - {"batch mean"}
    assert all(rows[name]["bias"] < 1e-12 for name in unbiased)
    assert all(rows[name]["variance"] >= rows["optimal"]["variance"] for name in unbiased)


def test_the_mean_hurts_with_two_answers():
    """Without fillers and p = .9, no baseline beats the mean, and b = 1 - p has no variance."""
    policy = FillerPolicy.of(0.9, fillers=0)
    rows = {row["baseline"]: row for row in bias_variance_table(policy, policy.rewards, 8)}
    assert rows["none"]["variance"] < 0.02 * rows["leave-one-out"]["variance"]
    assert rows["optimal"]["value"] == pytest.approx(0.1)
    assert 0 <= rows["optimal"]["variance"] < 1e-15
    for p in (0.1, 0.3, 0.6, 0.8):  # rounding leaves some of these just below 0
        policy = FillerPolicy.of(p, fillers=0)
        exact = baseline_moments(policy, policy.rewards, 1, 1 - p)
        assert exact.noise_to_signal < 1e-6
    assert rows["none, rewards +1"]["variance"] > rows["leave-one-out"]["variance"]


def test_ema_wobble_agrees_with_simulation():
    policy = FillerPolicy.of(0.3, fillers=0)
    generator = torch.Generator().manual_seed(0)
    baseline = torch.full((50_000,), 0.3)
    for _ in range(60):
        wins = torch.binomial(
            torch.full_like(baseline, 8), torch.full_like(baseline, 0.3), generator=generator
        )
        baseline = 0.9 * baseline + 0.1 * wins / 8
    expected = ema_variance(policy, policy.rewards, 8)
    assert baseline.var().item() == pytest.approx(expected, rel=4.5 * sqrt(2 / 50_000))


def test_extra_estimators_join_the_table():
    policy = FillerPolicy.of(0.5, fillers=0)
    rows = bias_variance_table(policy, policy.rewards, 4, extra={"grpo": group_normalize})
    assert rows[-1]["baseline"] == "grpo"
    assert rows[-1]["factor"] == pytest.approx(1.40, abs=0.005)


@pytest.mark.parametrize("b", [-0.5, 0.3])
def test_moments_of_a_constant_are_those_of_the_enumeration(b):
    policy, rewards = TokenTree.random(symbols=2, max_tokens=2), torch.linspace(0, 1, 7).double()
    listed = expected_gradient(lambda r, groups: r - b, policy, rewards, 2)
    constant = baseline_moments(policy, rewards, 2, b)
    torch.testing.assert_close(constant.mean, listed.mean)
    torch.testing.assert_close(constant.covariance, listed.covariance)


def test_leave_one_out_needs_two():
    policy = FillerPolicy.of(0.5, fillers=0)
    with pytest.raises(ValueError, match="n ≥ 2"):
        bias_variance_table(policy, policy.rewards, n=1)
