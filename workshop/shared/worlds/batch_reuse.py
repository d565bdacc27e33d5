"""One batch, many updates: how far a policy walks away from the policy that sampled.

A single softmax state. `reuse_batches` takes every update as the exact expectation over π_old, so
that nothing but the trust region differs between two curves; `reuse_sampled` draws finite batches.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.objectives import Region, Tokens, weigh

__all__ = ["rare_token_world", "reuse_batches", "reuse_sampled"]


@dataclass(frozen=True, eq=False)
class ReuseRun:
    """Probabilities before the first batch and after each, with what was masked on the way.

    `probs` (batches + 1, K). `masked` (batches, K): share of the updates in which a token with
    an advantage got no gradient.
    """

    probs: Float[Tensor, "B1 K"]
    masked: Float[Tensor, "B K"]

    @property
    def entropy(self) -> Float[Tensor, " B1"]:
        """In nats, after each batch."""
        return torch.special.entr(self.probs).sum(-1)

    def batches_until(self, token: int, prob: float = 0.5) -> int | None:
        """Batches until the token's probability exceeds `prob`; None if it never does."""
        reached = (self.probs[:, token] > prob).nonzero()
        return int(reached[0]) if len(reached) else None


def rare_token_world(
    rare: float, dominant: float = 0.9, tokens: int = 10
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Probabilities and rewards: token 0 rare and good (.9), token 1 dominant, all others .3.

    Every token but the rare one earns the same. If the dominant token were the second best it
    would starve the rare one under any method, and clipping would have nothing to do with it.
    """
    others = tokens - 2
    rest = (1 - rare - dominant) / others
    if rest <= 0:
        raise ValueError(f"rare {rare} + dominant {dominant} leave nothing for other tokens")
    probs = torch.tensor([rare, dominant, *others * [rest]], dtype=torch.float64)
    rewards = torch.full_like(probs, 0.3)
    rewards[0] = 0.9
    return probs, rewards


def reuse_batches(
    probs: Float[Tensor, " K"],
    rewards: Float[Tensor, " K"],
    trust_region: Region,
    batches: int,
    updates: int = 16,
    lr: float = 0.1,
    natural: bool = True,
) -> ReuseRun:
    """Train a softmax by `updates` exact steps on each batch before π_old is refreshed.

    gradient_a = π_old(a) w_a A_a - π(a) Σ_b π_old(b) w_b A_b,  A = r - E_old[r]

    where w is the weight that `trust_region` gives a token. `natural` follows the natural gradient
    π_old w A / π instead: a logit then moves by lr · w A / ρ whatever the token's probability,
    while plain SGD makes rare tokens crawl for a reason that is not clipping.
    Chapters 03, 08, 09.
    """
    logits = probs.double().log()
    history, masked = [logits.softmax(-1)], []
    for _ in range(batches):
        old = history[-1]
        advantage = rewards - old @ rewards
        blocked = torch.zeros_like(old)
        for _ in range(updates):
            p = logits.softmax(-1)
            w = _weight(trust_region, p, old, advantage)
            pull = old * w * advantage
            logits = logits + lr * (pull / p if natural else pull - p * pull.sum())
            blocked += (w == 0) & (advantage != 0)
        history.append(logits.softmax(-1))
        masked.append(blocked / updates)
    return ReuseRun(torch.stack(history), torch.stack(masked))


def reuse_sampled(
    probs: Float[Tensor, " K"],
    solve_rates: Float[Tensor, " K"],
    trust_region: Region,
    batches: int,
    samples: int,
    updates: int,
    lr: float,
    runs: int = 40,
    seed: int = 0,
) -> Float[Tensor, "B1 R K"]:
    """The same with a finite batch: plain SGD on logits, `runs` independent runs side by side.

    Arm a pays 1 with probability `solve_rates[a]`, else 0; the advantage is the reward minus the
    batch mean. Returns the probabilities before the first batch and after each.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = probs.double().log().expand(runs, -1)
    history = [logits.softmax(-1)]
    for _ in range(batches):
        old = history[-1]
        arms = torch.multinomial(old, samples, replacement=True, generator=generator)
        draws = torch.rand(runs, samples, generator=generator, dtype=torch.float64)
        rewards = (draws < solve_rates.double()[arms]).double()
        advantage = rewards - rewards.mean(1, keepdim=True)
        prob_old = old.gather(1, arms)
        for _ in range(updates):
            p = logits.softmax(-1)
            prob = p.gather(1, arms)
            pull = _weight(trust_region, prob, prob_old, advantage) * advantage / samples
            step = torch.zeros_like(p).scatter_add(1, arms, pull)
            logits = logits + lr * (step - p * pull.sum(1, keepdim=True))
        history.append(logits.softmax(-1))
    return torch.stack(history)


def _weight(trust_region: Region, prob: Tensor, prob_old: Tensor, advantage: Tensor) -> Tensor:
    return weigh(trust_region, Tokens.of(prob.log(), prob_old.log(), advantage)).weight
