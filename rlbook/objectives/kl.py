"""KL divergence to a reference policy: its value and its gradient are different questions.

Direction throughout: KL(π ‖ π_ref) = E_{y∼π}[log π(y) − log π_ref(y)], in nats, estimated from
samples of π. With d = log π − log π_ref:  k1 = d,  k2 = d²/2,  k3 = e^{−d} − 1 + d.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from pydantic import FiniteFloat
from torch import Tensor

from rlbook.objectives.options import Choice
from rlbook.objectives.ratios import MAX_LOG_RATIO
from rlbook.objectives.shapes import check_same_shape

__all__ = ["KLPenalty", "kl_estimate", "kl_loss"]

Kind = Literal["k1", "k2", "k3"]
Gradient = Literal["k2", "score", "naive"]


@dataclass(frozen=True)
class KLPenalty(Choice):
    """β·KL(π_θ ‖ π_ref), subtracted from the rewards or added to the loss.

    `kind` is the estimator of the value; `gradient` applies to `where="loss"` (see `kl_loss`).
    In the reward, a method without a critic charges every token its whole completion's penalty.
    `cap` is the most that the estimate of one token may be (verl: 10 for k3): without it a single
    token at d = −20 has a k3 of 5e8 and owns the loss.
    """

    kind: Kind = "k1"
    beta: FiniteFloat = 0.01
    where: Literal["loss", "reward"] = "loss"
    gradient: Gradient = "k2"
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 0:
            raise ValueError(f"beta must be ≥ 0, got {self.beta}")
        if self.cap is not None and self.cap <= 0:
            raise ValueError(f"cap is the most nats of a token, above 0: got {self.cap:g}")


def kl_estimate(
    logp: Float[Tensor, "..."],
    logp_ref: Float[Tensor, "..."],
    kind: Kind = "k3",
    cap: float | None = None,
) -> Float[Tensor, "..."]:
    """Per-token estimate of KL(π ‖ π_ref) at tokens sampled from π: for values, not for training.

    k1 is unbiased and can be negative; k2 is biased; k3 is unbiased and never negative. k3 takes
    d below −`MAX_LOG_RATIO` for that bound, so that its exponential never overflows. `cap` bounds
    the estimate itself.
    For KL(π_old ‖ π_θ) on rollouts of π_old call it with (logp_old, logp).
    Source: Schulman 2020, "Approximating KL divergence". Chapter 03.
    """
    check_same_shape(logp=logp, logp_ref=logp_ref)
    d = logp - logp_ref
    if kind == "k3":
        d = d.clamp(min=-MAX_LOG_RATIO)
        d = (-d).expm1() + d
    elif kind == "k2":
        d = d.square() / 2
    elif kind != "k1":
        raise ValueError(f"kind must be one of k1, k2, k3, got {kind!r}")
    return d if cap is None else d.clamp(max=cap)


def kl_loss(
    logp: Float[Tensor, "..."],
    logp_ref: Float[Tensor, "..."],
    kind: Kind = "k3",
    gradient: Gradient = "k2",
    ratio: Float[Tensor, "..."] | None = None,
    cap: float | None = None,
) -> Float[Tensor, "..."]:
    """Per-token KL(π_θ ‖ π_ref) penalty: the value of `kind`, and a gradient chosen on its own.

    `"k2"`     gradient d·∇log π, that of the KL on-policy (straight-through).
    `"score"`  value and gradient of ρ·k: right for k1 and k3, off-policy too. `ratio` is
               ρ = π_θ/μ with its gradient, as `token_ratio` gives it (default: ρ = 1, on-policy).
    `"naive"`  differentiates the estimate itself, as GRPO does: k1 pushes nowhere on average,
               k3 follows the gradient of KL(π_ref ‖ π_θ), the other direction.
    Where `cap` bounds the estimate its own gradient is 0; that of `"k2"` stays.
    Sources: Schulman 2020; GRPO, arXiv:2402.03300, Eq. 4 (k3, naive). Chapters 03 and 05.
    """
    if gradient not in ("k2", "score", "naive"):
        raise ValueError(f"gradient must be one of k2, score, naive, got {gradient!r}")
    estimate = kl_estimate(logp, logp_ref.detach(), kind, cap)
    if gradient == "naive":
        return estimate
    if gradient == "k2":
        k2 = kl_estimate(logp, logp_ref.detach(), "k2")
        return estimate.detach() + k2 - k2.detach()
    if ratio is None:
        ratio = (logp - logp.detach()).exp()
    return ratio * estimate
