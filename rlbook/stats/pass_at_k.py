"""How many problems are solved by at least one of k completions."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

__all__ = ["biased_pass_at_k", "exact_pass_at_k", "pass_at_k", "pass_at_k_curve"]


def pass_at_k(samples: ArrayLike, correct: ArrayLike, k: int) -> Float[np.ndarray, "*prompts"]:
    """Unbiased estimate, prompt by prompt, of the chance that one of k completions is right.

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - Π_{i<k} (n - c - i) / (n - i)

    `samples` holds the n completions drawn and `correct` the c right ones; they broadcast. The
    product needs no factorials, so any n is safe. Raises `ValueError` where n < k (no unbiased
    estimate exists), for k < 1, and unless 0 ≤ c ≤ n.
    Source: Chen et al. 2021, arXiv:2107.03374, equation 1. Chapter 01.
    """
    check_counts(samples, correct, k)
    if (np.asarray(samples) < k).any():
        raise ValueError(
            f"pass@{k} needs at least {k} completions per prompt, got {np.min(samples)}: "
            "draw more or choose a smaller k"
        )
    n, c = (counts[..., None] for counts in np.broadcast_arrays(samples, correct))
    drawn = np.arange(k)
    return 1 - np.prod((n - c - drawn) / (n - drawn), axis=-1)  # type: ignore[no-any-return]


def pass_at_k_curve(
    samples: ArrayLike, correct: ArrayLike, ks: Iterable[int]
) -> Float[np.ndarray, " ks"]:
    """Mean over prompts of `pass_at_k`, one value per k."""
    return np.array([pass_at_k(samples, correct, k).mean() for k in ks])


def biased_pass_at_k(
    samples: ArrayLike, correct: ArrayLike, k: int
) -> Float[np.ndarray, "*prompts"]:
    """The tempting estimate 1 - (1 - c/n)^k, too low on average for every k > 1.

    (1 - p)^k is convex in p, so putting the noisy c/n in place of p overstates the chance of
    failing (Jensen). Here for contrast only. Source: arXiv:2107.03374, appendix A.
    """
    check_counts(samples, correct, k)
    return exact_pass_at_k(np.divide(correct, samples), k)


def exact_pass_at_k(solve_rate: ArrayLike, k: int) -> Float[np.ndarray, "*prompts"]:
    """pass@k of prompts whose solve rate p is known: 1 - (1 - p)^k."""
    return 1 - (1 - np.asarray(solve_rate, dtype=float)) ** k


def check_counts(samples: ArrayLike, correct: ArrayLike, k: int) -> None:
    """Raise `ValueError` unless these are whole numbers with 0 ≤ correct ≤ samples, and k ≥ 1."""
    n, c = np.broadcast_arrays(samples, correct)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if ((c < 0) | (c > n) | (n < 1)).any():
        raise ValueError("every prompt needs 0 ≤ correct ≤ samples and samples ≥ 1")
    if (c != np.floor(c)).any() or (n != np.floor(n)).any():
        raise ValueError("samples and correct are counts: pass whole numbers, not rates")
