"""The bandit with a rough sampler: what must hold whatever the numbers, and its two findings."""

import pytest
import torch

from rlbook.objectives import DivergenceMask, NoTrustRegion, RatioClip
from workshop.ch11.mismatch_bandit import mismatch_bandit

TV = DivergenceMask("tv", 0.15, 0.15)
PLACES = [(mask, weight) for mask in ("sampler", "trainer") for weight in ("sampler", "trainer")]
SMALL = {"runs": 3, "contexts": 4, "arms": 5, "batches": 6}


@pytest.mark.parametrize("region", [TV, RatioClip(0.2, 0.28)], ids=["tv", "clip"])
def test_without_an_error_every_place_is_the_same(region):
    first, *others = (mismatch_bandit(region, 0.5, *at, noise=0.0, **SMALL) for at in PLACES)
    for run in others:
        torch.testing.assert_close(run.best, first.best, rtol=0, atol=1e-9)
    assert first.correlation == pytest.approx(1) and first.masked == 0


def test_without_a_mask_only_the_place_of_the_weight_counts():
    runs = {at: mismatch_bandit(NoTrustRegion(), 0.3, *at, **SMALL) for at in PLACES}
    for weight in ("sampler", "trainer"):
        a, b = runs["sampler", weight].best, runs["trainer", weight].best
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert (runs["sampler", "sampler"].best - runs["sampler", "trainer"].best).abs().max() > 1e-4


def test_only_a_mask_at_the_sampler_silences_before_the_first_update():
    for mask, weight in PLACES:
        run = mismatch_bandit(RatioClip(0.2, 0.28), 0.5, mask, weight, **SMALL)
        assert (run.masked > 0) == (mask == "sampler")


def test_the_first_step_of_a_fresh_policy_is_the_reward_gradient():
    """θ = 0: no error yet. One step by hand, from the probabilities it leads to."""
    setting = {"runs": 1, "contexts": 1, "arms": 2, "samples": 4000, "updates": 1, "batches": 1}
    best = mismatch_bandit(NoTrustRegion(), 1.0, **setting).best.item()
    # gradient of p(a) r(a) at p = ½: ± ¼ (0.7 − 0.3) = ± 0.1, so the logits end 0.2 apart
    assert best == pytest.approx(torch.tensor(0.2).sigmoid().item(), abs=0.01)


@pytest.mark.slow
def test_a_lasting_error_makes_a_mask_at_the_sampler_fail():
    at_sampler, at_trainer = (
        mismatch_bandit(RatioClip(0.2, 0.28), 0.5, mask, lasting=True).best.mean()
        for mask in ("sampler", "trainer")
    )
    assert at_trainer > at_sampler + 0.2


@pytest.mark.slow
def test_at_a_large_step_a_weight_without_the_sampler_fails():
    with_it, without = (
        mismatch_bandit(TV, 2.0, "trainer", weight).best.mean() for weight in ("sampler", "trainer")
    )
    assert with_it > without + 0.1
