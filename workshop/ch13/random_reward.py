"""A coin as reward and a clip on the ratio: which way does nothing push?

Two answers and one logit. A batch is sampled once and used for several updates, each on answers of
its own; every answer gets an advantage of ±1 by a fair coin. Without a clip the expected gradient
of each update is exactly zero. What is left is what the clip does.
"""

from itertools import product
from math import factorial

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy
from rlbook.objectives import RatioClip, Region, Tokens, weigh


def clipping_bias(
    policy: EnumerablePolicy, old: Float[Tensor, " K"], low: float = 0.2, high: float = 0.2
) -> Float[Tensor, " D"]:
    """Expected gradient of PPO's clipped objective when every advantage is a coin, ±1.

    ½ Σ_y π(y) ∇ log π(y) · (1[ρ < 1 − ε_low] − 1[ρ > 1 + ε_high]),   ρ = π/π_old

    Above the window a head loses its gradient and a tail keeps it: the answer is pushed down; below
    the window up. So the push leads back towards π_old, and inside the window there is none.
    Source: arXiv:2506.10947, section 4 (its general factor is P(A > 0) E[A | A > 0]). Chapter 13.
    """
    ratio = policy.probs / old
    push = (ratio < 1 - low).double() - (ratio > 1 + high).double()
    return 0.5 * (policy.probs * push) @ policy.scores


def window(p: float, low: float = 0.2, high: float = 0.2) -> tuple[float, float]:
    """How far the logit of p can move down and up before one of the two answers is clipped.

    The smaller distance belongs to the side on which pushes back are met first. Infinite where an
    edge cannot be reached: (1 + ε) p > 1.
    """
    down = [(1 - low) * p, 1 - (1 + high) * (1 - p)]
    up = [(1 + high) * p, 1 - (1 - low) * (1 - p)]
    start = logit(p)
    return start - max(map(logit, down)), min(map(logit, up)) - start


def logit(p: float) -> float:
    clamped = torch.tensor(p, dtype=torch.float64).clamp(0, 1)
    return clamped.logit().item()


def one_batch(
    p: float, trust_region: Region, updates: int, answers: int, lr: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """The logit after all updates of one batch, over everything that can happen, and its chances.

    `answers` per update; S = C(answers + 3, 3)^updates ways for answers and coins to fall.
    """
    start = torch.tensor(logit(p), dtype=torch.float64)
    counts, chances = outcomes(p, answers)
    logits, weights = start[None], torch.ones(1, dtype=torch.float64)
    for _ in range(updates):
        pushes = token_gradients(logits, start, trust_region) @ counts.T / answers
        logits = (logits[:, None] + lr * pushes).flatten()
        weights = (weights[:, None] * chances).flatten()
    return logits, weights


def many_batches(
    p: float,
    trust_region: Region,
    batches: int,
    updates: int = 8,
    answers: int = 128,
    lr: float = 4.0,
    runs: int = 400,
    seed: int = 0,
) -> Float[Tensor, "B1 R"]:
    """p before the first batch and after each, in independent runs with sampled coins."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((runs,), logit(p), dtype=torch.float64)
    history = [logits.sigmoid()]
    for _ in range(batches):
        start = logits
        for _ in range(updates):
            first = torch.binomial(torch.full_like(start, answers), start.sigmoid(), generator)
            heads = [
                torch.binomial(k, torch.full_like(k, 0.5), generator)
                for k in (first, answers - first)
            ]
            counts = torch.stack(
                [heads[0], first - heads[0], heads[1], answers - first - heads[1]], dim=-1
            )
            pushes = (token_gradients(logits, start, trust_region) * counts).sum(-1) / answers
            logits = logits + lr * pushes
        history.append(logits.sigmoid())
    return torch.stack(history)


def token_gradients(
    logits: Float[Tensor, " S"], start: Float[Tensor, "..."], trust_region: Region
) -> Float[Tensor, "S 4"]:
    """Gradient that an answer adds: the first with a head and a tail, the second with either."""
    p, old = logits.sigmoid(), start.sigmoid().expand_as(logits)
    columns = []
    for prob, before, score in ((p, old, 1 - p), (1 - p, 1 - old, -p)):
        for coin in (1.0, -1.0):
            advantage = torch.full_like(prob, coin)
            weight = weigh(trust_region, Tokens.of(prob.log(), before.log(), advantage)).weight
            columns.append(weight * advantage * score)
    return torch.stack(columns, dim=-1)


def outcomes(p: float, answers: int) -> tuple[Float[Tensor, "M 4"], Float[Tensor, " M"]]:
    """Counts of (first, head), (first, tail), (second, head), (second, tail), and their chances."""
    counts = torch.tensor(
        [c for c in product(range(answers + 1), repeat=4) if sum(c) == answers],
        dtype=torch.float64,
    )
    ways = [
        factorial(answers) / torch.tensor([factorial(int(k)) for k in row]).prod().item()
        for row in counts
    ]
    each = torch.tensor([p, p, 1 - p, 1 - p], dtype=torch.float64) / 2
    return counts, torch.tensor(ways, dtype=torch.float64) * (each**counts).prod(-1)


LOG_SYMMETRIC = RatioClip(0.2, 0.25)  # log 1.25 = −log 0.8
