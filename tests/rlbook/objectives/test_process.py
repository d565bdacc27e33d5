"""Credit for steps against values worked by hand and against enumeration."""

import pytest
import torch

from rlbook.exact import TokenTree
from rlbook.objectives import (
    compute_advantages,
)
from rlbook.objectives.process import (
    implicit_reward_loss,
    implicit_rewards,
    prime,
    step_gains,
    token_credit,
)


def test_gains_are_differences_of_values_and_sum_to_the_surprise():
    """Four tokens in three steps, then padding; worked by hand."""
    values = torch.tensor([[0.2, 0.5, 0.1, 0.0], [0.2, 0.6, 1.0, 1.0]])
    steps = torch.tensor([[0, 0, 1, 2, 0], [0, 1, 1, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).bool()
    expected = [[0.3, 0.3, -0.4, -0.1, 0.0], [0.4, 0.4, 0.4, 0.0, 0.0]]
    torch.testing.assert_close(step_gains(values, steps, mask), torch.tensor(expected))


def test_gains_name_the_step_without_a_value():
    mask = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="step 1 needs values"):
        step_gains(torch.tensor([[0.5, 1.0]]), torch.tensor([[0, 1]]), mask)


def test_token_credit_is_what_the_tokens_were_given():
    rewards, mask = torch.tensor([[0.5, -1.0, 9.0]]), torch.tensor([[True, True, False]])
    given = compute_advantages(token_credit, rewards=rewards, mask=mask, groups=None)
    assert given.tolist() == [[0.5, -1.0, 0.0]]


@pytest.fixture
def models():
    """Two random policies over the same 40 completions: the implicit model and its reference."""
    return (TokenTree.random(3, 3, seed) for seed in (1, 2))


def test_implicit_rewards_sum_to_the_log_ratio_of_the_answer(models):
    model, reference = models
    logps = (tree.token_log_probs(tree.logits) for tree in (model, reference))
    rewards = implicit_rewards(*logps, model.mask, beta=0.3)
    torch.testing.assert_close(rewards.sum(1), 0.3 * (model.logp - reference.logp))


def test_rewards_so_far_are_a_soft_mean_of_what_completions_earn(models):
    """Σ_{s≤t} r_s = β log E_ref[exp(r(y)/β) | y_≤t], by enumeration of every completion."""
    model, reference = models
    beta, rows = 0.3, range(len(model.sequences))
    logps = (tree.token_log_probs(tree.logits) for tree in (model, reference))
    so_far = implicit_rewards(*logps, model.mask, beta).cumsum(1)
    total = beta * (model.logp - reference.logp)
    for row in rows:
        for t in range(1, len(model.sequences[row]) + 1):
            prefix = model.sequences[row][:t]
            extends = torch.tensor([s[:t] == prefix for s in model.sequences])
            chances = reference.probs[extends] / reference.probs[extends].sum()
            soft = beta * (chances @ (total[extends] / beta).exp()).log()
            torch.testing.assert_close(so_far[row, t - 1], soft)


def test_loss_is_the_cross_entropy_of_the_outcome():
    rewards, outcomes = torch.tensor([[0.5, 0.5], [-1.0, -1.0]]), torch.tensor([1.0, 0.0])
    r = torch.tensor([1.0, -2.0])
    by_hand = -(r.sigmoid()[0].log() + (1 - r.sigmoid()[1]).log()) / 2
    torch.testing.assert_close(implicit_reward_loss(rewards, outcomes), by_hand)


def test_prime_by_hand():
    """Two answers of two tokens and one of one; the third's own group has nobody else."""
    rewards = torch.tensor([[0.2, -0.4], [0.6, 0.0], [0.7, 0.0]])
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    groups, outcomes = torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.0, 1.0])
    first = [(0.2 - 0.6) + (-0.4 - 0.6) + 1, (-0.4 - 0.6) + 1]
    second = [0.6 - (0.2 - 0.4) / 2 - 1, 0.0]
    expected = torch.tensor([first, second, [0.0, 0.0]])
    torch.testing.assert_close(prime(rewards, outcomes, groups, mask), expected)


def test_prime_discounts_what_comes_later():
    rewards, mask = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)
    a = prime(rewards, torch.zeros(2), torch.zeros(2, dtype=torch.long), mask, gamma=0.5)
    torch.testing.assert_close(a[0], torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(a[1], torch.tensor([-2.25, -1.5]))
