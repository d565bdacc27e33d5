"""Trust regions without a wall per token: weights that fade or turn round, and votes on answers.

Called as those of `trust_regions` are, under the same law. GMPO and SAPO are rows of the table; any
row takes one of the others:

    replace(METHODS["dppo"], trust_region=RatioWindow(0.2, 0.28))
    replace(METHODS["dppo"], trust_region=DivergencePenalty(0.15))
    replace(METHODS["gspo"], trust_region=SequenceMask(0.1))                           (sequence)
    replace(METHODS["gspo"], ratio="sequence_product", trust_region=SequenceGamma())

These last two judge a whole answer and need its ratio: "sequence", or the product. Chapter 11.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.objectives.options import Choice
from rlbook.objectives.ratios import Tokens
from rlbook.objectives.trust_regions import RatioClip, Weights

__all__ = ["DivergencePenalty", "GeometricClip", "RatioWindow", "SequenceGamma"]
__all__ += ["SequenceMask", "SoftGate", "TaperedWeight"]


@dataclass(frozen=True)
class SoftGate(Choice):
    """SAPO: −(4/τ) σ(τ(ρ − 1)) A. The weight 4σ(1−σ)ρ is 1 at ρ = 1 and fades on both sides.

    A larger τ fades sooner: `tau_low` for A ≤ 0, which the paper wants stricter, `tau_high` for
    A > 0. Source: SAPO, arXiv:2511.20347; values as in TRL and verl. Chapter 11.
    """

    tau_low: float = 1.05
    tau_high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_low <= 0 or self.tau_high <= 0:
            raise ValueError(f"τ must be positive, got {self.tau_low} and {self.tau_high}")

    def weigh(self, tokens: Tokens) -> Weights:
        """4σ(1−σ)ρ with σ = σ(τ(ρ − 1)); every token is kept."""
        gate = self.gate(tokens)
        return Weights(4 * gate * (1 - gate) * tokens.ratio, tokens.mask)

    def loss(self, tokens: Tokens) -> Float[Tensor, "*shape"]:
        """−(4/τ) σ(τ(ρ − 1)) A."""
        tau = by_sign(tokens.advantages, self.tau_low, self.tau_high)
        return -4 / tau * self.gate(tokens) * tokens.advantages

    def gate(self, tokens: Tokens) -> Float[Tensor, "*shape"]:
        """σ(τ(ρ − 1)), τ by the sign of A."""
        tau = by_sign(tokens.advantages, self.tau_low, self.tau_high)
        return torch.sigmoid(tau * (tokens.ratio - 1))


@dataclass(frozen=True)
class DivergencePenalty(Choice):
    """DRPO: −ρA + |A|/(2δ) · μ(ρ − 1)², a slope where DPPO has a wall.

    The weight is ρ(1 − sign(A)(π − μ)/δ), with μ from `logp_old`: 0 where DPPO's binary total
    variation reaches `delta`, negative beyond, so that a token is pulled back; above ρ for a token
    on its way back. Source: DRPO, arXiv:2606.09821. Chapter 11.
    """

    delta: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta <= 0:
            raise ValueError(f"delta is a change of probability above 0, got {self.delta}")

    def weigh(self, tokens: Tokens) -> Weights:
        """ρ(1 − sign(A)(π − μ)/δ); every token is kept."""
        change = tokens.logp.exp() - tokens.logp_old.exp()
        slope = 1 - tokens.advantages.sign() * change / self.delta
        return Weights(tokens.ratio * slope, tokens.mask)


@dataclass(frozen=True)
class TaperedWeight(Choice):
    """TOPR: good answers weigh 1, whatever the ratio; bad ones min(ρ, 1), so that they fade.

    The paper's ratio is that of the whole answer, ratio="sequence_product"; with "token" every
    token fades by itself. Source: TOPR, arXiv:2503.14286. Chapter 11.
    """

    def weigh(self, tokens: Tokens) -> Weights:
        """1 where A > 0, else min(ρ, 1); every token is kept."""
        weight = torch.where(tokens.advantages > 0, 1.0, tokens.ratio.clamp(max=1))
        return Weights(weight, tokens.mask)


@dataclass(frozen=True)
class RatioWindow(Choice):
    """GLM-5's double-sided mask: a token outside 1−low < ρ < 1+high teaches nothing; else ρ.

    Whatever the sign of A, so that a token on its way back is stopped as well. The papers' ratio is
    that to the sampler: old_logprobs="sampler". As the weight of π_old/μ instead it is IcePop's
    (`SamplerCorrection`). Source: GLM-5, arXiv:2602.15763, §4.1.2.
    """

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low < 0 or self.high < 0:
            raise ValueError(f"low and high are distances from 1, got {self.low} and {self.high}")

    def weigh(self, tokens: Tokens) -> Weights:
        """ρ, kept where 1−low < ρ < 1+high."""
        ratio = tokens.ratio
        return Weights(ratio, (ratio > 1 - self.low) & (ratio < 1 + self.high))


@dataclass(frozen=True)
class SequenceMask(Choice):
    """DeepSeek-V3.2: a bad answer that has drifted teaches nothing; on the rest, PPO's clip.

    Left out where A < 0 and the mean of log μ − log π_θ over the answer's tokens exceeds `drift`,
    in nats: that is, where GSPO's ratio is below e^−drift. The clip takes the tokens' own ratios.
    The paper names no value of `drift`.
    Source: DeepSeek-V3.2, arXiv:2512.02556, off-policy sequence masking. Chapter 11.
    """

    needs_ratio: ClassVar = ("sequence",)
    drift: float
    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drift < 0:
            raise ValueError(f"drift is a mean log-ratio ≥ 0, got {self.drift}")

    def weigh(self, tokens: Tokens) -> Weights:
        """PPO's clip of the tokens' ratios, without bad answers that have drifted."""
        drifted = -tokens.ratio.log() > self.drift
        clip = RatioClip(self.low, self.high)
        weight, keep = clip.weigh(replace(tokens, ratio=tokens.token_ratio))
        return Weights(weight, keep & ~(drifted & (tokens.advantages < 0)))


@dataclass(frozen=True)
class SequenceGamma(Choice):
    """VESPO: every token of an answer weighs W^k e^{λ(1−W)}, W the ratio of the whole answer.

    1 at W = 1, 0 at W = 0 and for large W; it peaks at W = k/λ, so the defaults let good answers
    peak below 1 and bad ones above.
    Source: VESPO, arXiv:2602.10693; values as in TRL. Chapter 11.
    """

    needs_ratio: ClassVar = ("sequence_product",)
    k_low: float = 3.0
    lambda_low: float = 2.0
    k_high: float = 2.0
    lambda_high: float = 3.0

    def weigh(self, tokens: Tokens) -> Weights:
        """W^k e^{λ(1−W)}, k and λ by the sign of A; every token is kept."""
        whole, advantages = tokens.ratio, tokens.advantages
        k = by_sign(advantages, self.k_low, self.k_high)
        rate = by_sign(advantages, self.lambda_low, self.lambda_high)
        return Weights((rate * (1 - whole) + k * whole.log()).exp(), tokens.mask)


@dataclass(frozen=True)
class GeometricClip(Choice):
    """GMPO: a whole answer weighs the geometric mean of its tokens' clipped ratios.

    The loss of each of its tokens is −A (Π_t ρ̃_t)^{1/|y|}, with log ρ_t clipped to [−low, high] on
    the side on which PPO clips; the tokens that are clipped keep no gradient.
    Source: GMPO, arXiv:2507.20673, Eq. 4; as verl's `geo_mean`. Chapter 11.
    """

    needs_ratio: ClassVar = ("token",)
    low: float = 0.4
    high: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low < 0 or self.high < 0:
            raise ValueError(f"low and high are log-ratios ≥ 0, got {self.low} and {self.high}")

    def weigh(self, tokens: Tokens) -> Weights:
        """(Π_t ρ̃_t)^{1/|y|} for all tokens of an answer; kept where ρ is not clipped."""
        moved, advantages = tokens.ratio.log(), tokens.advantages
        stopped = torch.where(advantages > 0, moved > self.high, moved < -self.low)
        clipped = torch.where(stopped, by_sign(advantages, -self.low, self.high), moved)
        mean = clipped.sum(1, keepdim=True) / tokens.mask.sum(1, keepdim=True).clamp(min=1)
        return Weights(mean.exp().expand_as(moved), ~stopped)

    def loss(self, tokens: Tokens) -> Float[Tensor, "*shape"]:
        """−(Π_t ρ̃_t)^{1/|y|} A."""
        return -self.weigh(tokens).weight * tokens.advantages


def by_sign(advantages: Tensor, low: float, high: float) -> Tensor:
    """`high` where the advantage is positive, else `low`, in the precision of the advantages."""
    return torch.full_like(advantages, low).masked_fill(advantages > 0, high)
