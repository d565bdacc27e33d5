"""Expected gradients by enumeration of every possible batch, against what the papers claim.

A softmax policy over three answers: N samples have 3^N outcomes, so the expectation of an
estimator is a finite sum. The right-hand sides are closed forms, differentiated by autograd or
by hand; none of them uses the code under test.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from math import comb, sqrt

import pytest
import torch

from rlbook.objectives import (
    FIELD,
    METHODS,
    EMABaseline,
    KLPenalty,
    Method,
    NoTrustRegion,
    batch_mean_baseline,
    greedy_baseline,
    group_center,
    group_normalize,
    kl_estimate,
    kl_loss,
    leave_one_out,
    max_rl,
    no_baseline,
    policy_loss,
    token_ratio,
    token_rewards,
)

LOGITS = torch.tensor([0.3, -0.8, 0.1], dtype=torch.float64)
REWARD = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
OTHER = torch.tensor([-0.2, 0.5, 0.4], dtype=torch.float64)
EXACT = {"rtol": 0, "atol": 1e-13}


def log_softmax(logits):
    return torch.log_softmax(logits, -1)


def gradient(function, logits=LOGITS):
    """Gradient of a scalar function of the logits."""
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def solve_rate(logits):
    return (log_softmax(logits).exp() * REWARD).sum()


def expected_gradient(estimator, n, reward=REWARD, method=METHODS["reinforce"]):
    """E[−∇ policy_loss] over all batches of n answers to one prompt, by autograd."""
    logits = LOGITS.clone().requires_grad_()
    total = 0.0
    mask, groups = torch.ones(n, 1, dtype=torch.bool), torch.zeros(n, dtype=torch.long)
    for outcome in product(range(3), repeat=n):
        logp = log_softmax(logits)[list(outcome)][:, None]
        advantages = estimator(reward[list(outcome)], groups)
        loss = policy_loss(method, logp, logp.detach(), advantages, mask).loss
        total = total - logp.detach().sum().exp() * loss
    return torch.autograd.grad(total, logits)[0]


UNBIASED = {
    "no baseline": no_baseline,
    "moving average of earlier rewards": lambda r, g: EMABaseline(0.9, value=0.37)(r),
    "greedy completion": lambda r, g: greedy_baseline(r, torch.full_like(r, 1.0)),
    "leave one out": leave_one_out,
}


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", UNBIASED)
def test_baselines_that_do_not_contain_the_sample_are_unbiased(name, n):
    expected = gradient(solve_rate)
    torch.testing.assert_close(expected_gradient(UNBIASED[name], n), expected, **EXACT)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("estimator", [batch_mean_baseline, group_center])
def test_a_mean_that_contains_the_sample_shrinks_the_gradient(estimator, n):
    expected = (n - 1) / n * gradient(solve_rate)
    torch.testing.assert_close(expected_gradient(estimator, n), expected, **EXACT)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_leave_one_out_is_unbiased_for_graded_rewards(n):
    reward = torch.tensor([2.0, -1.0, 0.25], dtype=torch.float64)
    expected = gradient(lambda logits: (log_softmax(logits).exp() * reward).sum())
    torch.testing.assert_close(expected_gradient(leave_one_out, n, reward), expected, **EXACT)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize(
    "form, order", [("algorithm_1", -1), ("equation_9", 0), ("equation_10", 0)]
)
def test_max_rl_maximises_a_truncated_log_likelihood(form, order, n):
    """J^(T) = −Σ_{k≤T} (1−p)^k / k, with T = N−1 for the algorithm that is run."""

    def objective(logits):
        fail = 1 - solve_rate(logits)
        return -sum(fail**k / k for k in range(1, n + order + 1))

    ours = expected_gradient(partial(max_rl, form=form), n)
    torch.testing.assert_close(ours, gradient(objective), **EXACT)


def test_max_rl_with_two_samples_is_plain_reinforcement():
    ours = expected_gradient(max_rl, 2)
    torch.testing.assert_close(ours, gradient(solve_rate), **EXACT)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_grpo_scales_the_gradient_by_the_expected_inverse_spread(n):
    """Factor E_K[√(K(N−K))/N] / (p(1−p)); its limit for large N is 1/√(p(1−p))."""
    p = float(solve_rate(LOGITS))
    spread = sum(
        comb(n, k) * p**k * (1 - p) ** (n - k) * sqrt(k * (n - k)) / n for k in range(n + 1)
    )
    ours = expected_gradient(partial(group_normalize, ddof=0, eps=0), n)
    torch.testing.assert_close(ours, spread / (p * (1 - p)) * gradient(solve_rate), **EXACT)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_bernoulli_policies_in_closed_form(p, n):
    """One logit; Σ over the number of successes K of its probability times the group's update."""
    grad_p = p * (1 - p)

    def truncated(order):
        return grad_p * sum((1 - p) ** k for k in range(order))

    for estimator, expected in (
        (leave_one_out, grad_p),
        (max_rl, truncated(n - 1)),
        (partial(max_rl, form="equation_10"), truncated(n)),
    ):
        total = 0.0
        for k in range(n + 1):
            rewards = torch.cat([torch.ones(k), torch.zeros(n - k)]).double()
            advantages = estimator(rewards, torch.zeros(n, dtype=torch.long))
            score = rewards - p  # d log π / d logit
            weight = comb(n, k) * p**k * (1 - p) ** (n - k)
            total += weight * float((advantages * score).mean())
        assert total == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    "p, none, mean, greedy",
    [
        (0.1, 0.0729, 0.0576, 0.0729),
        (0.3, 0.1029, 0.0336, 0.1029),
        (0.7, 0.0189, 0.0336, 0.1029),
        (0.9, 0.0009, 0.0576, 0.0729),
    ],
)
def test_variance_of_three_baselines(p, none, mean, greedy):
    """One bit, R = a: gradient (R − b)(a − p). The mean is not always better than nothing."""
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    score, probability = rewards - p, torch.tensor([p, 1 - p], dtype=torch.float64)
    advantages = {
        none: no_baseline(rewards),
        mean: EMABaseline(value=p)(rewards),
        greedy: greedy_baseline(rewards, torch.full_like(rewards, float(p > 0.5))),
    }
    for variance, advantage in advantages.items():
        g = advantage * score
        exact = (probability * g**2).sum() - (probability * g).sum() ** 2
        assert float(exact) == pytest.approx(variance, abs=5e-5)


# A policy over sequences: at each of three steps stop or go on, one logit per step and choice.
STEP_LOGITS = torch.tensor([[0.2, -0.1, 0.4], [0.6, 0.1, -0.3]], dtype=torch.float64)
SEQUENCES = [(1,), (0, 1), (0, 0, 1), (0, 0, 0)]  # 1 stops
SEQUENCE_REWARD = torch.tensor([0.2, 1.0, -0.5, 0.7], dtype=torch.float64)


def sequence_logps(step_logits):
    """(4, 3) token log-probs and mask of all four sequences; 0 after the end."""
    steps = torch.log_softmax(step_logits, 0)
    rows = [[steps[token, t] for t, token in enumerate(seq)] for seq in SEQUENCES]
    zero = torch.zeros((), dtype=torch.float64)
    logp = torch.stack([torch.stack([*row, *[zero] * (3 - len(row))]) for row in rows])
    mask = torch.arange(3) < torch.tensor([len(seq) for seq in SEQUENCES])[:, None]
    return logp, mask


def expected_reward(step_logits):
    logp, _ = sequence_logps(step_logits)
    return (logp.sum(1).exp() * SEQUENCE_REWARD).sum()


def expected_sequence_gradient(method, behaviour=STEP_LOGITS):
    """E over one sequence drawn from `behaviour` of −∇ policy_loss, reward as advantage."""
    logits = STEP_LOGITS.clone().requires_grad_()
    logp, mask = sequence_logps(logits)
    logp_old, _ = sequence_logps(behaviour)
    total = 0.0
    for i, probability in enumerate(logp_old.sum(1).exp()):
        row = slice(i, i + 1)
        loss = policy_loss(
            method, logp[row], logp_old[row], SEQUENCE_REWARD[row], mask[row],
            groups=torch.zeros(1, dtype=torch.long),
        )  # fmt: skip
        total = total - probability * loss.loss
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("name", sorted(METHODS | FIELD))
def test_on_policy_every_trust_region_is_the_policy_gradient(name):
    """At ratio 1 nothing is clipped or masked: with token sums every row gives ∇E[r]."""
    bare = {"kl": None, "selection": None, "sampler_correction": None, "likelihood": 0.0}
    method = replace((METHODS | FIELD)[name], aggregation="sequence_sum", **bare)
    expected = gradient(expected_reward, STEP_LOGITS)
    torch.testing.assert_close(expected_sequence_gradient(method), expected, **EXACT)


def test_dividing_by_the_length_changes_the_expected_gradient():
    method = replace(METHODS["reinforce"], aggregation="sequence_mean")
    ours, truth = expected_sequence_gradient(method), gradient(expected_reward, STEP_LOGITS)
    assert (ours - truth).abs().max() > 0.01


def test_ratio_of_whole_completions_corrects_off_policy_samples():
    """E_{y∼μ}[∇(ρ(y) r)] = ∇E_π[r]: one action per sequence, no trust region."""
    behaviour = STEP_LOGITS + torch.tensor([[0.5, -0.4, 0.2], [0.0, 0.3, 0.1]]).double()
    one_action = Method("test", "none", no_baseline, "token", NoTrustRegion(), "sequence_sum")
    logits = STEP_LOGITS.clone().requires_grad_()
    logp, _ = sequence_logps(logits)
    logp, logp_old = logp.sum(1, keepdim=True), sequence_logps(behaviour)[0].sum(1, keepdim=True)
    total = 0.0
    for i, probability in enumerate(logp_old.exp().flatten()):
        row, mask = slice(i, i + 1), torch.ones(1, 1, dtype=torch.bool)
        loss = policy_loss(one_action, logp[row], logp_old[row], SEQUENCE_REWARD[row], mask)
        total = total - probability * loss.loss
    ours = torch.autograd.grad(total, logits)[0]
    torch.testing.assert_close(ours, gradient(expected_reward, STEP_LOGITS), **EXACT)


# KL: values and gradients on the three-answer policy.


def reverse_kl(logits):
    logp, ref = log_softmax(logits), log_softmax(OTHER)
    return (logp.exp() * (logp - ref)).sum()


def forward_kl(logits):
    logp, ref = log_softmax(logits), log_softmax(OTHER)
    return (ref.exp() * (ref - logp)).sum()


def test_values_of_the_kl_estimators():
    logp, ref = log_softmax(LOGITS), log_softmax(OTHER)
    mean = {k: (logp.exp() * kl_estimate(logp, ref, k)).sum() for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(mean["k1"], reverse_kl(LOGITS), **EXACT)
    torch.testing.assert_close(mean["k3"], reverse_kl(LOGITS), **EXACT)
    assert abs(mean["k2"] - reverse_kl(LOGITS)) > 1e-3
    assert (kl_estimate(logp, ref, "k3") >= 0).all()


@pytest.mark.parametrize(
    "kind, mode, target",
    [
        ("k1", "naive", lambda logits: 0 * logits.sum()),
        ("k2", "naive", reverse_kl),
        ("k3", "naive", forward_kl),
        ("k1", "k2", reverse_kl),
        ("k2", "k2", reverse_kl),
        ("k3", "k2", reverse_kl),
        ("k1", "score", reverse_kl),
        ("k3", "score", reverse_kl),
    ],
)
def test_gradients_of_the_kl_losses_on_policy(kind, mode, target):
    def objective(logits):
        logp = log_softmax(logits)
        loss = kl_loss(logp, log_softmax(OTHER), kind, mode)
        torch.testing.assert_close(loss.detach(), kl_estimate(logp, log_softmax(OTHER), kind))
        return (logp.detach().exp() * loss).sum()

    torch.testing.assert_close(gradient(objective), gradient(target), **EXACT)


def test_a_cap_bounds_what_one_token_adds_and_not_the_pull_of_k2():
    far = torch.tensor([-200.0, 0.1], dtype=torch.float64, requires_grad=True)
    for mode, pull in (("k2", -200.0), ("naive", 0.0)):
        loss = kl_loss(far, torch.zeros_like(far), "k3", mode, cap=10.0)
        assert loss[0] == 10 and loss[1] == kl_estimate(far, torch.zeros_like(far))[1]
        assert torch.autograd.grad(loss.sum(), far)[0][0] == pull


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_score_form_is_right_off_policy(kind):
    behaviour = log_softmax(torch.tensor([0.9, 0.2, -0.6], dtype=torch.float64))

    def objective(logits):
        logp = log_softmax(logits)
        ratio = token_ratio(logp, behaviour)
        return (behaviour.exp() * kl_loss(logp, log_softmax(OTHER), kind, "score", ratio)).sum()

    torch.testing.assert_close(objective(LOGITS), reverse_kl(LOGITS), **EXACT)
    torch.testing.assert_close(gradient(objective), gradient(reverse_kl), **EXACT)


def test_schulmans_gaussians():
    """q = N(0,1), p = N(μ,1): bias and relative standard deviation of k1, k2, k3 by quadrature."""
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = (-x.square() / 2).exp() / sqrt(2 * torch.pi) * (x[1] - x[0])
    published = {0.1: (0, 20.0, 0.002, 1.42, 0, 1.42), 1.0: (0, 2.0, 0.25, 1.73, 0, 1.70)}
    for shift, numbers in published.items():
        true = shift**2 / 2
        found = []
        for kind in ("k1", "k2", "k3"):
            k = kl_estimate(-x.square() / 2, -(x - shift).square() / 2, kind)
            mean = float((density * k).sum())
            deviation = sqrt(float((density * (k - mean) ** 2).sum()))
            found += [(mean - true) / true, deviation / true]
        assert found == pytest.approx(numbers, abs=6e-3)


def test_kl_in_the_reward_maximises_reward_minus_kl():
    """RLOO with −β k1 in the reward: E[gradient] = ∇(E[r] − β KL(π ‖ π_ref))."""
    beta, n = 0.3, 3
    kl = KLPenalty("k1", beta, "reward")
    old, ref = log_softmax(LOGITS)[:, None], log_softmax(OTHER)[:, None]
    mask = torch.ones(3, 1, dtype=torch.bool)
    reward = token_rewards(REWARD, mask, kl, old, ref).sum(1)
    expected = gradient(lambda logits: solve_rate(logits) - beta * reverse_kl(logits))
    torch.testing.assert_close(expected_gradient(leave_one_out, n, reward), expected, **EXACT)
