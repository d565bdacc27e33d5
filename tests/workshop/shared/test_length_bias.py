"""Drifts of the length against brute force over batches, closed forms and an earlier study."""

from dataclasses import replace
from itertools import product
from math import log, prod

import pytest
import torch

from rlbook.exact import TokenTree
from rlbook.objectives import METHODS, group_center, group_normalize, policy_loss
from workshop.shared.worlds.length_bias import (
    StopPolicy,
    enumerated_update,
    expected_update,
    follow,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
MODES = ("sequence_mean", "token_mean", "prompt_mean", "constant", "sequence_sum")


def row(mode: str, advantage=group_center):
    return replace(METHODS["dr_grpo"], advantage=advantage, aggregation=mode, constant=5.0)


def brute_force(mode: str, policy: StopPolicy, group_size: int, prompts: int):
    """−∇E[loss] over every *ordered* batch of several prompts."""
    logits = policy.logits.clone().requires_grad_()
    logp, groups = policy.token_log_probs(logits), torch.arange(prompts).repeat_interleave(2)
    total = 0.0
    for rows in map(list, product(range(len(policy.probs)), repeat=prompts * group_size)):
        advantages = group_center(policy.rewards[rows], groups)
        args = logp[rows], logp[rows], advantages, policy.mask[rows], groups
        chance = prod(policy.probs[rows].tolist())
        total = total + chance * policy_loss(row(mode), *args).loss
    return -torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("knows", [True, False])
def test_the_policy_is_a_distribution_with_the_lengths_it_says(knows):
    policy = StopPolicy.of(0.3, 0.2, max_tokens=4, knows=knows)
    assert policy.probs.sum().item() == pytest.approx(1)
    assert policy.probs[policy.right].sum().item() == pytest.approx(0.3)
    assert policy.lengths.tolist() == 2 * [1, 2, 3, 4, 4]
    assert policy.mask.sum(1).tolist() == policy.lengths.tolist()
    assert (policy.token_log_probs(policy.logits)[~policy.mask] == 0).all()
    right = torch.tensor([0.2, 0.16, 0.128, 0.1024, 0.4096]).double()  # stop at 1 … 4, cut off
    torch.testing.assert_close(policy.probs, torch.cat([0.3 * right, 0.7 * right]))
    assert policy.mean_length(True) == pytest.approx(0.2 + 2 * 0.16 + 3 * 0.128 + 4 * 0.512)


def test_the_mean_length_without_a_limit_is_one_over_the_stop_probability():
    policy = StopPolicy.of(0.5, 0.1, max_tokens=300)
    assert policy.mean_length(True) == pytest.approx(10)
    assert policy.moved(torch.tensor([0.0, 0.0, 1.0])).mean_length(True) == pytest.approx(10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("advantage", [group_center, group_normalize])
@pytest.mark.parametrize("knows", [True, False])
def test_counting_equals_going_through_all_groups(mode, advantage, knows):
    policy = StopPolicy.of(0.4, 0.3, max_tokens=3, knows=knows)
    rewards = policy.rewards * (policy.lengths > 1)  # a right answer needs two tokens
    settings = {"advantage": advantage, "group_size": 3, "constant": 5.0}
    counted = expected_update(policy, rewards, mode, **settings)
    enumerated = enumerated_update(row(mode, advantage), policy, rewards, 3)
    torch.testing.assert_close(counted, enumerated, **CLOSE)


@pytest.mark.parametrize("mode", ["token_mean", "prompt_mean"])  # the others see one completion
def test_counting_equals_brute_force_over_two_prompts(mode):
    policy = StopPolicy.of(0.4, 0.3, max_tokens=2)
    settings = {"group_size": 2, "prompts": 2, "constant": 5.0}
    counted = expected_update(policy, policy.rewards, mode, **settings)
    torch.testing.assert_close(counted, brute_force(mode, policy, 2, 2), **CLOSE)


def test_another_policy_with_lengths_works_too():
    tree = TokenTree.random(symbols=1, max_tokens=3)
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    counted = expected_update(tree, rewards, "token_mean", group_size=3)
    torch.testing.assert_close(
        counted, enumerated_update(row("token_mean"), tree, rewards, 3), **CLOSE
    )


@pytest.mark.parametrize("advantage", [group_center, group_normalize])
def test_a_constant_does_not_move_the_length(advantage):
    policy = StopPolicy.of(0.3, 0.2, max_tokens=20)
    update = expected_update(policy, policy.rewards, "constant", advantage, constant=20)
    assert update[1:].abs().max() < 1e-15
    assert update[0] > 0


@pytest.mark.parametrize("p, s, n", [(0.5, 0.1, 8), (0.1, 0.1, 8), (0.3, 0.25, 4)])
def test_the_mean_of_means_moves_it_as_the_closed_form_says(p, s, n):
    policy = StopPolicy.of(p, s, max_tokens=400)
    update = expected_update(policy, policy.rewards, "sequence_mean", group_size=n)
    kappa = -s * log(s) / (1 - s) - s  # E[1/L] − 1/E[L] of a geometric length
    expected = p * (1 - p) * (n - 1) / n * kappa
    assert update[1].item() == pytest.approx(expected, rel=1e-9)
    assert update[2].item() == pytest.approx(-expected, rel=1e-9)


@pytest.mark.parametrize(
    "mode, prompts, advantage, simulated, error",
    [
        ("sequence_mean", 16, group_center, 0.0342, 0.0003),
        ("sequence_mean", 16, group_normalize, 0.0680, 0.0005),
        ("prompt_mean", 16, group_center, 0.0028, 0.0003),
        ("prompt_mean", 16, group_normalize, 0.0053, 0.0005),
        ("token_mean", 1, group_center, 0.0028, 0.0003),
        ("token_mean", 16, group_center, 0.00015, 0.0001),
    ],
)
def test_drifts_that_were_once_simulated(mode, prompts, advantage, simulated, error):
    """Monte Carlo of an independent implementation: p = 0.5, stop 0.1, groups of 8."""
    policy = StopPolicy.of(0.5, 0.1, max_tokens=60)
    update = expected_update(policy, policy.rewards, mode, advantage, prompts=prompts)
    assert update[1].item() == pytest.approx(simulated, abs=error)


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_cannot_tell_does_not_drift(mode):
    policy = StopPolicy.of(0.3, 0.2, max_tokens=20, knows=False)
    assert expected_update(policy, policy.rewards, mode)[1].abs() < 1e-15


def test_the_mean_of_means_is_the_gradient_of_reward_per_token():
    policy = StopPolicy.of(0.3, 0.2, max_tokens=20)
    per_token = (policy.rewards - policy.p) / policy.lengths
    update = expected_update(policy, policy.rewards, "sequence_mean")
    torch.testing.assert_close(update, 7 / 8 * policy.true_gradient(per_token), **CLOSE)


def test_what_the_drift_becomes():
    policy = StopPolicy.of(0.5, 0.1, max_tokens=60)
    settings = {"updates": 20, "lr": 1.0}
    after = follow(policy, policy.rewards, "sequence_mean", **settings)[-1]
    assert after.mean_length(True) < 7 < 15 < after.mean_length(False)
    assert after.p == pytest.approx(0.5)
    same = follow(policy, policy.rewards, "constant", constant=10, **settings)[-1]
    assert same.mean_length(False) == pytest.approx(policy.mean_length(False))
    free = follow(policy, policy.rewards, "constant", hold_path=False, constant=10, **settings)
    assert free[-1].p > 0.55
    assert len(free) == 21


def test_only_rewards_of_0_and_1_can_be_counted():
    policy = StopPolicy.of(max_tokens=3)
    with pytest.raises(ValueError, match="0 or 1"):
        expected_update(policy, 2 * policy.rewards, "sequence_sum")
