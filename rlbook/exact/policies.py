"""Policies small enough to enumerate, so that an expectation is a sum and not an estimate."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = ["EnumerablePolicy", "FillerPolicy", "SoftmaxPolicy", "TokenTree"]


@dataclass(frozen=True, eq=False)
class EnumerablePolicy(ABC):
    """A distribution over K outcomes, given by D logits θ (flattened, float64).

    A subclass says how log-probabilities follow from θ; everything else is a sum over outcomes.
    """

    logits: Float[Tensor, "..."]

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", torch.as_tensor(self.logits, dtype=torch.float64))

    @abstractmethod
    def log_probs(self, logits: Float[Tensor, "..."]) -> Float[Tensor, " K"]:
        """log π_θ(y) of every outcome y as a differentiable function of the logits θ."""

    @property
    def logp(self) -> Float[Tensor, " K"]:
        """log π(y) of every outcome."""
        return self.log_probs(self.logits)

    @property
    def probs(self) -> Float[Tensor, " K"]:
        """π(y) of every outcome."""
        return self.logp.exp()

    @cached_property
    def scores(self) -> Float[Tensor, "K D"]:
        """Score of every outcome, ∇_θ log π_θ(y)."""
        jacobian: Tensor = torch.func.jacrev(self.log_probs)(self.logits)
        return jacobian.flatten(start_dim=1)

    def expected_reward(self, rewards: Float[Tensor, " K"]) -> Float[Tensor, ""]:
        """J = Σ_y π(y) r(y)."""
        return self.probs @ rewards

    def true_gradient(self, rewards: Float[Tensor, " K"]) -> Float[Tensor, " D"]:
        """∇_θ Σ_y π_θ(y) r(y), by automatic differentiation of the sum itself.

        The score function is not used, so this can judge estimators built on it.
        """
        reward = torch.func.grad(lambda logits: self.log_probs(logits).exp() @ rewards)
        gradient: Tensor = reward(self.logits)
        return gradient.flatten()

    def moved(self, step: Float[Tensor, " D"]) -> "EnumerablePolicy":
        """The policy at θ + step."""
        return replace(self, logits=self.logits + step.reshape(self.logits.shape))


@dataclass(frozen=True, eq=False)
class SoftmaxPolicy(EnumerablePolicy):
    """K answers, one logit each: π(y) = exp(θ_y) / Σ_k exp(θ_k)."""

    @classmethod
    def from_probs(cls, probs: ArrayLike | Tensor) -> "SoftmaxPolicy":
        """The policy with the given probabilities; raises `ValueError` unless they are one."""
        probs = torch.as_tensor(probs, dtype=torch.float64)
        if (probs <= 0).any() or abs(probs.sum() - 1) > 1e-9:
            raise ValueError(f"probabilities must be positive and sum to 1, got {probs.tolist()}")
        return cls(probs.log())

    def log_probs(self, logits: Float[Tensor, "..."]) -> Float[Tensor, " K"]:
        """log softmax(θ)."""
        return logits.log_softmax(-1)


@dataclass(frozen=True, eq=False)
class FillerPolicy(EnumerablePolicy):
    """One deciding token and F fillers, each a coin with its own logit; K = 2^(F+1) outcomes.

    A completion is judged by its first token alone, yet every token's score adds to the variance
    of the gradient: the smallest picture of a long answer. Without fillers it is the two-answer
    world, in which the usual story about baselines is misleading.
    """

    @classmethod
    def of(cls, p: float, fillers: int = 10, filler_prob: float = 0.5) -> "FillerPolicy":
        """Deciding token right with probability p, each filler 1 with `filler_prob`."""
        return cls(torch.tensor([p, *fillers * [filler_prob]], dtype=torch.float64).logit())

    @cached_property
    def tokens(self) -> Int[Tensor, "K T"]:
        """Every outcome as bits, the deciding token first."""
        return torch.tensor(list(product((1, 0), repeat=len(self.logits))))

    @property
    def rewards(self) -> Float[Tensor, " K"]:
        """1 where the deciding token is right."""
        return self.tokens[:, 0].double()

    def log_probs(self, logits: Float[Tensor, "..."]) -> Float[Tensor, " K"]:
        """Σ_t log σ(±θ_t), + where bit t of the outcome is 1."""
        signs = 2 * self.tokens - 1
        return torch.nn.functional.logsigmoid(signs * logits).sum(-1)


@dataclass(frozen=True, eq=False)
class TokenTree(EnumerablePolicy):
    """A table over prefixes: at each, a softmax over V symbols and STOP.

    `logits` is (P, V + 1), one row per prefix of fewer than T tokens (shorter first, then in
    lexicographic order), STOP last. An outcome ends with STOP, or is cut off after T tokens: the
    whole of language modelling, with P = Σ_{l<T} V^l rows in place of a network.
    """

    max_tokens: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logits.shape != (len(self.prefixes), self.symbols + 1):
            raise ValueError(
                f"{self.symbols} symbols and {self.max_tokens} tokens need logits of shape "
                f"({len(self.prefixes)}, {self.symbols + 1}), got {tuple(self.logits.shape)}"
            )

    @classmethod
    def random(cls, symbols: int, max_tokens: int, seed: int = 0) -> "TokenTree":
        """A tree with standard normal logits."""
        rows = sum(symbols**length for length in range(max_tokens))
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(rows, symbols + 1, generator=generator, dtype=torch.float64)
        return cls(logits, max_tokens)

    @property
    def symbols(self) -> int:
        """V, the size of the vocabulary without STOP."""
        return self.logits.shape[-1] - 1

    @property
    def stop(self) -> int:
        """Id of STOP; the symbols are 0 … V - 1."""
        return self.symbols

    @cached_property
    def prefixes(self) -> list[tuple[int, ...]]:
        """What can stand before a token, in the order of the rows of `logits`."""
        symbols = range(self.symbols)
        return [p for length in range(self.max_tokens) for p in product(symbols, repeat=length)]

    @cached_property
    def sequences(self) -> list[tuple[int, ...]]:
        """Every outcome: those that stop, then those cut off."""
        stopped = [(*prefix, self.stop) for prefix in self.prefixes]
        return stopped + list(product(range(self.symbols), repeat=self.max_tokens))

    @cached_property
    def tokens(self) -> Int[Tensor, "K T"]:
        """Outcomes padded on the right with 0."""
        return torch.tensor([[*s, *(self.max_tokens - len(s)) * [0]] for s in self.sequences])

    @cached_property
    def mask(self) -> Bool[Tensor, "K T"]:
        """True on tokens of the outcome, STOP included."""
        return torch.arange(self.max_tokens) < self.lengths[:, None]

    @cached_property
    def lengths(self) -> Int[Tensor, " K"]:
        """Tokens of each outcome, STOP included."""
        return torch.tensor([len(s) for s in self.sequences])

    def token_log_probs(self, logits: Float[Tensor, "P A"]) -> Float[Tensor, "K T"]:
        """log π(token | prefix), 0 on padding: what a policy loss takes."""
        table = logits.log_softmax(-1)
        return torch.where(self.mask, table[self._rows, self.tokens], 0.0)

    def log_probs(self, logits: Float[Tensor, "..."]) -> Float[Tensor, " K"]:
        """Σ_t log π(y_t | y_<t)."""
        return self.token_log_probs(logits).sum(-1)

    @cached_property
    def _rows(self) -> Int[Tensor, "K T"]:
        row_of = {prefix: row for row, prefix in enumerate(self.prefixes)}
        return torch.tensor(
            [[row_of.get(s[:t], 0) for t in range(self.max_tokens)] for s in self.sequences]
        )
