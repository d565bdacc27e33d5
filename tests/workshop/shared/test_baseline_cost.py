"""Costs of baselines: by hand, and by listing every batch of answers of a two-answer policy."""

from itertools import product

import pytest
import torch

from workshop.shared.worlds.baseline_cost import cost, relative_noise, rollouts_needed


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("b", [-1.0, 0.0, 0.6])
def test_rollouts_needed_with_two_answers(p, b):
    """Score 1 - p or -p: E[(r - b)² s²] / (p (1 - p))² - 1."""
    second = p * ((1 - b) * (1 - p)) ** 2 + (1 - p) * (b * p) ** 2
    expected = second / (p * (1 - p)) ** 2 - 1
    assert rollouts_needed(p, 0.0, 0, b) == pytest.approx(expected, abs=1e-12)
    assert rollouts_needed(p, 0.5, 0, b + 0.5) == pytest.approx(expected, abs=1e-12)


def test_relative_noise_by_hand():
    rewards = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    pulls = torch.tensor([1.0, 1.0, 6.0], dtype=torch.float64)
    noise = relative_noise(rewards, pulls, torch.tensor([0.0, 0.25, 0.5, -1.0]).double())
    assert noise.tolist() == pytest.approx([1, 0.75, 1, 7])


def variance(p, n, advantages):
    """Of the mean of A·score over n answers, right with probability p, by listing all batches.

    Every answer carries one more token, a fair coin: score ±1/2, without a say in the advantage.
    """
    first = second = coin = 0.0
    for batch in product((1.0, 0.0), repeat=n):
        chance = p ** sum(batch) * (1 - p) ** (n - sum(batch))
        scores, weights = [r - p for r in batch], advantages(batch)
        g = sum(a * s for a, s in zip(weights, scores, strict=True)) / n
        first, second = first + chance * g, second + chance * g * g
        coin += chance * sum(a * a for a in weights) / n**2 / 4
    return second - first**2 + coin


@pytest.mark.parametrize("p", [0.3, 0.7])
@pytest.mark.parametrize("n", [2, 5])
def test_cost_with_two_answers_and_one_other_token(p, n):
    right, wrong = p * ((1 - p) ** 2 + 1 / 4), (1 - p) * (p**2 + 1 / 4)  # of the squared scores
    optimal, greedy = right / (right + wrong), float(p > 0.5)
    best = variance(p, n, lambda batch: [r - optimal for r in batch])
    expected = {
        "none": variance(p, n, lambda batch: batch),
        "siblings": variance(p, n, lambda batch: [r - (sum(batch) - r) / (n - 1) for r in batch]),
        "greedy": variance(p, n - 1, lambda batch: [r - greedy for r in batch]),
    }
    for name, value in expected.items():
        assert cost(name, p, n, fillers=1) == pytest.approx(value / best, rel=1e-9), name
    moved = variance(p, n, lambda batch: [r + 0.5 for r in batch])
    assert cost("none", p, n, 0.5, fillers=1) == pytest.approx(moved / best, rel=1e-9)
    assert cost("siblings", p, n, 0.5, fillers=1) == cost("siblings", p, n, fillers=1)
    free = expected["greedy"] * (n - 1) / n
    assert cost("greedy", p, n, fillers=1, free=True) == pytest.approx(free / best, rel=1e-9)
