from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from workshop.shared.worlds.gae_walk import Walk, gae_moments, gae_table

SMALL = Walk(steps=6, p=0.6, goal=2)
DECIDED = Walk.one_step(3, steps=6, p=0.6)
CRITIC = np.random.default_rng(0).normal(size=SMALL.values.shape)


def enumerate_gae(walk, critic, lam):
    """Every path with its chance and its pulls s_t Â_t, Â_t as the forward sum of λ^l δ_{t+l}."""
    for path in product((1, -1), repeat=walk.steps):
        chance = np.prod([walk.p if a == 1 else 1 - walk.p for a in path])
        moved = [a * (walk.decisive in (None, t)) for t, a in enumerate(path)]
        x = np.concatenate([[0], np.cumsum(moved)])
        v = [critic[t, x[t] + walk.steps] for t in range(walk.steps)] + [float(x[-1] >= walk.goal)]
        delta = np.diff(v)
        advantage = [
            sum(lam**k * delta[t + k] for k in range(walk.steps - t)) for t in range(walk.steps)
        ]
        score = np.where(np.array(path) == 1, 1 - walk.p, -walk.p)
        yield chance, score * advantage


@pytest.mark.parametrize("walk", [SMALL, DECIDED], ids=["all steps", "one step"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_moments_equal_enumeration_of_all_paths(walk, lam):
    chances, pulls = map(np.array, zip(*enumerate_gae(walk, CRITIC, lam), strict=True))
    ours = gae_moments(walk, CRITIC, lam)
    mean, total = chances @ pulls, pulls.sum(1)
    np.testing.assert_allclose(ours.mean, mean, atol=1e-12)
    np.testing.assert_allclose(ours.variance, chances @ pulls**2 - mean**2, atol=1e-12)
    assert ours.shared_mean == pytest.approx(chances @ total, abs=1e-12)
    shared = chances @ total**2 - (chances @ total) ** 2
    assert ours.shared_variance == pytest.approx(shared, abs=1e-12)


def test_value_of_the_start_is_a_binomial_tail():
    walk = Walk()
    # 20 steps end at 4 or above with at least 12 steps up
    assert walk.expected_reward == pytest.approx(binom.sf(11, 20, 0.55), abs=1e-12)
    assert walk.visits.sum(1) == pytest.approx(np.ones(21))


def test_true_gradient_is_a_slope_of_the_reward():
    def expected_reward(p):
        return sum(
            np.prod([q if a == 1 else 1 - q for a, q in zip(path, p, strict=True)])
            for path in product((1, -1), repeat=SMALL.steps)
            if sum(path) >= SMALL.goal
        )

    theta, h = np.log(0.6 / 0.4), 1e-5
    for t in range(SMALL.steps):
        step = h * np.eye(SMALL.steps)[t]
        up, down = (expected_reward(1 / (1 + np.exp(-theta - s * step))) for s in (1, -1))
        assert SMALL.true_gradient[t] == pytest.approx((up - down) / (2 * h), abs=1e-9)


def test_two_ways_to_be_unbiased():
    """λ = 1 forgives any critic; the exact critic forgives any λ."""
    for critic, lam in ((CRITIC, 1.0), (SMALL.values, 0.0), (SMALL.values, 0.7)):
        np.testing.assert_allclose(
            gae_moments(SMALL, critic, lam).mean, SMALL.true_gradient, atol=1e-12
        )
    assert np.abs(gae_moments(SMALL, CRITIC, 0.5).mean - SMALL.true_gradient).max() > 0.01


def test_best_lambda_rises_as_the_critic_gets_worse():
    rows = gae_table(Walk())
    rmse = {}
    for row in rows:
        rmse.setdefault(row["critic"], {})[row["lambda"]] = row["rmse"]
    best = [min(errors, key=errors.get) for errors in rmse.values()]
    assert best == sorted(best)
    assert best[0] == 0
    assert best[-1] == 0.95
    assert all(row["bias"] < 1e-12 for row in rows if row["lambda"] == 1)


def shared_errors(walk, critic="exact"):
    return {r["lambda"]: r["shared_rmse"] for r in gae_table(walk) if r["critic"] == critic}


def test_steps_that_count_alike_leave_a_shared_logit_nothing_to_assign():
    errors = shared_errors(Walk())
    assert errors[0.99] < errors[0.0]


@pytest.mark.parametrize("decisive", [4, 9, 15])
def test_one_decisive_step_is_found_by_an_exact_critic_alone(decisive):
    """λ = 0 has the noise of that step; λ = 1 adds one of variance p(1 - p) for each before it."""
    p, errors = 0.55, shared_errors(Walk.one_step(decisive))
    signal = p * (1 - p)
    own = signal * (1 - 2 * p) ** 2
    assert errors[0.0] == pytest.approx((own / 64) ** 0.5 / signal, rel=1e-9)
    assert errors[1.0] == pytest.approx(((own + decisive * signal**2) / 64) ** 0.5 / signal)
    constant = shared_errors(Walk.one_step(decisive), "constant")
    assert constant[0.0] > 1  # it sees no surprise before the reward, which the last step gets


def test_a_walk_in_which_one_step_decides():
    walk = Walk.one_step(3, steps=6, p=0.6)
    assert walk.expected_reward == pytest.approx(0.6)
    np.testing.assert_allclose(walk.true_gradient, [0, 0, 0, 0.24, 0, 0], atol=1e-12)
    assert walk.visits.sum(1) == pytest.approx(np.ones(7))
    with pytest.raises(ValueError, match="from 0 to 5"):
        Walk.one_step(6, steps=6)


def test_sampled_episodes_agree():
    walk, n = Walk(), 40_000
    won = walk.episodes(n).sum(1) >= walk.goal
    assert won.mean() == pytest.approx(walk.expected_reward, abs=4.5 * 0.5 / n**0.5)


def test_lambda_outside_is_named():
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        gae_moments(SMALL, CRITIC, 1.1)
