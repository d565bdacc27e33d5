"""Exact KL between enumerable policies, and what its three one-sample estimators really do."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy

__all__ = ["KL_KINDS", "KLEstimator", "exact_kl", "exact_kl_gradient", "exact_reverse_kl_gradient"]
__all__ += ["kl_estimator", "kl_estimator_table"]

KL_KINDS = ("k1", "k2", "k3")


@dataclass(frozen=True, eq=False)
class KLEstimator:
    """One estimator k(y) of KL(π ‖ π_ref), y ~ π, in its two uses.

    `mean`, `sd`: of k(y), in nats. `loss_gradient`: E[∇_θ k(y)], what minimising k on fixed
    samples follows. `reward_gradient`: E[k(y) ∇_θ log π(y)], what subtracting k from the reward
    follows.
    """

    kind: str
    mean: float
    sd: float
    loss_gradient: Float[Tensor, " D"]
    reward_gradient: Float[Tensor, " D"]


def exact_kl(policy: EnumerablePolicy, reference: EnumerablePolicy) -> float:
    """KL(π ‖ π_ref) = Σ_y π(y) log(π(y) / π_ref(y)) in nats."""
    return _kl(policy.logp, reference.logp).item()


def exact_kl_gradient(policy: EnumerablePolicy, reference: EnumerablePolicy) -> Float[Tensor, " D"]:
    """∇_θ KL(π_θ ‖ π_ref), by automatic differentiation of the sum."""
    kl = torch.func.grad(lambda z: _kl(policy.log_probs(z), reference.logp))
    gradient: Tensor = kl(policy.logits)
    return gradient.flatten()


def exact_reverse_kl_gradient(
    policy: EnumerablePolicy, reference: EnumerablePolicy
) -> Float[Tensor, " D"]:
    """∇_θ KL(π_ref ‖ π_θ): the other direction."""
    kl = torch.func.grad(lambda z: _kl(reference.logp, policy.log_probs(z)))
    gradient: Tensor = kl(policy.logits)
    return gradient.flatten()


def kl_estimator(policy: EnumerablePolicy, reference: EnumerablePolicy, kind: str) -> KLEstimator:
    """Exact moments and gradients of k1, k2 or k3, with u = log π_ref(y) - log π(y), y ~ π.

    k1 = -u,  k2 = u²/2,  k3 = e^u - 1 - u

    As values k1 and k3 are unbiased and k2 is not. As losses it is the other way round: k1
    averages to no gradient at all, k2 gives ∇KL(π ‖ π_ref), and k3 gives ∇KL(π_ref ‖ π).
    Raises `ValueError` for another kind. Source: Schulman 2020, "Approximating KL divergence".
    Chapter 03.
    """
    p, k = policy.probs, _estimate(reference.logp - policy.logp, kind)

    def loss(logits: Tensor) -> Tensor:
        return p @ _estimate(reference.logp - policy.log_probs(logits), kind)

    mean = p @ k
    return KLEstimator(
        kind=kind,
        mean=mean.item(),
        sd=(p @ (k - mean).square()).sqrt().item(),
        loss_gradient=torch.func.grad(loss)(policy.logits).flatten(),
        reward_gradient=policy.scores.T @ (p * k),
    )


def kl_estimator_table(
    policy: EnumerablePolicy, reference: EnumerablePolicy
) -> list[dict[str, str | float]]:
    """One row per estimator: mean, bias and sd of the value, and how far each use points wrong.

    `loss_error` and `reward_error` are ‖gradient - ∇KL‖ / ‖∇KL‖.
    """
    true, true_gradient = exact_kl(policy, reference), exact_kl_gradient(policy, reference)

    def error(gradient: Tensor) -> float:
        return float((gradient - true_gradient).norm() / true_gradient.norm())

    return [
        {
            "kind": e.kind,
            "mean": e.mean,
            "bias": e.mean - true,
            "sd": e.sd,
            "loss_error": error(e.loss_gradient),
            "reward_error": error(e.reward_gradient),
        }
        for e in (kl_estimator(policy, reference, kind) for kind in KL_KINDS)
    ]


def _kl(logp: Tensor, logq: Tensor) -> Tensor:
    return logp.exp() @ (logp - logq)


def _estimate(u: Tensor, kind: str) -> Tensor:
    match kind:
        case "k1":
            return -u
        case "k2":
            return u.square() / 2
        case "k3":
            return u.expm1() - u
    raise ValueError(f"unknown KL estimator {kind!r}: choose from {', '.join(KL_KINDS)}")
