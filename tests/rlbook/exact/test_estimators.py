"""Moments of estimators against brute force, closed forms and simulation."""

from itertools import product
from math import comb, sqrt

import pytest
import torch

from rlbook import objectives
from rlbook.exact import (
    FillerPolicy,
    SoftmaxPolicy,
    TokenTree,
    expected_gradient,
    optimal_baseline,
)


def plain(rewards, groups):
    return rewards


def batch_mean(rewards, groups):
    return rewards - rewards.mean()


def leave_one_out(rewards, groups):
    return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)


def group_normalize(rewards, groups):
    spread = rewards.std()
    return (rewards - rewards.mean()) / spread if spread > 0 else torch.zeros_like(rewards)


def max_rl(rewards, groups):
    mean = rewards.mean()
    return (rewards - mean) / mean if mean > 0 else torch.zeros_like(rewards)


def previous_reward(rewards, groups):
    """Not symmetric: each sample's baseline is the reward before it."""
    return rewards - torch.cat([torch.zeros(1).double(), rewards[:-1]])


def brute_force(advantage, policy, rewards, n):
    mean, outer = 0, 0
    for batch in product(range(len(rewards)), repeat=n):
        chosen = list(batch)
        a = advantage(rewards[chosen], torch.zeros(n, dtype=torch.long))
        g = (a[:, None] * policy.scores[chosen]).mean(0)
        weight = policy.probs[chosen].prod()
        mean, outer = mean + weight * g, outer + weight * torch.outer(g, g)
    return mean, outer - torch.outer(mean, mean)


WORLDS = {
    "distinct": (SoftmaxPolicy.from_probs([0.4, 0.3, 0.2, 0.1]), [0.0, 1.0, 0.5, -2.0]),
    "tied": (SoftmaxPolicy.from_probs([0.4, 0.3, 0.2, 0.1]), [1.0, 0.0, 0.0, 1.0]),
    "filler": (FillerPolicy.of(0.2, fillers=1, filler_prob=0.7), [1.0, 1.0, 0.0, 0.0]),
    "tree": (TokenTree.random(symbols=2, max_tokens=2), [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.5]),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("advantage", [plain, leave_one_out, group_normalize, previous_reward])
def test_equals_enumeration_of_all_outcomes(world, advantage):
    policy, rewards = world
    rewards = torch.tensor(rewards, dtype=torch.float64)
    ours = expected_gradient(advantage, policy, rewards, n=3)
    mean, covariance = brute_force(advantage, policy, rewards, n=3)
    torch.testing.assert_close(ours.mean, mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(ours.covariance, covariance, atol=1e-12, rtol=0)


@pytest.mark.parametrize("advantage", [batch_mean, group_normalize, max_rl])
def test_multisets_give_the_same_as_tuples(advantage):
    policy = FillerPolicy.of(0.3, fillers=2)
    tuples = expected_gradient(advantage, policy, policy.rewards, n=6)
    multisets = expected_gradient(advantage, policy, policy.rewards, n=6, exchangeable=True)
    torch.testing.assert_close(multisets.mean, tuples.mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(multisets.covariance, tuples.covariance, atol=1e-12, rtol=0)


def test_agrees_with_simulation():
    policy, n, batches = FillerPolicy.of(0.3, fillers=4), 8, 20_000
    generator = torch.Generator().manual_seed(0)
    draws = torch.multinomial(policy.probs, n * batches, True, generator=generator)
    draws = draws.reshape(batches, n)
    rewards = policy.rewards[draws]
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-300)
    g = (advantages[..., None] * policy.scores[draws]).mean(1)
    exact = expected_gradient(group_normalize, policy, policy.rewards, n)
    standard_error = exact.covariance.diagonal().sqrt() / sqrt(batches)
    assert ((g.mean(0) - exact.mean).abs() < 4.5 * standard_error).all()
    assert g.var(0).sum().item() == pytest.approx(exact.variance, rel=0.03)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_batch_mean_keeps_n_minus_one_over_n(n):
    policy, rewards = WORLDS["tree"][0], torch.tensor(WORLDS["tree"][1]).double()
    with_self = expected_gradient(batch_mean, policy, rewards, n, exchangeable=True)
    without = expected_gradient(leave_one_out, policy, rewards, n, exchangeable=True)
    torch.testing.assert_close(with_self.mean, (n - 1) / n * with_self.true, atol=1e-12, rtol=0)
    assert without.bias < 1e-14
    assert with_self.noise_to_signal == pytest.approx(without.noise_to_signal)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [2, 4, 16])
def test_weights_of_difficulty(p, n):
    """E[g] = w(p, n) ∇p: closed forms for GRPO (binomial sum) and MaxRL (T = n - 1)."""
    policy = FillerPolicy.of(p, fillers=0)

    def weight(advantage):
        return expected_gradient(advantage, policy, policy.rewards, n, exchangeable=True).factor

    grpo = sum(
        comb(n, c) * p**c * (1 - p) ** (n - c) * sqrt(c * (n - c) * (n - 1) / n) / n
        for c in range(n + 1)
    ) / (p * (1 - p))
    assert weight(group_normalize) == pytest.approx(grpo, rel=1e-10)
    assert weight(max_rl) == pytest.approx((1 - (1 - p) ** (n - 1)) / p, rel=1e-10)


def test_groups_of_two_have_no_difficulty_bias():
    for p in (0.01, 0.3, 0.95):
        policy = FillerPolicy.of(p, fillers=0)
        factor = expected_gradient(group_normalize, policy, policy.rewards, 2).factor
        assert factor == pytest.approx(1 / sqrt(2))


def test_no_constant_beats_the_optimal_baseline():
    policy, rewards = WORLDS["tree"][0], torch.tensor(WORLDS["tree"][1]).double()
    best = optimal_baseline(policy, rewards)

    def variance(b):
        return expected_gradient(lambda r, g: r - b, policy, rewards, 2).variance

    assert variance(best) < min(variance(best - 0.01), variance(best + 0.01))


def test_estimators_of_the_package_have_the_moments_of_the_formulas():
    policy, rewards = WORLDS["tree"][0], torch.tensor(WORLDS["tree"][1]).double()
    for theirs, ours in (
        (objectives.batch_mean_baseline, batch_mean),
        (objectives.leave_one_out, leave_one_out),
        (objectives.group_normalize, group_normalize),
    ):
        first, second = (expected_gradient(f, policy, rewards, n=4) for f in (theirs, ours))
        torch.testing.assert_close(first.mean, second.mean, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(first.covariance, second.covariance, atol=1e-6, rtol=1e-5)


def test_loss_over_all_sequences_of_a_tree_is_the_policy_gradient():
    """On-policy, every trust region: Σ_y π_old(y) · loss(y) has gradient -∇J."""
    tree = TokenTree.random(symbols=2, max_tokens=3)
    rewards = torch.linspace(0, 1, 15, dtype=torch.float64)
    old = tree.token_log_probs(tree.logits)
    for region in (objectives.NoTrustRegion(), objectives.RatioClip(), objectives.WeightClip(2.0)):
        logits = tree.logits.clone().requires_grad_()
        logp = tree.token_log_probs(logits)
        advantages = rewards[:, None].expand_as(logp)
        tokens = objectives.Tokens.of(logp, old, advantages, tree.mask)
        losses = objectives.surrogate(region, tokens, logp).loss
        loss = tree.probs @ torch.where(tree.mask, losses, 0.0).sum(1)
        (gradient,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(-gradient.flatten(), tree.true_gradient(rewards))


def test_mistakes_are_named():
    policy = SoftmaxPolicy.from_probs([0.5, 0.5])
    rewards = torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="exchangeable=True"):
        expected_gradient(plain, policy, rewards, n=17)
    with pytest.raises(ValueError, match="one value per outcome"):
        expected_gradient(plain, policy, torch.zeros(3), n=2)
