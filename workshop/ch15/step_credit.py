"""Credit by enumeration: what every prefix is worth, and how noisy each way to give credit is.

The gradient estimate of one answer is Σ_t c_t ∇log π(y_t | y_<t), with a credit c_t per token. Its
mean and variance over all answers are sums: ways to give credit are compared without sampling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy, TokenTree


@dataclass(frozen=True, eq=False)
class ChoiceTree(EnumerablePolicy):
    """Answers of T choices between two: a logit for every prefix, K = 2^T answers.

    `logits` is (2^T − 1,), shorter prefixes first, then in the order of their bits; a logit is that
    of the choice 1.
    """

    @classmethod
    def of_steps(cls, rule: float, *true: float) -> "ChoiceTree":
        """First the right rule with probability `rule`; then each further choice is a result, true
        with its probability whatever came before."""
        chances = [p for t, p in enumerate((rule, *true)) for _ in range(2**t)]
        return cls(torch.tensor(chances, dtype=torch.float64).logit())

    @property
    def length(self) -> int:
        return (len(self.logits) + 1).bit_length() - 1

    @cached_property
    def tokens(self) -> Int[Tensor, "K T"]:
        """Every answer as bits."""
        return torch.tensor(list(product((1, 0), repeat=self.length)))

    @cached_property
    def mask(self) -> Bool[Tensor, "K T"]:
        return torch.ones_like(self.tokens, dtype=torch.bool)

    @property
    def all_right(self) -> Float[Tensor, " K"]:
        """Reward 1 for the one answer whose choices are all 1."""
        return self.tokens.all(1).double()

    def token_log_probs(self, logits: Float[Tensor, " P"]) -> Float[Tensor, "K T"]:
        """log π(choice | prefix)."""
        signs = 2 * self.tokens - 1
        return torch.nn.functional.logsigmoid(signs * logits[self._rows])

    def log_probs(self, logits):
        return self.token_log_probs(logits).sum(-1)

    @cached_property
    def _rows(self) -> Int[Tensor, "K T"]:
        weights = 2 ** torch.arange(self.length)
        before = [(1 - self.tokens[:, :t]) @ weights[:t].flip(0) for t in range(self.length)]
        return torch.stack(before, dim=1) + weights - 1


Tree = ChoiceTree | TokenTree


def prefix_values(tree: Tree, rewards: Float[Tensor, " K"]) -> Float[Tensor, "K T1"]:
    """V of every answer's prefixes: what the answers that begin so earn on average.

    V(prefix) = Σ π(y) r(y) / Σ π(y) over the y that extend it. Column t is V before token t; from
    the end of an answer on it is its reward.
    """
    probs, lengths = tree.probs, tree.mask.sum(1)
    columns = []
    for t in range(tree.tokens.shape[1] + 1):
        prefix = torch.where(lengths < t, -1 - torch.arange(len(probs)), 0)  # ended: on its own
        keys = torch.cat([prefix[:, None], tree.tokens[:, :t]], dim=1)
        _, state = keys.unique(dim=0, return_inverse=True)
        empty = probs.new_zeros(int(state.max()) + 1)
        mass = empty.index_add(0, state, probs)
        columns.append((empty.index_add(0, state, probs * rewards) / mass)[state])
    return torch.stack(columns, dim=1)


def exact_credit(tree: Tree, rewards: Float[Tensor, " K"]) -> Float[Tensor, "K T"]:
    """A(s_t, y_t) = V(after y_t) − V(before y_t), 0 on padding."""
    return prefix_values(tree, rewards).diff(dim=1) * tree.mask


def token_scores(tree: Tree) -> Float[Tensor, "K T D"]:
    """∇_θ log π(y_t | y_<t) of every token of every answer."""
    return torch.func.jacrev(tree.token_log_probs)(tree.logits).flatten(start_dim=2)


@dataclass(frozen=True, eq=False)
class CreditMoments:
    """Mean (D,) and variance (D,) of the gradient that one answer gives."""

    mean: Float[Tensor, " D"]
    variance: Float[Tensor, " D"]

    @property
    def noise(self) -> float:
        """Answers until the error of their mean is as long as the gradient: Σ var / |mean|²."""
        return float(self.variance.sum() / self.mean.square().sum())


def credit_moments(tree: Tree, credit: Float[Tensor, "K T"]) -> CreditMoments:
    """Exact moments of Σ_t c_t ∇log π(y_t | y_<t) over the policy's answers."""
    gradients = torch.einsum("kt,ktd->kd", credit * tree.mask, token_scores(tree))
    mean = tree.probs @ gradients
    return CreditMoments(mean, tree.probs @ gradients.square() - mean.square())


def vine_moments(tree: Tree, rewards: Float[Tensor, " K"], k: int) -> CreditMoments:
    """The same with values from `k` fresh answers at every prefix, for rewards of 0 and 1.

    The mean is the exact one: an average of samples is unbiased. A value V̂_t stands in two
    credits, +V̂_t in that of token t − 1 and −V̂_t in that of token t, so its noise V(1 − V)/k enters
    through the difference of the two scores.
    """
    exact = credit_moments(tree, exact_credit(tree, rewards))
    values, scores = prefix_values(tree, rewards), token_scores(tree)
    before = torch.cat([torch.zeros_like(scores[:, :1]), scores[:, :-1]], dim=1)
    spread = values[:, :-1] * (1 - values[:, :-1]) / k * tree.mask
    noise = torch.einsum("kt,ktd->kd", spread, (before - scores).square())
    return CreditMoments(exact.mean, exact.variance + tree.probs @ noise)


Array = Float[np.ndarray, " P"]
Gains = Callable[[Sequence[float], float], Sequence[float]]


def answers(again: Array, chance: float) -> list[tuple[float, int, float]]:
    """(probability, places passed, reward) of every answer, the one that is cut off last."""
    reach = np.cumprod([1.0, *again])
    finished = [
        (reach[place] * (1 - p) * of, place, reward)
        for place, p in enumerate(again)
        for reward, of in ((1.0, chance), (0.0, 1 - chance))
    ]
    return [*finished, (reach[-1], len(again), 0.0)]


def true_values(again: Array, chance: float) -> Array:
    """V before each place: what the answers that come there earn on average."""
    told = answers(again, chance)
    return np.array(
        [
            sum(p * r for p, passed, r in told if passed >= place)
            / sum(p for p, passed, _ in told if passed >= place)
            for place in range(len(again))
        ]
    )


def climb(
    gains: Gains,
    worth: Callable[[Array], Array],
    places: int = 8,
    chance: float = 0.5,
    updates: int = 60,
    lr: float = 2.0,
) -> list[float]:
    """Mean number of steps before the first and after each exact update, credit by `gains`.

    `worth` makes of the true values what the credit believes of a prefix.
    """
    logits = np.zeros(places)
    path = []
    for _ in range(updates + 1):
        again = 1 / (1 + np.exp(-logits))
        told = answers(again, chance)
        path.append(float(sum(p * min(passed + 1, places) for p, passed, _ in told)))
        u, slope = worth(true_values(again, chance)), np.zeros(places)
        for p, passed, reward in told:
            said = min(passed + 1, places)  # choices made: to go on, and to finish or be cut off
            chose = np.arange(said) < passed  # True where the step was said again
            slope[:said] += p * np.array(gains(list(u[:said]), reward)) * (chose - again[:said])
        logits += lr * slope
    return path
