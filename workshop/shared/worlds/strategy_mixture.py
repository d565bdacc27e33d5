"""A world with a choice of strategy, in which every solve rate and every gradient is a sum.

S strategies, P prompts, and one softmax over the strategies that all prompts *share*: the policy
cannot tell a hard prompt from an easy one before it has chosen how to work. What is good for one
prompt is then paid for by another, and pass@k can fall while pass@1 rises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.exact.estimators import Advantage
from rlbook.exact.policies import EnumerablePolicy

__all__ = [
    "StrategyMixture",
    "easy_and_hard",
    "estimator_weight",
    "likelihood_weight",
    "truncated_log_likelihood",
]

Weight = Callable[[Float[Tensor, " P"]], Float[Tensor, " P"]]
HARD_RATES = (0.3, 0.1, 0.1, 0.03, 0.03, 0.01, 0.01, 0.003)


def likelihood_weight(p: Float[Tensor, "..."], order: int | None = None) -> Float[Tensor, "..."]:
    """w_T(p) = Σ_{k<T} (1−p)^k = (1 − (1−p)^T) / p, the gradient of J_T being w_T(p) ∇p.

    T = `order`: 1 is plain RL (w = 1), None the log-likelihood (w = 1/p).
    Source: MaxRL, arXiv:2602.02710, Eqs. 6 and 7, Table 2. Chapter 10.
    """
    if order is None:
        return 1 / p
    check_order(order)
    return torch.where(p > 0, (1 - (1 - p) ** order) / p, float(order))


def truncated_log_likelihood(
    p: Float[Tensor, "..."], order: int | None = None
) -> Float[Tensor, "..."]:
    """J_T(p) = −Σ_{k≤T} (1−p)^k / k; log p for T = `order` = None.

    (1−p)^k is the chance that k completions all fail.
    Source: MaxRL, arXiv:2602.02710, Eqs. 4 and 6. Chapter 10.
    """
    if order is None:
        return p.log()
    check_order(order)
    k = torch.arange(1, order + 1, dtype=p.dtype)
    return -((1 - p)[..., None] ** k / k).sum(-1)


def estimator_weight(advantage: Advantage, n: int) -> Weight:
    """p ↦ w(p) such that E[1/n Σ_i A_i ∇log π(y_i)] = w(p) ∇p, for rewards in {0, 1}.

    Any estimator whose advantages depend on the group's n rewards alone follows such a w: it is
    called once per number of successes c, and the rest is a binomial sum,

        w(p) = 1/n Σ_c C(n, c) p^c (1−p)^{n−c} [c A⁺(c) / p − (n−c) A⁻(c) / (1−p)]

    with A⁺ and A⁻ the mean advantage of right and wrong samples. Exact at p = 0 and 1 too.
    Raises `ValueError` for n < 1. Chapters 05 and 10.
    """
    if n < 1:
        raise ValueError(f"a group has n ≥ 1 samples, got {n}")
    groups = torch.zeros(n, dtype=torch.long)
    right, wrong = torch.zeros(2, n + 1, dtype=torch.float64)
    for c in range(n + 1):
        rewards = (torch.arange(n) < c).double()
        a = advantage(rewards, groups)
        right[c], wrong[c] = a[:c].sum(), a[c:].sum()
    count = torch.arange(n + 1, dtype=torch.float64)
    log_orders = torch.lgamma(count.new_tensor(n + 1))
    choices = (log_orders - torch.lgamma(count + 1) - torch.lgamma(n - count + 1)).exp()

    def weight(p: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        p = torch.as_tensor(p, dtype=torch.float64)[..., None]
        given_right = p ** (count - 1).clamp(min=0) * (1 - p) ** (n - count)
        given_wrong = p**count * (1 - p) ** (n - count - 1).clamp(min=0)
        return (choices * (right * given_right - wrong * given_wrong)).sum(-1) / n

    return weight


@dataclass(frozen=True, eq=False)
class StrategyMixture:
    """Strategies with known solve rates: `rates[s, x]` is that of strategy s on prompt x.

    The policy is π = softmax(θ), the same for every prompt, so p_x = Σ_s π_s rates[s, x].
    Raises `ValueError` unless `rates` is a matrix of probabilities.
    """

    rates: Float[Tensor, "S P"]

    def __post_init__(self) -> None:
        rates = torch.as_tensor(self.rates, dtype=torch.float64)
        if rates.ndim != 2 or not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError("rates are probabilities, one row per strategy, one column per prompt")
        object.__setattr__(self, "rates", rates)

    def solve_rates(self, probs: Float[Tensor, "... S"]) -> Float[Tensor, "... P"]:
        """p_x of every prompt, for one choice of strategy probabilities or many."""
        return probs @ self.rates

    def pass_at_k(self, probs: Float[Tensor, "... S"], k: int) -> Float[Tensor, "..."]:
        """Mean over prompts of 1 − (1 − p_x)^k."""
        return (1 - (1 - self.solve_rates(probs)) ** k).mean(-1)

    def gradient(self, probs: Float[Tensor, " S"], weight: Weight) -> Float[Tensor, " S"]:
        """Mean over prompts of w(p_x) ∇_θ p_x, where ∂p_x/∂θ_s = π_s (rates[s, x] − p_x)."""
        p = self.solve_rates(probs)
        return ((self.rates - p) * weight(p)).mean(-1) * probs

    def ascend(
        self, weight: Weight, start: Float[Tensor, " S"], steps: int = 200, lr: float = 0.5
    ) -> Float[Tensor, "steps+1 S"]:
        """Strategy probabilities along `steps` exact gradient steps on the logits, start first.

        `start` holds probabilities, all positive.
        """
        logits = torch.as_tensor(start, dtype=torch.float64).log()
        path = [logits.softmax(-1)]
        for _ in range(steps):
            logits = logits + lr * self.gradient(path[-1], weight)
            path.append(logits.softmax(-1))
        return torch.stack(path)

    def answers(self, probs: Float[Tensor, " S"], prompt: int) -> "StrategyPolicy":
        """The policy on one prompt as an enumerable one, for `expected_gradient`."""
        logits = torch.as_tensor(probs, dtype=torch.float64).log()
        return StrategyPolicy(logits, self.rates[:, prompt])


@dataclass(frozen=True, eq=False)
class StrategyPolicy(EnumerablePolicy):
    """Outcomes (strategy, solved) and then (strategy, failed) of one prompt; K = 2S.

    The strategy is drawn from softmax(θ), success from its `rates`: chance, not a choice, so only
    the strategy has a score.
    """

    rates: Float[Tensor, " S"]

    @cached_property
    def rewards(self) -> Float[Tensor, " K"]:
        """1 for every strategy that solved the prompt, 0 for every one that failed."""
        return torch.cat([torch.ones_like(self.rates), torch.zeros_like(self.rates)])

    def log_probs(self, logits: Float[Tensor, "..."]) -> Float[Tensor, " K"]:
        """log π_s + log of the rate of s, or of its complement; −∞ for what cannot happen."""
        logp = logits.log_softmax(-1)
        return torch.cat([logp + self.rates.log(), logp + (1 - self.rates).log()])


def check_order(order: int) -> None:
    """Raise `ValueError` unless the order of a truncated log-likelihood is at least 1."""
    if order < 1:
        raise ValueError(f"the order T of a truncated log-likelihood is at least 1, got {order}")


def easy_and_hard(hard: int = 8, prompts: int = 16) -> StrategyMixture:
    """Two strategies on prompts of graded difficulty, `hard` of them out of reach of the first.

    The *shortcut* solves an easy prompt with .95 and a hard one never; the *careful* way solves
    an easy prompt with .6 and the hard ones with `HARD_RATES`, again from the start after eight.
    Chapter 10.
    """
    if not 0 <= hard <= prompts:
        raise ValueError(f"hard must lie between 0 and {prompts} prompts, got {hard}")
    easy = prompts - hard
    shortcut = easy * [0.95] + hard * [0.0]
    careful = easy * [0.6] + list(islice(cycle(HARD_RATES), hard))
    return StrategyMixture(torch.tensor([shortcut, careful], dtype=torch.float64))
