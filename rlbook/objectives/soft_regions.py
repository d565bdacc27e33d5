"""Trust regions without a wall per token: weights that fade or turn round, and votes on answers.

The same call as those of `trust_regions`, and the same law for the gradient,
∂loss/∂log π_θ(y_t) = −weight_t · A_t. None of them is a row of the table; any row takes one:

    replace(METHODS["grpo"], trust_region=SoftGate())
    replace(METHODS["dppo"], trust_region=DivergencePenalty(0.15))
    replace(METHODS["gspo"], trust_region=SequenceMask(0.1))                           (sequence)
    replace(METHODS["gspo"], ratio="sequence_product", trust_region=SequenceGamma())

The last two judge a whole answer and need its ratio: "sequence", or the product. Chapter 11.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlbook.objectives.ratios import token_ratio
from rlbook.objectives.trust_regions import RatioClip, Surrogate, require


@dataclass(frozen=True)
class SoftGate:
    """SAPO: −(4/τ) σ(τ(ρ − 1)) A. The weight 4σ(1−σ)ρ is 1 at ρ = 1 and fades on both sides.

    A larger τ fades sooner: `tau_low` for A ≤ 0, which the paper wants stricter, `tau_high` for
    A > 0. Source: SAPO, arXiv:2511.20347; values as in TRL and verl. Chapter 11.
    """

    tau_low: float = 1.05
    tau_high: float = 1.0

    def __post_init__(self) -> None:
        if self.tau_low <= 0 or self.tau_high <= 0:
            raise ValueError(f"τ must be positive, got {self.tau_low} and {self.tau_high}")

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        ratio = require(ratio, "SoftGate")
        tau = by_sign(advantages, self.tau_low, self.tau_high)
        gate = torch.sigmoid(tau * (ratio - 1))
        weight = (4 * gate * (1 - gate) * ratio).detach()
        return Surrogate(-4 / tau * gate * advantages, everything(logp), weight)


@dataclass(frozen=True)
class DivergencePenalty:
    """DRPO: −ρA + |A|/(2δ) · μ(ρ − 1)², a slope where DPPO has a wall.

    The weight is ρ(1 − sign(A)(π − μ)/δ), with μ from `logp_old`: 0 where DPPO's binary total
    variation reaches `delta`, negative beyond, so that a token is pulled back; above ρ for a token
    on its way back. Source: DRPO, arXiv:2606.09821. Chapter 11.
    """

    delta: float = 0.15

    def __post_init__(self) -> None:
        if self.delta <= 0:
            raise ValueError(f"delta is a change of probability above 0, got {self.delta}")

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        ratio = require(ratio, "DivergencePenalty").detach()
        change = (logp.exp() - logp_old.exp()).detach()
        weight = ratio * (1 - advantages.sign() * change / self.delta)
        return Surrogate(-weight * advantages * logp, everything(logp), weight)


@dataclass(frozen=True)
class TaperedWeight:
    """TOPR: good answers weigh 1, whatever the ratio; bad ones min(ρ, 1), so that they fade.

    The paper's ratio is that of the whole answer, ratio="sequence_product"; with "token" every
    token fades by itself. Source: TOPR, arXiv:2503.14286. Chapter 11.
    """

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        ratio = require(ratio, "TaperedWeight").detach()
        weight = torch.where(advantages > 0, 1.0, ratio.clamp(max=1))
        return Surrogate(-weight * advantages * logp, everything(logp), weight)


@dataclass(frozen=True)
class SequenceMask:
    """DeepSeek-V3.2: a bad answer that has drifted teaches nothing; on the rest, PPO's clip.

    Left out where A < 0 and the mean of log μ − log π_θ over the answer's tokens exceeds `drift`,
    in nats: that is, where GSPO's ratio is below e^−drift. Needs ratio="sequence"; the clip takes
    the tokens' own ratios. The paper names no value of `drift`.
    Source: DeepSeek-V3.2, arXiv:2512.02556, off-policy sequence masking. Chapter 11.
    """

    drift: float
    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        if self.drift < 0:
            raise ValueError(f"drift is a mean log-ratio ≥ 0, got {self.drift}")

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        drifted = -require(ratio, "SequenceMask").detach().log() > self.drift
        clip = RatioClip(self.low, self.high)
        inner = clip(logp, logp_old, token_ratio(logp, logp_old), advantages)
        learns = ~(drifted & (advantages < 0))
        return Surrogate(inner.loss * learns, inner.keep & learns, inner.weight * learns)


@dataclass(frozen=True)
class SequenceGamma:
    """VESPO: every token of an answer weighs W^k e^{λ(1−W)}, W the ratio of the whole answer.

    1 at W = 1, 0 at W = 0 and for large W; it peaks at W = k/λ, so the defaults let good answers
    peak below 1 and bad ones above. Needs ratio="sequence_product".
    Source: VESPO, arXiv:2602.10693; values as in TRL. Chapter 11.
    """

    k_low: float = 3.0
    lambda_low: float = 2.0
    k_high: float = 2.0
    lambda_high: float = 3.0

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        ratio: Tensor | None,
        advantages: Tensor,
        divergence: Tensor | None = None,
    ) -> Surrogate:
        whole = require(ratio, "SequenceGamma").detach()
        k = by_sign(advantages, self.k_low, self.k_high)
        rate = by_sign(advantages, self.lambda_low, self.lambda_high)
        weight = (rate * (1 - whole) + k * whole.log()).exp()
        return Surrogate(-weight * advantages * logp, everything(logp), weight)


def by_sign(advantages: Tensor, low: float, high: float) -> Tensor:
    """`high` where the advantage is positive, else `low`, in the precision of the advantages."""
    return torch.full_like(advantages, low).masked_fill(advantages > 0, high)


def everything(logp: Tensor) -> Tensor:
    """True for every token: no gradient is cut off."""
    return torch.ones_like(logp, dtype=torch.bool)
