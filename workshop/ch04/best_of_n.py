"""Best-of-n from N samples a problem: what the answer of the highest score is worth."""

from math import comb, log

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


def best_of_n_mean(scores: ArrayLike, values: ArrayLike, n: int) -> Float[np.ndarray, " problems"]:
    """Expected value of the sample with the highest score among n, for every problem.

    `scores` and `values` are (problems, N). Averages over all subsets of n of the N samples, so it
    is unbiased where taking the best of the first n would be noisy: the sample with i others below
    it is the best of comb(i, n − 1) subsets. Where the score is the value, 0 or 1, this is pass@n.
    Raises `ValueError` unless 1 ≤ n ≤ N. Chapter 04.
    """
    scores, values = np.asarray(scores, dtype=float), np.asarray(values, dtype=float)
    total = scores.shape[1]
    if not 1 <= n <= total:
        raise ValueError(f"the best of n = {n} needs at least as many samples, there are {total}")
    weights = np.array([comb(i, n - 1) for i in range(total)], dtype=float) / comb(total, n)
    return np.take_along_axis(values, scores.argsort(axis=1, kind="stable"), 1) @ weights


def best_of_n_kl(n: int) -> float:
    """log n − (n − 1)/n: how far, in nats, best-of-n is from the policy it picks from.

    Exact where no two samples score alike; the largest it can be anywhere.
    Source: Stiennon et al. 2020, arXiv:2009.01325, appendix G.3; as a bound Beirami et al. 2024,
    arXiv:2401.01879. Chapter 04.
    """
    if n < 1:
        raise ValueError(f"n counts samples, at least 1, got {n}")
    return log(n) - (n - 1) / n
