"""Best-of-n against brute force, pass@k and its KL."""

from itertools import combinations
from math import log

import numpy as np
import pytest

from rlbook.stats.pass_at_k import pass_at_k
from workshop.ch04.best_of_n import best_of_n_kl, best_of_n_mean

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_it_averages_over_all_subsets(n):
    scores, values = RNG.normal(size=(2, 3, 6))
    for row in range(3):
        best = [max(some, key=lambda i: scores[row, i]) for some in combinations(range(6), n)]
        expected = np.mean([values[row, i] for i in best])
        assert best_of_n_mean(scores, values, n)[row] == pytest.approx(expected)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_a_score_that_is_the_truth_gives_pass_at_n(n):
    right = RNG.integers(0, 2, size=(5, 16))
    expected = [pass_at_k(16, int(row.sum()), n) for row in right]
    assert best_of_n_mean(right, right, n) == pytest.approx(expected)


def test_a_score_against_the_truth_picks_the_worst():
    right = np.array([[0.0, 1.0, 1.0, 1.0]])
    assert best_of_n_mean(-right, right, 4) == pytest.approx([0.0])
    assert best_of_n_mean(-right, right, 1) == pytest.approx([0.75])


def test_the_kl_of_a_fine_grained_score():
    """With u uniform on [0, 1] best-of-n has the density n u^(n−1): its KL is an integral."""
    u = (np.arange(200_000) + 0.5) / 200_000
    for n in (1, 2, 8, 64):
        density = n * u ** (n - 1)
        terms = density * np.log(np.maximum(density, 1e-300))
        assert best_of_n_kl(n) == pytest.approx(terms.mean(), abs=2e-3)
    assert best_of_n_kl(1) == 0 and best_of_n_kl(4) == pytest.approx(log(4) - 0.75)


def test_errors_name_the_limit():
    with pytest.raises(ValueError, match=r"best of n = 5 .* there are 4"):
        best_of_n_mean([[1, 2, 3, 4]], [[0, 0, 1, 1]], 5)
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl(0)
