from math import exp, log

import pytest
import torch

from rlbook.objectives import DivergenceMask, NoTrustRegion, RatioClip, Tokens, WeightClip, weigh
from workshop.shared.worlds.batch_reuse import rare_token_world, reuse_batches, reuse_sampled

REGIONS = {
    "none": NoTrustRegion(),
    "clip": RatioClip(),
    "higher": RatioClip(0.2, 0.28),
    "cispo": WeightClip(1.2),
    "tv": DivergenceMask(),
}
PROBS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.2], dtype=torch.float64)


def test_one_update_per_batch_never_leaves_the_window():
    """At ρ = 1 every trust region is the same policy gradient."""
    runs = [
        reuse_batches(PROBS, REWARDS, region, 5, updates=1).probs for region in REGIONS.values()
    ]
    for probs in runs[1:]:
        assert torch.equal(probs, runs[0])


def test_sgd_step_is_the_gradient_of_the_clipped_surrogate():
    logits = torch.tensor([0.5, -0.6, 0.1, 0.0], dtype=torch.float64)
    advantage = REWARDS - PROBS @ REWARDS

    def surrogate(z):
        ratio = z.softmax(-1) / PROBS
        return PROBS @ torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)

    p = logits.softmax(-1)
    weight = weigh(RatioClip(), Tokens.of(p.log(), PROBS.log(), advantage)).weight
    pull = PROBS * weight * advantage
    step = pull - p * pull.sum()
    torch.testing.assert_close(step, torch.func.grad(surrogate)(logits), atol=1e-12, rtol=0)
    assert ((p / PROBS > 1.2) & (advantage > 0)).any()
    assert ((p / PROBS < 0.8) & (advantage < 0)).any()


def test_unmasked_sgd_climbs_the_reward():
    run = reuse_batches(PROBS, REWARDS, NoTrustRegion(), 1, 1, lr=1e-4, natural=False)
    gradient = PROBS * (REWARDS - PROBS @ REWARDS)
    gain = (run.probs[1] - run.probs[0]) @ REWARDS
    assert gain.item() == pytest.approx(1e-4 * (gradient @ gradient).item(), rel=1e-3)


def test_growth_of_a_rare_token_by_hand():
    """16 natural steps of .1 · .6: e^.96 unmasked; with ε = .2 the first step beyond 1.2."""
    probs, rewards = rare_token_world(0.001)
    growth = {
        name: (run.probs[1, 0] / run.probs[0, 0]).item()
        for name, run in {
            n: reuse_batches(probs, rewards, w, 1) for n, w in REGIONS.items()
        }.items()
    }
    assert growth["none"] == pytest.approx(exp(0.96), rel=0.01)
    assert growth["tv"] == growth["none"]
    assert growth["clip"] == pytest.approx(exp(0.06 * 4), rel=0.01)
    assert growth["higher"] == pytest.approx(exp(0.06 * 5), rel=0.01)


def test_masking_starts_when_updates_leave_the_window():
    probs, rewards = rare_token_world(0.01)
    advantage = 0.9 - (probs @ rewards).item()
    for updates in (1, 2, 3, 4, 5, 6):
        masked = reuse_batches(probs, rewards, RatioClip(), 1, updates).masked[0, 0]
        # the last update itself is not followed by a check
        assert (masked > 0) == ((updates - 1) * 0.1 * advantage > log(1.2) + 0.01)


@pytest.mark.parametrize(
    ("rare", "expected"),
    [(0.001, [8, 25, 20, 9, 8]), (0.01, [5, 15, 13, 6, 6]), (0.05, [4, 9, 8, 4, 4])],
)
def test_batches_until_the_rare_token_wins(rare, expected):
    probs, rewards = rare_token_world(rare)
    runs = [reuse_batches(probs, rewards, region, 30) for region in REGIONS.values()]
    assert [run.batches_until(0) for run in runs] == expected
    assert all(len(run.probs) == 31 and len(run.masked) == 30 for run in runs)


def test_capped_weights_mask_nothing():
    probs, rewards = rare_token_world(0.01)
    assert reuse_batches(probs, rewards, WeightClip(1.2), 10).masked.sum() == 0
    assert reuse_batches(probs, rewards, RatioClip(), 10).masked[:, 0].mean() > 0.5


def test_entropy_and_never():
    run = reuse_batches(PROBS, 0 * REWARDS, NoTrustRegion(), 2)
    assert run.entropy[-1].item() == pytest.approx(-(PROBS * PROBS.log()).sum().item())
    assert run.batches_until(0) is None


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_large_sample_follows_the_expectation(region):
    pays = torch.tensor([1.0, 0.0, 0.0, 1.0])
    exact = reuse_batches(PROBS, pays.double(), region, 2, 10, lr=0.4, natural=False)
    sampled = reuse_sampled(PROBS, pays, region, 2, 40_000, 10, lr=0.4, runs=3)
    assert (sampled - exact.probs[:, None]).abs().max() < 0.01


def test_a_small_batch_reused_often_needs_the_clip():
    """16 samples, 64 updates each: without a mask a lucky arm is driven to probability one."""
    probs, solve = torch.full((10,), 0.1), torch.full((10,), 0.5)
    solve[0] = 0.6
    final = {
        name: reuse_sampled(probs, solve, REGIONS[name], 30, 16, 64, lr=1.0, runs=30)[-1]
        for name in ("none", "clip")
    }
    entropy = {name: torch.special.entr(p).sum(1).mean().item() for name, p in final.items()}
    assert entropy["clip"] > 3 * entropy["none"]
    again = reuse_sampled(probs, solve, REGIONS["clip"], 30, 16, 64, lr=1.0, runs=30)[-1]
    assert torch.equal(again, final["clip"])


def test_impossible_world_is_named():
    with pytest.raises(ValueError, match="leave nothing"):
        rare_token_world(0.2)
