"""What a vote teaches a softmax over a few answers, exactly: every group is enumerated.

A prompt has A possible answers with one logit each, and the policy is trained on groups of n. Only
the counts of a group matter, so an expectation is a sum over the ways to count to n.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

# What each answer earns in a group with these counts (M, A) under a policy with these probs (A,).
CountReward = Callable[[Tensor, Tensor], Tensor]


def vote(counts: Float[Tensor, "M A"], probs: Float[Tensor, " A"]) -> Float[Tensor, "M A"]:
    """1 for the most common answer; equally common ones earn it in turn, whoever comes first."""
    winners = (counts == counts.amax(-1, keepdim=True)).double()
    return winners / winners.sum(-1, keepdim=True)


def agreement(counts: Float[Tensor, "M A"], probs: Float[Tensor, " A"]) -> Float[Tensor, "M A"]:
    """The share of the group that gives the answer."""
    return counts / counts.sum(-1, keepdim=True)


def sureness(counts: Float[Tensor, "M A"], probs: Float[Tensor, " A"]) -> Float[Tensor, "M A"]:
    """The log-probability of the answer, whatever the group says."""
    return probs.log().expand(counts.shape)


def truth(
    counts: Float[Tensor, "M A"], probs: Float[Tensor, " A"], right: int = 0
) -> Float[Tensor, "M A"]:
    """1 for the right answer: a verifier."""
    return torch.eye(counts.shape[-1], dtype=torch.float64)[right].expand(counts.shape)


def expected_update(probs: Float[Tensor, " A"], n: int, reward: CountReward) -> Float[Tensor, " A"]:
    """E[1/n Σ_i (r_i − r̄) ∇ log π(y_i)] over all groups of n, with respect to the logits.

    Given counts c, the sum is c_a/n · (r_a − r̄) for answer a, because the advantages of a group add
    up to nothing. A leave-one-out baseline gives n/(n − 1) of it. Chapter 13.
    """
    counts = compositions(n, len(probs)).double()
    earned, shares = reward(counts, probs), counts / n
    mean = (shares * earned).sum(-1, keepdim=True)
    return count_probs(probs, n) @ (shares * (earned - mean))


def expected_reward(probs: Float[Tensor, " A"], n: int, reward: CountReward) -> Float[Tensor, ""]:
    """The mean reward of a group of n: what the run's own reward curve shows."""
    counts = compositions(n, len(probs)).double()
    return count_probs(probs, n) @ (counts / n * reward(counts, probs)).sum(-1)


def election(probs: Float[Tensor, " A"], n: int) -> Float[Tensor, " A"]:
    """Chance of each answer to become the label of a group of n."""
    return count_probs(probs, n) @ vote(compositions(n, len(probs)), probs)


def ascend(
    probs: Float[Tensor, " A"], n: int, reward: CountReward, steps: int, lr: float = 1.0
) -> Float[Tensor, "S A"]:
    """Probabilities before each of `steps` expected updates and after the last one."""
    logits = probs.double().log()
    path = [logits.softmax(-1)]
    for _ in range(steps):
        logits = logits + lr * expected_update(path[-1], n, reward)
        path.append(logits.softmax(-1))
    return torch.stack(path)


def verifier(right: int = 0) -> CountReward:
    """A verifier whose right answer is another one than the first."""
    return partial(truth, right=right)


@cache
def compositions(n: int, answers: int) -> Int[Tensor, "M A"]:
    """All ways to count a group of n: C(n + A − 1, A − 1) rows that add up to n."""
    if answers == 1:
        return torch.tensor([[n]])
    rows = [
        torch.cat([torch.full((len(rest), 1), first), rest], dim=1)
        for first in range(n, -1, -1)
        for rest in [compositions(n - first, answers - 1)]
    ]
    return torch.cat(rows)


def count_probs(probs: Float[Tensor, " A"], n: int) -> Float[Tensor, " M"]:
    """Multinomial probability of each row of `compositions`."""
    counts = compositions(n, len(probs)).double()
    ways = torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64))
    ways = ways - torch.lgamma(counts + 1).sum(-1)
    return (ways + torch.special.xlogy(counts, probs.double()).sum(-1)).exp()
