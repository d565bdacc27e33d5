"""From rewards to advantages: how much better than expected was this completion?

The critic-free estimators take one reward per sequence and return one advantage per sequence;
every token of a completion shares it. `groups` holds an integer prompt id per sequence: any ids,
any group sizes, any order. A group whose rewards are all equal carries no signal and gives
exactly 0; so does a singleton wherever the baseline is made of its siblings. `@needs` declares
what an estimator is called with.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.estimators import needs, remembers
from rlbook.objectives.groups import group_mean, group_size, group_sum, has_spread
from rlbook.objectives.shapes import check_rewards, check_tokens, zero_masked

__all__ = ["EMABaseline", "batch_mean_baseline", "batch_normalize", "best_of_group", "gae", "gdpo"]
__all__ += ["gpg", "greedy_baseline", "length_adaptive_gae"]
__all__ += ["group_center", "group_normalize", "leave_one_out", "length_weighted_baseline"]
__all__ += ["max_rl", "no_baseline", "reinforce_plus_plus", "reward_to_go"]


@needs("rewards")
def no_baseline(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"] | None = None
) -> Float[Tensor, " N"]:
    """The reward itself: A_i = r_i.

    Unbiased, and noisy: a constant added to every reward changes the variance but not the mean
    of the gradient. `groups` is ignored.
    Source: Williams 1992, Machine Learning 8:229. Chapter 02.
    """
    check_rewards(rewards, groups)
    return rewards.clone()


@needs("rewards")
def batch_mean_baseline(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"] | None = None
) -> Float[Tensor, " N"]:
    """Reward minus the mean reward of the batch: A_i = r_i − r̄.

    A sample is part of its own baseline, which shrinks the expected gradient by (n−1)/n when all
    n samples answer one prompt. `groups` is ignored. Exactly 0 when all rewards are equal.
    Source: common practice; the n−1 form is `leave_one_out`. Chapter 02.
    """
    check_rewards(rewards, groups)
    return group_center(rewards, torch.zeros_like(rewards, dtype=torch.long))


@needs("rewards")
@remembers("value")
@dataclass
class EMABaseline:
    """Reward minus an exponential moving average of *earlier* batches' mean rewards.

    A_i = r_i − b, then b ← decay·b + (1−decay)·r̄. The baseline never contains the reward it is
    subtracted from, so the estimator stays unbiased. Stateful: make one per run; `value` is its
    whole state (`state_dict`, `load_state_dict`). `groups` is ignored.
    Source: Williams 1992 ("reinforcement comparison", after Sutton 1984). Chapter 02.
    """

    decay: float = 0.9
    value: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {self.decay}")

    def __call__(
        self, rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"] | None = None
    ) -> Float[Tensor, " N"]:
        check_rewards(rewards, groups)
        advantages = rewards - self.value
        self.value = self.decay * self.value + (1 - self.decay) * float(rewards.mean())
        return advantages


@needs("rewards", "groups")
def group_center(rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Reward minus the mean reward of its prompt: A_i = r_i − mean_G(r).

    Equals (n−1)/n times `leave_one_out`. Zero for all-equal groups and singletons.
    Source: Dr. GRPO, arXiv:2503.20783, App. A; DPPO, arXiv:2602.04879, §4.1. Chapter 07.
    """
    check_rewards(rewards, groups)
    centered = rewards - group_mean(rewards, groups)
    return torch.where(has_spread(rewards, groups), centered, 0.0)


@needs("rewards", "groups")
def group_normalize(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"], ddof: int = 1, eps: float = 1e-6
) -> Float[Tensor, " N"]:
    """Reward as a z-score within its prompt: A_i = (r_i − mean_G(r)) / (std_G(r) + eps).

    `ddof`: the paper does not say; verl, TRL and oat use 1 (the default here), others 0.
    `eps` is added to the standard deviation: 1e-6 in verl, 1e-4 in TRL, 1e-8 in oat.
    It is also the least spread that counts: rewards 1e-5 apart are ±1.4 at 1e-6, ±0.001 at 0.01.
    Zero for all-equal groups and singletons.
    Source: GRPO, arXiv:2402.03300, §4.1.2. Chapter 05.
    """
    centered = group_center(rewards, groups)
    degrees = (group_size(groups) - ddof).clamp(min=1)
    deviation = (group_sum(centered**2, groups) / degrees).sqrt()
    return torch.where(has_spread(rewards, groups), centered / (deviation + eps), 0.0)


@needs("rewards", "groups")
def leave_one_out(rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Reward minus the mean reward of its siblings: A_i = r_i − (Σ_{j≠i} r_j) / (n−1).

    Unbiased for ∇E[r]: the baseline does not contain r_i. Zero for all-equal groups and for
    singletons, which have no sibling.
    Source: RLOO, arXiv:2402.14740, after Kool et al. 2019. Chapter 06.
    """
    check_rewards(rewards, groups)
    siblings = (group_size(groups) - 1).clamp(min=1)
    baseline = (group_sum(rewards, groups) - rewards) / siblings
    return torch.where(has_spread(rewards, groups), rewards - baseline, 0.0)


@needs("rewards", "groups")
def batch_normalize(
    rewards: Float[Tensor, " N"],
    groups: Int[Tensor, " N"],
    population: Literal["centered", "raw"] = "centered",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, " N"]:
    """Centred within the prompt, scaled over the batch: A_i = (r_i − mean_G(r)) / (std_B + eps).

    `population` says what std_B is over: the batch's `"centered"` rewards (ScaleRL) or its `"raw"`
    rewards (LitePPO, and TRL's `scale_rewards="batch"`). Raw spread contains the differences
    between prompts, so it is larger. Zero for all-equal groups and singletons.
    Source: ScaleRL, arXiv:2510.13786, §4; LitePPO, arXiv:2508.08221. Chapters 12 and 17.
    """
    if population not in ("centered", "raw"):
        raise ValueError(f'population must be "centered" or "raw", got {population!r}')
    centered = group_center(rewards, groups)
    values = centered if population == "centered" else rewards
    degrees = max(len(values) - ddof, 1)
    deviation = ((values - values.mean()).square().sum() / degrees).sqrt()
    return torch.where(has_spread(rewards, groups), centered / (deviation + eps), 0.0)


@needs("rewards", "groups")
def max_rl(
    rewards: Float[Tensor, " N"],
    groups: Int[Tensor, " N"],
    form: Literal["algorithm_1", "equation_9", "equation_10"] = "algorithm_1",
) -> Float[Tensor, " N"]:
    """Reward relative to the prompt's solve rate: A_i = (r_i − r̂) / r̂ with r̂ = mean_G(r).

    The mean over the group of A_i ∇log π is an unbiased gradient of −Σ_{k≤T} (1−p)^k / k:
    T = N−1 for `"algorithm_1"` (what the paper runs: 0 where no sample succeeds), T = N for
    `"equation_9"` (r_i/r̂, no baseline) and `"equation_10"` (r_i/r̂ − 1, so −1 where none does).
    Raises `ValueError` unless every reward is 0 or 1: dividing by a mean reward is meaningful
    for solve rates only. Source: MaxRL, arXiv:2602.02710, Alg. 1, Eqs. 9 and 10. Chapter 10.
    """
    check_rewards(rewards, groups)
    if not ((rewards == 0) | (rewards == 1)).all():
        raise ValueError("max_rl divides by the solve rate: rewards must be 0 or 1")
    solve_rate = group_mean(rewards, groups)
    relative = rewards / torch.where(solve_rate > 0, solve_rate, 1.0)
    if form == "equation_9":
        return relative
    if form == "equation_10":
        return relative - 1
    if form == "algorithm_1":
        return torch.where(has_spread(rewards, groups), relative - 1, 0.0)
    raise ValueError(f'form must be "algorithm_1", "equation_9" or "equation_10", got {form!r}')


@needs("rewards", "groups")
def best_of_group(rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """What the best answer of a prompt adds to the second best; 0 for all others.

    A_i = max_G(r) − max_{j≠i}(r_j): `leave_one_out` of the best of k answers, k those of the group,
    and its mean over the group an unbiased gradient of E[max_G(r)] / k.
    Source: arXiv:2503.19595. Chapter 10.
    """
    check_rewards(rewards, groups)
    advantages = torch.zeros_like(rewards)
    for prompt in groups[has_spread(rewards, groups)].unique():
        best, second = torch.where(groups == prompt, rewards, -torch.inf).topk(2).values
        advantages[(groups == prompt) & (rewards == best)] = best - second
    return advantages


@needs("parts", "groups")
def gdpo(
    parts: Float[Tensor, "N K"],
    groups: Int[Tensor, " N"],
    weights: tuple[float, ...] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, " N"]:
    """Every part of the reward a z-score within its prompt; their sum a z-score of the batch.

    A_i = (S_i − mean_B(S)) / (std_B(S) + eps), S_i = Σ_k w_k z_ik, z_k = `group_normalize` of part
    k. `parts` are the K parts of each reward in the order in which the rewards give them, each
    weighing the same unless `weights` are given: their own scales are normalised away.
    Source: GDPO, arXiv:2601.05242.
    """
    weights = (1.0,) * parts.shape[1] if weights is None else weights
    if len(weights) != parts.shape[1]:
        raise ValueError(
            f"gdpo: {len(weights)} weights for {parts.shape[1]} parts: give one a part"
        )
    scores = torch.stack([group_normalize(part, groups, eps=eps) for part in parts.T], 1)
    total = scores @ torch.tensor(weights, dtype=scores.dtype, device=scores.device)
    return group_normalize(total, torch.zeros_like(groups), eps=eps)


@needs("rewards", "greedy_rewards")
def greedy_baseline(
    rewards: Float[Tensor, " N"], greedy_rewards: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Reward minus the reward of the prompt's greedy completion: A_i = r(y_i) − r(ȳ).

    Unbiased, since ȳ does not depend on the sample; costs one more completion per prompt.
    `greedy_rewards` holds r(ȳ) for the prompt of each sequence.
    Source: ReMax, arXiv:2310.10505. Chapter 06.
    """
    check_rewards(rewards, greedy_rewards=greedy_rewards)
    return rewards - greedy_rewards


@needs("rewards", "groups", "lengths")
def length_weighted_baseline(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"], lengths: Tensor
) -> Float[Tensor, " N"]:
    """Reward minus the prompt's length-weighted mean reward: A_i = r_i − Σ_j l_j r_j / Σ_j l_j.

    The variance-optimal baseline weighs rewards with ‖∇log π(y)‖²; OPO takes the length in
    tokens for it. `lengths` (N,) counts trained tokens. Zero for all-equal groups and singletons.
    Source: OPO, arXiv:2505.23585. Chapter 06.
    """
    check_rewards(rewards, groups, lengths=lengths)
    lengths = lengths.to(rewards.dtype)
    total = group_sum(lengths, groups).clamp(min=1)
    baseline = group_sum(lengths * rewards, groups) / total
    return torch.where(has_spread(rewards, groups), rewards - baseline, 0.0)


@needs("rewards", "groups")
def gpg(
    rewards: Float[Tensor, " N"], groups: Int[Tensor, " N"], f_norm: float = 1.0
) -> Float[Tensor, " N"]:
    """Centred rewards, averaged over the groups that carry signal: A_i = α (r_i − mean_G(r)) / F.

    α = B / (B − M) with B groups of which M have no spread, so a batch with many dead groups
    is not diluted by them. All advantages are 0 when every group is dead. `f_norm` is F.
    Source: GPG, arXiv:2504.02546. Chapter 12.
    """
    centered = group_center(rewards, groups)
    alive = groups[has_spread(rewards, groups)].unique().numel()
    alpha = groups.unique().numel() / max(alive, 1)
    return alpha * centered / f_norm  # type: ignore[no-any-return]


@needs("rewards", "groups", "mask", token_rewards=True)
def reinforce_plus_plus(
    rewards: Float[Tensor, "..."],
    groups: Int[Tensor, " N"],
    mask: Bool[Tensor, "N T"],
    baseline: Literal["none", "group"] = "none",
    population: Literal["tokens", "sequences"] = "tokens",
    ddof: int = 0,
    eps: float = 1e-8,
) -> Float[Tensor, "N T"]:
    """Reward to go, whitened over the batch: A = (R − mean_B(R)) / √(var_B(R) + eps).

    `rewards` is (N,), or (N, T) when a KL penalty sits on the tokens (R_t = Σ_{s≥t} r_s).
    `baseline="group"` first subtracts the prompt's mean (REINFORCE++-baseline). `population`:
    both public implementations whiten over `"tokens"`, which counts long completions more and
    can hand a group of equal rewards a non-zero advantage; `"sequences"` counts each once (at
    its first token). `ddof` is 0 in OpenRLHF and 1 in verl. Zero when all rewards are equal.
    Source: REINFORCE++, arXiv:2501.03262. Chapter 06.
    """
    returns = reward_to_go(rewards, mask)
    if baseline == "group":
        returns = returns - group_mean(first_token(returns, mask), groups)[:, None]
    elif baseline != "none":
        raise ValueError(f'baseline must be "none" or "group", got {baseline!r}')
    values = {"tokens": returns[mask], "sequences": first_token(returns, mask)}[population]
    if values.numel() == 0 or values.max() == values.min():
        return torch.zeros_like(returns)
    centered = returns - values.mean()
    variance = (values - values.mean()).square().sum() / max(len(values) - ddof, 1)
    return torch.where(mask, centered * (variance + eps).rsqrt(), 0.0)


@needs("rewards", "mask", token_rewards=True)
def reward_to_go(
    rewards: Float[Tensor, "..."], mask: Bool[Tensor, "N T"], gamma: float = 1.0
) -> Float[Tensor, "N T"]:
    """Discounted rewards from each token on: R_t = Σ_{s≥t} γ^{s−t} r_s over trained tokens.

    A reward per sequence (N,) counts as a reward on its last trained token. 0 where `mask` is
    False. γ = 0 leaves every token its own reward: on-policy distillation. Chapters 03 and 14.
    """
    if rewards.ndim == 1:
        rewards = at_last_token(rewards, mask)
    returns, _ = gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)
    return returns


def at_last_token(rewards: Float[Tensor, " N"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """(N, T): each sequence's reward on its last trained token, 0 elsewhere."""
    position = mask.cumsum(1)
    last = mask & (position == position[:, -1:])
    return torch.where(last, rewards[:, None], 0.0)


def first_token(values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, " N"]:
    """(N,): the value at each sequence's first trained token; 0 for an empty row."""
    first = mask & (mask.cumsum(1) == 1)
    return torch.where(first, values, 0.0).sum(1)


@needs("rewards", "values", "mask", optional=("gamma", "lam"), token_rewards=True)
def gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    gamma: float = 1.0,
    lam: float | Float[Tensor, " N"] = 1.0,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """Generalised advantage estimation; returns (advantages, returns), both 0 outside the mask.

    δ_t = r_t + γ V_{t+1} − V_t;  A_t = δ_t + γλ A_{t+1};  returns = A + V, the critic's target.
    `values[n, t]` is V of the state before token t; after the last trained token V = 0.
    Untrained tokens inside a completion are skipped: t+1 means the next trained token.
    Source: PPO, arXiv:1707.06347, Eqs. 11 and 12. Chapter 03.
    """
    check_tokens(mask, rewards=rewards, values=values)
    rewards, values = zero_masked(mask, rewards, values)
    advantages = torch.zeros_like(values)
    next_advantage = next_value = torch.zeros_like(values[:, 0])
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
    return advantages, advantages + values


@needs("rewards", "values", "mask", optional=("gamma",), token_rewards=True)
def length_adaptive_gae(
    rewards: Float[Tensor, "N T"],
    values: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    gamma: float = 1.0,
    alpha: float = 0.05,
) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
    """`gae` with λ = 1 − 1/(α |y|) of each answer, so that Σ_t λ^t ≈ α |y|; at least 0.

    The returns are those of λ = 1, as the critic is to learn them.
    Source: VAPO, arXiv:2504.05118. Chapter 03.
    """
    lam = (1 - 1 / (alpha * mask.sum(1).clamp(min=1))).clamp(min=0).to(values.dtype)
    advantages, _ = gae(rewards, values, mask, gamma, lam)
    return advantages, gae(rewards, values, mask, gamma, 1.0)[1]
