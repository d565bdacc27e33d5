"""Credit by enumeration, against sums over answers, automatic differentiation and sampling."""

import numpy as np
import pytest
import torch

from rlbook.exact import TokenTree
from workshop.ch15.step_credit import (
    ChoiceTree,
    credit_moments,
    exact_credit,
    prefix_values,
    vine_moments,
)


@pytest.fixture(params=["tokens", "choices"])
def world(request):
    """A random policy and the rewards of its answers."""
    generator = torch.Generator().manual_seed(4)
    if request.param == "tokens":
        tree = TokenTree.random(2, 3, seed=1)
    else:
        tree = ChoiceTree(torch.randn(7, generator=generator, dtype=torch.float64))
    rewards = (torch.rand(len(tree.probs), generator=generator) < 0.4).double()
    return tree, rewards


def test_steps_have_the_probabilities_they_were_given():
    tree = ChoiceTree.of_steps(0.2, 0.7, 0.6)
    assert tree.length == 3
    torch.testing.assert_close(tree.probs @ tree.all_right, torch.tensor(0.2 * 0.7 * 0.6).double())
    wrong = (1 - tree.tokens[:, 0]).double()
    torch.testing.assert_close(tree.probs @ wrong, torch.tensor(0.8).double())


def test_a_choice_is_read_at_its_own_prefix():
    """Moving the logit of one prefix changes the answers that pass through it, and no others."""
    tree = ChoiceTree(torch.zeros(7))
    for row, prefix in enumerate([(), (1,), (0,), (1, 1), (1, 0), (0, 1), (0, 0)]):
        moved = tree.moved(torch.eye(7, dtype=torch.float64)[row]).probs != tree.probs
        through = torch.tensor([tuple(y[: len(prefix)]) == prefix for y in tree.tokens.tolist()])
        assert torch.equal(moved, through)


def test_values_are_means_over_the_answers_that_begin_so(world):
    tree, rewards = world
    values, lengths = prefix_values(tree, rewards), tree.mask.sum(1)
    for row in range(len(rewards)):
        for t in range(values.shape[1]):
            if t >= lengths[row]:
                assert values[row, t] == rewards[row]
                continue
            same = (tree.tokens[:, :t] == tree.tokens[row, :t]).all(1) & (lengths >= t)
            if t:  # an answer that has ended is not the beginning of another
                same &= lengths > t - 1
            mean = (tree.probs * rewards)[same].sum() / tree.probs[same].sum()
            torch.testing.assert_close(values[row, t], mean)


def test_credit_sums_to_the_surprise(world):
    tree, rewards = world
    surprise = rewards - tree.expected_reward(rewards)
    torch.testing.assert_close(exact_credit(tree, rewards).sum(1), surprise)


def test_outcome_baseline_and_exact_credit_have_the_true_gradient(world):
    tree, rewards = world
    values, true = prefix_values(tree, rewards), tree.true_gradient(rewards)
    outcome = rewards[:, None].expand(tree.tokens.shape)
    for credit in (outcome, rewards[:, None] - values[:, :-1], exact_credit(tree, rewards)):
        torch.testing.assert_close(credit_moments(tree, credit).mean, true)
    exact = credit_moments(tree, exact_credit(tree, rewards))
    assert exact.noise < credit_moments(tree, outcome).noise


def test_vine_moments_against_sampled_values(world):
    """Binomial values at every state of every answer, 40,000 draws; five standard errors."""
    tree, rewards = world
    k, draws, rng = 2, 40_000, np.random.default_rng(0)
    values = prefix_values(tree, rewards).numpy()
    scores = torch.func.jacrev(tree.token_log_probs)(tree.logits).flatten(2).numpy()
    rows = rng.choice(len(rewards), draws, p=tree.probs.numpy() / tree.probs.numpy().sum())
    mask = tree.mask.numpy()
    estimates = rng.binomial(k, values[rows].clip(0, 1)) / k
    ended = np.concatenate([~mask, np.ones((len(mask), 1), dtype=bool)], axis=1)
    estimates = np.where(ended[rows], rewards.numpy()[rows, None], estimates)
    credit = np.diff(estimates, axis=1) * mask[rows]
    gradients = np.einsum("kt,ktd->kd", credit, scores[rows])
    exact = vine_moments(tree, rewards, k)
    error = gradients.mean(0) - exact.mean.numpy()
    assert (abs(error) < 5 * np.sqrt(exact.variance.numpy() / draws) + 1e-12).all()
    assert gradients.var(0).sum() == pytest.approx(float(exact.variance.sum()), rel=0.05)


def test_vine_becomes_exact_with_many_answers(world):
    tree, rewards = world
    exact = credit_moments(tree, exact_credit(tree, rewards))
    many = vine_moments(tree, rewards, 10**9)
    torch.testing.assert_close(many.variance, exact.variance, atol=1e-7, rtol=1e-6)
