"""A sampler that is not quite the policy: where does a mask belong, and where the weight?

Independent softmax bandits whose answers are drawn by a noisy copy of the policy. Two quantities
of a trust region compare with "the old policy": its mask, and the importance weight of what it
keeps. Each may be held to the sampler μ, or to π_old, the policy that the trainer had. Chapter 11.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.objectives import Region, Tokens, weigh

Anchor = Literal["sampler", "trainer"]
RIGHT, WRONG = 0.7, 0.3  # how often the best arm and every other one is rewarded


@dataclass(frozen=True, eq=False)
class BanditRun:
    """What independent runs came to: the probability of the best arm, and three diagnoses.

    `best` (runs,). `correlation` of μ and π_old over the samples of the last tenth of the batches;
    `masked`, the share of samples with an advantage that the trust region silences before the
    first update of a batch; `fell`, the share with Â < 0 that end a batch more than ½ below μ.
    """

    best: Float[Tensor, " R"]
    correlation: float
    masked: float
    fell: float


def mismatch_bandit(
    trust_region: Region,
    lr: float,
    mask_at: Anchor = "sampler",
    weight_at: Anchor = "sampler",
    noise: float = 0.3,
    lasting: bool = False,
    runs: int = 10,
    contexts: int = 16,
    arms: int = 20,
    samples: int = 8,
    updates: int = 16,
    batches: int = 60,
    seed: int = 0,
) -> BanditRun:
    """Train softmax bandits by `updates` steps of plain SGD on each batch of a noisy sampler.

    log μ = log softmax(θ + noise · |θ| · ξ): like rounding, the error grows with the logits. ξ is
    drawn once (`lasting`) or for every batch. A context offers `arms`, one of which is right more
    often; `samples` are drawn from μ and compared with their own mean. The trust region sees the
    policy of `mask_at` as the old one; where `weight_at` is the other one, its weight is multiplied
    by π_old/μ or μ/π_old. With weight_at="sampler" it is π_θ/μ, which is unbiased.
    """
    draw = torch.Generator().manual_seed(seed)
    size = (runs, contexts, arms)
    theta = torch.zeros(size, dtype=torch.float64)
    solve = torch.full((contexts, arms), WRONG, dtype=torch.float64)
    right = torch.randint(0, arms, (contexts,), generator=draw)
    solve[torch.arange(contexts), right] = RIGHT
    xi = torch.randn(size, generator=draw, dtype=torch.float64)
    correlation, masked, fell = [], [], []
    for _ in range(batches):
        if not lasting:
            xi = torch.randn(size, generator=draw, dtype=torch.float64)
        log_mu = (theta + noise * theta.abs() * xi).log_softmax(-1)
        drawn = torch.multinomial(
            log_mu.exp().view(-1, arms), samples, replacement=True, generator=draw
        ).view(runs, contexts, samples)
        chance = solve.expand(size).gather(-1, drawn)
        rewards = (torch.rand(chance.shape, generator=draw, dtype=torch.float64) < chance).double()
        advantage = rewards - rewards.mean(-1, keepdim=True)
        mu, old = log_mu.gather(-1, drawn), theta.log_softmax(-1).gather(-1, drawn)
        anchor = mu if mask_at == "sampler" else old
        correction = (anchor - (mu if weight_at == "sampler" else old)).exp()
        for update in range(updates):
            log_p = theta.log_softmax(-1)
            logp = log_p.gather(-1, drawn)
            weights = weigh(trust_region, Tokens.of(logp, anchor, advantage))
            if update == 0:
                masked.append((~weights.keep)[advantage != 0].double().mean().item())
            pull = weights.weight * correction * advantage / samples
            step = torch.zeros_like(theta).scatter_add(-1, drawn, pull)
            theta = theta + lr * (step - log_p.exp() * pull.sum(-1, keepdim=True))
            theta = theta.clamp(-30, 30)  # a run that has collapsed stays a number
        lost = mu.exp() - theta.softmax(-1).gather(-1, drawn)
        fell.append(((advantage < 0) & (lost > 0.5)).double().mean().item())
        correlation.append(torch.corrcoef(torch.stack([mu, old]).exp().view(2, -1))[0, 1].item())
    best = theta.softmax(-1)[:, torch.arange(contexts), right].mean(-1)
    last = slice(-max(1, batches // 10), None)
    return BanditRun(best, *(sum(x[last]) / len(x[last]) for x in (correlation, masked, fell)))
