"""What an aggregation teaches a policy about *stopping*, computed instead of sampled.

At ρ = 1 a policy loss is linear in the scores, so its expected gradient is a sum over groups of
completions. `enumerated_update` goes through all of them with the real `policy_loss`;
`expected_update` gets the same sum for batches of any size by counting. Chapter 07.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlbook.exact.estimators import Advantage, weighted_batches
from rlbook.exact.policies import EnumerablePolicy, TokenTree
from rlbook.objectives import Aggregation, Method, group_center, policy_loss

__all__ = ["StopPolicy", "enumerated_update", "expected_update", "follow"]


@dataclass(frozen=True, eq=False)
class StopPolicy(EnumerablePolicy):
    """Takes the right or the wrong path, then at every token stops or goes on.

    θ = (path, stop if right, stop if wrong); or (path, stop), a policy that cannot tell on which
    path it is. The first token tells the path and whether it is also the last; a completion of
    T = `max_tokens` tokens without a stop is cut off. The K = 2 (T + 1) outcomes are the lengths
    1 … T and the cut-off one, on the right path and then on the wrong one.
    """

    max_tokens: int = 60

    @classmethod
    def of(
        cls, p: float = 0.5, stop: float = 0.1, max_tokens: int = 60, knows: bool = True
    ) -> "StopPolicy":
        """Right path with probability p; both paths stop with probability `stop` per token."""
        chances = torch.tensor([p, stop, stop] if knows else [p, stop], dtype=torch.float64)
        return cls(chances.logit(), max_tokens)

    @property
    def p(self) -> float:
        """Probability of the right path."""
        return self.logits[0].sigmoid().item()

    @cached_property
    def right(self) -> Bool[Tensor, " K"]:
        """Outcomes on the right path."""
        return torch.arange(2 * self.max_tokens + 2) <= self.max_tokens

    @property
    def rewards(self) -> Float[Tensor, " K"]:
        """1 on the right path, whatever the length."""
        return self.right.double()

    @cached_property
    def lengths(self) -> Int[Tensor, " K"]:
        one_path = torch.arange(1, self.max_tokens + 2).clamp(max=self.max_tokens)
        return one_path.repeat(2)

    @cached_property
    def mask(self) -> Bool[Tensor, "K T"]:
        return torch.arange(self.max_tokens) < self.lengths[:, None]

    def token_log_probs(self, logits: Float[Tensor, " D"]) -> Float[Tensor, "K T"]:
        """log π(token | prefix), 0 on padding: what a policy loss takes."""
        places, cut_off = torch.arange(self.max_tokens), self.max_tokens + 1
        last = torch.tensor([*range(self.max_tokens), cut_off]).repeat(2)[:, None]
        path = logsigmoid(torch.where(self.right, logits[0], -logits[0]))
        stop = torch.where(self.right, logits[1], logits[-1])[:, None]
        choice = torch.where(places < last, logsigmoid(-stop), logsigmoid(stop))
        return torch.where(self.mask, choice, 0.0) + torch.where(places == 0, path[:, None], 0.0)

    def log_probs(self, logits):
        return self.token_log_probs(logits).sum(-1)

    @cached_property
    def scores(self) -> Float[Tensor, "K D"]:
        return torch.func.jacfwd(self.log_probs)(self.logits)  # D is small: forward mode

    def length_chances(self, right: bool) -> Float[Tensor, " T"]:
        """Probability of each length 1 … T on one path, the cut-off one included."""
        chances = self.probs[self.right == right].clone()
        chances[-2] += chances[-1]
        return chances[:-1] / chances[:-1].sum()

    def mean_length(self, right: bool) -> float:
        places = torch.arange(1, self.max_tokens + 1, dtype=torch.float64)
        return (self.length_chances(right) @ places).item()


def enumerated_update(
    method: Method,
    policy: StopPolicy | TokenTree,
    rewards: Float[Tensor, " K"],
    group_size: int,
) -> Float[Tensor, " D"]:
    """−∇_θ E[loss] of one group, from `policy_loss` on every group there is, at ρ = 1.

    A group is a multiset of outcomes: C(K + n − 1, n) of them, 1365 for K = 12 and n = 4.
    """
    logits = policy.logits.clone().requires_grad_()
    logp, mask = policy.token_log_probs(logits), policy.mask
    one_prompt = torch.zeros(group_size, dtype=torch.long)
    expected = torch.zeros((), dtype=torch.float64)
    for rows, chance in weighted_batches(policy.probs, group_size, exchangeable=True):
        advantages = method.new_advantage()(rewards[rows], one_prompt)
        loss = policy_loss(method, logp[rows], logp[rows], advantages, mask[rows], one_prompt).loss
        expected = expected + chance * loss
    (gradient,) = torch.autograd.grad(expected, logits)
    return -gradient.flatten()


def expected_update(
    policy: StopPolicy | TokenTree,
    rewards: Float[Tensor, " K"],
    aggregation: Aggregation,
    advantage: Advantage = group_center,
    group_size: int = 8,
    prompts: int = 1,
    constant: float = 1.0,
) -> Float[Tensor, " D"]:
    """The same for a batch of P prompts alike with n completions each, N = P n, by counting.

    All completions contribute alike, so E[−∇loss] = N E[A_1 w(L_1, S) ∇log π(y_1)], where w is the
    weight of a token (`token_weights`) and S the number of tokens of the others. Given how many
    siblings are right, S is a sum of independent lengths: its distribution is a convolution.
    Raises `ValueError` unless rewards are 0 or 1.
    """
    if not torch.isin(rewards, torch.tensor([0.0, 1.0], dtype=rewards.dtype)).all():
        raise ValueError(f"rewards must be 0 or 1, got {rewards.unique().tolist()}")
    right, one_prompt = rewards > 0, torch.zeros(group_size, dtype=torch.long)
    p = policy.probs[right].sum()
    weights = _weights(policy, right, aggregation, group_size, prompts, constant)
    pull = torch.zeros_like(policy.probs)
    for others, weight in enumerate(weights):  # `others` of the n − 1 siblings are right
        chance = comb(group_size - 1, others) * p**others * (1 - p) ** (group_size - 1 - others)
        siblings = [1.0] * others + [0.0] * (group_size - 1 - others)
        for outcomes, reward in ((right, 1.0), (~right, 0.0)):
            group = torch.tensor([reward, *siblings], dtype=torch.float64)
            share = chance * advantage(group, one_prompt)[0]
            pull = pull + outcomes * share * weight[policy.lengths - 1]
    return (policy.probs * pull) @ policy.scores


def follow(
    policy: StopPolicy,
    rewards: Float[Tensor, " K"],
    aggregation: Aggregation,
    updates: int = 100,
    lr: float = 0.5,
    hold_path: bool = True,
    **settings,
) -> list[StopPolicy]:
    """Plain gradient ascent along `expected_update`: the policies before and after every update.

    `hold_path` keeps the probability of the right path, so that the lengths are all that moves.
    """
    policies = [policy]
    for _ in range(updates):
        step = lr * expected_update(policies[-1], rewards, aggregation, **settings)
        step[0] *= not hold_path
        policies.append(policies[-1].moved(step))
    return policies


def _weights(
    policy: StopPolicy | TokenTree,
    right: Bool[Tensor, " K"],
    aggregation: Aggregation,
    group_size: int,
    prompts: int,
    constant: float,
) -> Float[Tensor, "n T"]:
    """N E[w | own length, right siblings]: one row per number of right siblings 0 … n − 1."""
    own = torch.arange(1, policy.max_tokens + 1, dtype=torch.float64)
    fixed = {
        "sequence_mean": 1 / own,
        "constant": torch.full_like(own, 1 / constant),
        "sequence_sum": torch.ones_like(own),
    }
    if aggregation in fixed:
        return fixed[aggregation].expand(group_size, -1)
    prompts = prompts if aggregation == "token_mean" else 1
    tokens = _tokens_of_others(policy, right, group_size, prompts)
    return group_size * prompts * tokens @ _inverse(len(tokens[0]), policy.max_tokens)


def _tokens_of_others(
    policy: StopPolicy | TokenTree, right: Bool[Tensor, " K"], group_size: int, prompts: int
) -> Float[Tensor, "n M"]:
    """Distribution of the number of tokens of the other P n − 1 completions, by convolution."""
    size = prompts * group_size * policy.max_tokens + 1
    spectra, p = {}, policy.probs[right].sum()
    for reward, chosen in ((1, right), (0, ~right)):
        chances = policy.probs[chosen] / policy.probs[chosen].sum()
        lengths = chances.new_zeros(size).index_add(0, policy.lengths[chosen], chances)
        spectra[reward] = torch.fft.rfft(lengths)
    strangers = (p * spectra[1] + (1 - p) * spectra[0]) ** (group_size * (prompts - 1))
    rows = [
        spectra[1] ** k * spectra[0] ** (group_size - 1 - k) * strangers for k in range(group_size)
    ]
    return torch.fft.irfft(torch.stack(rows), n=size)


@lru_cache(maxsize=4)
def _inverse(size: int, max_tokens: int) -> Float[Tensor, "M T"]:
    """1 / (others + own) for 0 … M − 1 tokens of the others and 1 … T of one's own."""
    others = torch.arange(size, dtype=torch.float64)[:, None]
    return 1 / (others + torch.arange(1, max_tokens + 1, dtype=torch.float64))
