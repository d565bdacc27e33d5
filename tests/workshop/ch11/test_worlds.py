"""Tokens of rounded copies, and what a mismatch leaves of a batch, against other counts."""

import numpy as np
import pytest
import torch
from torch import nn

from workshop.ch11 import checks, worlds
from workshop.ch11.claims import effective_share


def test_a_sampler_that_is_the_policy_moves_no_token():
    model, _ = worlds.load_policy("tiny")
    table = worlds.by_probability(worlds.sampled_by(model, prompts=2))
    assert table["tokens"].sum() > 100
    assert table.drop(columns="tokens").to_numpy().max() < 1e-4


def test_bands_count_what_left_the_window_and_what_moved_far():
    """0.05 → 0.07 is a ratio of 1.4; 0.95 → 0.76 one of 0.8 and a change of 0.19."""
    mu, pi = torch.tensor([0.05, 0.05, 0.95, 0.95]), torch.tensor([0.07, 0.05, 0.77, 0.95])
    table = worlds.by_probability((pi.log(), mu.log(), torch.ones(4)))
    assert table["ρ outside"].tolist() == [0.5, 0.0]
    assert table["|π−μ| > 0.15"].tolist() == [0.0, 0.5]
    assert table["mean |π−μ|"].tolist() == pytest.approx([0.01, 0.09])


def test_b2_by_hand():
    b2 = worlds.four_moves().loc["B2"]
    assert b2["π_old/μ"] == pytest.approx(0.010 / 0.007)
    assert b2["π−μ"] == pytest.approx(0.013)


@pytest.mark.parametrize("mismatch", [0.002, 0.006])
def test_the_effective_share_is_that_of_sampled_weights(mismatch):
    draws = np.random.default_rng(0).normal(size=(200, 8192))
    sigma = mismatch / np.abs(draws).mean()
    sums = np.random.default_rng(1).normal(scale=sigma * np.sqrt(8192), size=400_000)
    weights = np.exp(sums)
    found = weights.mean() ** 2 / (weights**2).mean()
    assert effective_share(mismatch, 8192) == pytest.approx(found, rel=0.03)


def test_two_models_that_differ_are_refused():
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    assert checks.same_weights(one, one) == 0
    with pytest.raises(ValueError, match="the same loss"):
        checks.same_weights(one, other)
