"""Which divergence a student descends: three updates on policies small enough to enumerate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy, TokenTree
from rlbook.objectives import reward_to_go


class Writer(Protocol):
    """A policy whose outcomes are written token by token."""

    @property
    def logits(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def probs(self) -> Tensor: ...
    def token_log_probs(self, logits: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class FixedLength(EnumerablePolicy):
    """T tokens over V symbols. `logits` has a row per prefix, or one per position: (T, V).

    With a row per position the policy cannot see what it has written so far: the smallest student
    that is smaller than its teacher.
    """

    length: int = 2

    @cached_property
    def tokens(self) -> Int[Tensor, "K T"]:
        """Every outcome."""
        return torch.tensor(list(product(range(self.logits.shape[-1]), repeat=self.length)))

    @cached_property
    def mask(self) -> Bool[Tensor, "K T"]:
        return torch.ones_like(self.tokens, dtype=torch.bool)

    @cached_property
    def rows(self) -> Int[Tensor, "K T"]:
        """The row of `logits` that each token is drawn from."""
        if len(self.logits) == self.length:
            return torch.arange(self.length).expand_as(self.tokens)
        symbols = range(self.logits.shape[-1])
        prefixes = [p for t in range(self.length) for p in product(symbols, repeat=t)]
        number = {prefix: row for row, prefix in enumerate(prefixes)}
        return torch.tensor(
            [[number[tuple(y[:t])] for t in range(self.length)] for y in self.tokens.tolist()]
        )

    def token_log_probs(self, logits: Float[Tensor, "P V"]) -> Float[Tensor, "K T"]:
        """log π(token | what the policy sees)."""
        return logits.log_softmax(-1)[self.rows, self.tokens]

    def log_probs(self, logits):
        return self.token_log_probs(logits).sum(-1)


def copycat(slip: float = 0.01) -> tuple[FixedLength, FixedLength]:
    """A teacher that says "aa" or "bb", half of the time each, and a student without a memory.

    The second token repeats the first but for a slip. The student starts at 55 % "a", twice.
    """
    echo = torch.tensor([[0.5, 0.5], [1 - slip, slip], [slip, 1 - slip]], dtype=torch.float64)
    blind = torch.tensor([[0.55, 0.45], [0.55, 0.45]], dtype=torch.float64)
    return FixedLength(echo.log()), FixedLength(blind.log())


def distillation_update(student: Writer, teacher: Writer, gamma: float) -> Float[Tensor, "..."]:
    """E_{y ~ π_θ} Σ_t A_t ∇log π_θ(y_t), A_t = Σ_{s≥t} γ^{s−t} log (π_T / π_θ)(y_s).

    The expected update of on-policy distillation, by enumeration.
    """
    teaches = teacher.token_log_probs(teacher.logits)

    def surrogate(logits: Tensor) -> Tensor:
        logp = student.token_log_probs(logits)
        advantages = reward_to_go(teaches - logp.detach(), student.mask, gamma)
        return (student.probs.detach()[:, None] * advantages * logp).sum()

    return torch.func.grad(surrogate)(student.logits)


def reverse_kl(student: Writer, teacher: Writer) -> Callable[[Tensor], Tensor]:
    """KL(π_θ ‖ π_T) over whole answers, as a function of the student's logits."""
    return lambda logits: divergence(student.token_log_probs(logits), whole(teacher))


def forward_kl(student: Writer, teacher: Writer) -> Callable[[Tensor], Tensor]:
    """KL(π_T ‖ π_θ) over whole answers: what imitating the teacher's answers descends."""
    taught = whole(teacher)
    return lambda logits: (taught.exp() * (taught - student.token_log_probs(logits).sum(-1))).sum()


def divergence(token_logp: Float[Tensor, "K T"], taught: Float[Tensor, " K"]) -> Float[Tensor, ""]:
    logp = token_logp.sum(-1)
    return (logp.exp() * (logp - taught)).sum()


def whole(policy: Writer) -> Float[Tensor, " K"]:
    """log π of every outcome."""
    return policy.token_log_probs(policy.logits).sum(-1)


def state_kls(student: TokenTree, teacher: TokenTree) -> Callable[[Tensor], Tensor]:
    """KL(π_θ ‖ π_T) of the next token at every prefix, as a function of the student's logits."""
    taught = teacher.logits.log_softmax(-1)

    def kls(logits: Tensor) -> Tensor:
        logp = logits.log_softmax(-1)
        return (logp.exp() * (logp - taught)).sum(-1)

    return kls


def visits(student: TokenTree, logits: Float[Tensor, "P A"] | None = None) -> Float[Tensor, " P"]:
    """d_θ(s): the probability that an answer comes by each prefix."""
    logp = (student.logits if logits is None else logits).log_softmax(-1)
    row_of = {prefix: row for row, prefix in enumerate(student.prefixes)}
    reached = [torch.zeros((), dtype=logp.dtype)]
    for prefix in student.prefixes[1:]:
        before = row_of[prefix[:-1]]
        reached.append(reached[before] + logp[before, prefix[-1]])
    return torch.stack(reached).exp()


def descend(
    student: FixedLength, update: Callable[[FixedLength], Tensor], lr: float = 0.5, steps: int = 400
) -> list[FixedLength]:
    """The student before and after every step along an update."""
    path = [student]
    for _ in range(steps):
        path.append(path[-1].moved(lr * update(path[-1])))
    return path


def update_noise(student: Writer, teacher: Writer, gamma: float) -> Float[Tensor, ""]:
    """Variance of one answer's update, summed over all logits: E|g|² − |E g|², by enumeration."""
    scores = torch.func.jacrev(student.token_log_probs)(student.logits)
    log_ratio = teacher.token_log_probs(teacher.logits) - student.token_log_probs(student.logits)
    advantages = reward_to_go(log_ratio, student.mask, gamma)
    updates = torch.einsum("kt,kt...->k...", advantages, scores).flatten(1)
    mean = student.probs @ updates
    return student.probs @ updates.square().sum(1) - mean.square().sum()
