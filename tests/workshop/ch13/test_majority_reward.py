"""What votes teach, against the reward functions themselves on every group there is."""

from itertools import product
from math import comb

import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from rlbook.objectives import group_center
from rlbook.rewards import confidence, majority_vote, semantic_agreement
from rlbook.tasks import Problem
from rlbook.training import Rollout
from workshop.ch13.majority_reward import (
    agreement,
    ascend,
    compositions,
    count_probs,
    election,
    expected_reward,
    expected_update,
    sureness,
    verifier,
    vote,
)

PROBS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
RIGHT_AHEAD = torch.tensor([0.4, 0.15, 0.15, 0.15, 0.15], dtype=torch.float64)
WRONG_AHEAD = torch.tensor([0.25, 0.45, 0.1, 0.1, 0.1], dtype=torch.float64)


def rollout(answer: int) -> Rollout:
    logp = PROBS[answer].log().item()
    fields = {"prompt_ids": [1], "token_ids": [3], "logps": [logp], "versions": [0]}
    problem = Problem("p", "?", "0")
    return Rollout(
        problem, 0, finish_reason="stop", text="", answer=str(answer), correct=answer == 0, **fields
    )


def by_every_group(reward, n=4):
    """Expected update and expected reward, group by group, through the package's own functions."""
    policy = SoftmaxPolicy.from_probs(PROBS)
    update, earned = torch.zeros(3, dtype=torch.float64), 0.0
    for answers in product(range(3), repeat=n):
        (given,) = reward([rollout(a) for a in answers]).values()
        rewards = torch.tensor(given, dtype=torch.float64)
        advantages = group_center(rewards, torch.zeros(n, dtype=torch.long))
        chance = PROBS[list(answers)].prod()
        update += chance * (advantages[:, None] * policy.scores[list(answers)]).mean(0)
        earned += chance * rewards.mean()
    return update, earned


def judged(rollouts):
    return {"answer": [float(r.correct) for r in rollouts]}


@pytest.mark.parametrize(
    ("counted", "reward"),
    [
        (vote, majority_vote),
        (agreement, semantic_agreement),
        (sureness, confidence),
        (verifier(), judged),
    ],
)
def test_counting_groups_is_as_good_as_listing_them(counted, reward):
    update, earned = by_every_group(reward)
    torch.testing.assert_close(expected_update(PROBS, 4, counted), update, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(expected_reward(PROBS, 4, counted), earned, atol=1e-7, rtol=1e-6)


def test_counts_are_all_there_and_their_chances_add_up():
    counts = compositions(6, 4)
    assert len(counts) == comb(9, 3) == len(set(map(tuple, counts.tolist())))
    assert (counts.sum(1) == 6).all()
    probs = torch.tensor([0.7, 0.1, 0.2, 0.0], dtype=torch.float64)
    assert count_probs(probs, 6).sum().item() == pytest.approx(1)


def test_a_verifier_gives_the_gradient_of_the_solve_rate():
    n, policy = 5, SoftmaxPolicy.from_probs(PROBS)
    gradient = policy.true_gradient(torch.tensor([1.0, 0, 0], dtype=torch.float64))
    expected = (n - 1) / n * gradient
    torch.testing.assert_close(expected_update(PROBS, n, verifier()), expected)


def test_sureness_descends_the_entropy_and_agreement_climbs_the_sum_of_squares():
    """The factors are those of a group's mean, taken away from its own members."""
    n, logits = 6, PROBS.log().requires_grad_()
    p = logits.softmax(-1)
    (downhill,) = torch.autograd.grad(-torch.special.entr(p).sum(), logits, retain_graph=True)
    torch.testing.assert_close(expected_update(PROBS, n, sureness), (n - 1) / n * downhill)
    (squares,) = torch.autograd.grad(p.square().sum() / 2, logits)
    factor = (n - 1) * (n - 2) / n**2
    torch.testing.assert_close(expected_update(PROBS, n, agreement), factor * squares)


@pytest.mark.parametrize("n", [3, 15, 63])
def test_an_election_between_two_is_a_binomial_tail(n):
    for p in (0.2, 0.5, 0.55):
        two = torch.tensor([p, 1 - p], dtype=torch.float64)
        tail = sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n // 2 + 1, n + 1))
        assert election(two, n)[0].item() == pytest.approx(tail)


@pytest.mark.parametrize("reward", [vote, agreement, sureness])
def test_the_favourite_wins_whether_it_is_right_or_not(reward):
    for start, winner in ((RIGHT_AHEAD, 0), (WRONG_AHEAD, 1)):
        end = ascend(start, 8, reward, steps=400)[-1]
        assert end[winner] > 0.95 and end.argmax() == winner


@pytest.mark.parametrize("start", [RIGHT_AHEAD, WRONG_AHEAD])
def test_a_verifier_finds_the_right_answer_from_either_start(start):
    assert ascend(start, 8, verifier(), steps=400)[-1][0] > 0.95


@pytest.mark.parametrize("reward", [vote, agreement, sureness])
def test_a_tie_stands_still(reward):
    even = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert expected_update(even, 5, reward).abs().max() < 1e-12
