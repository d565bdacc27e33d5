"""Figures of chapter 02: noise of the policy gradient against the baseline."""

import pytest
import torch

from rlbook.viz.chapters.ch02 import baseline_explorer, relative_noise, rollouts_needed


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


def test_explorer_reacts_to_each_control():
    explorer = baseline_explorer()
    for name, value in (("p", 0.3), ("shift", 1.0), ("fillers", 3)):
        before = explorer.image.value
        explorer.controls[name].value = value
        assert explorer.image.value != before, name
