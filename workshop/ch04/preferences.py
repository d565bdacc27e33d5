"""Preferences, the leash and best-of-n with few enough answers to add up."""

from jaxtyping import Float
from torch import Tensor

from rlbook.exact.policies import EnumerablePolicy, SoftmaxPolicy


def preference_probs(worth: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """Bradley–Terry: P(i is preferred to j) = σ(r_i − r_j). Chapter 04."""
    return (worth[:, None] - worth).sigmoid()


def flipped(preferred: Float[Tensor, "K K"], noise: float) -> Float[Tensor, "K K"]:
    """The same preferences with each label turned round with probability `noise`."""
    return (1 - noise) * preferred + noise * preferred.T


def kl_optimum(
    reference: EnumerablePolicy, rewards: Float[Tensor, " K"], beta: float
) -> SoftmaxPolicy:
    """The policy with the largest E[r] − β KL(π ‖ π_ref): π(y) ∝ π_ref(y) exp(r(y) / β).

    Raises `ValueError` for β ≤ 0, where the optimum is the best answer alone. Chapter 04.
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}")
    return SoftmaxPolicy((reference.logp + rewards / beta).log_softmax(-1))


def best_of_n(policy: EnumerablePolicy, scores: Float[Tensor, " K"], n: int) -> Float[Tensor, " K"]:
    """Probability of each answer to be the one with the highest score among n samples.

    Σ over answers up to a score, to the power n, minus the same below it; answers of equal score
    share by their own probabilities, as when the first of them is taken. Chapter 04.
    """
    p = policy.probs
    below = (scores[None, :] < scores[:, None]).double() @ p
    level = (scores[None, :] == scores[:, None]).double() @ p
    return p / level * ((below + level).pow(n) - below.pow(n))
