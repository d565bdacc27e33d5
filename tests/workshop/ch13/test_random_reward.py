"""The clip under a coin: the closed form against `policy_loss`, the batch against a recursion."""

from dataclasses import replace
from math import isinf, log

import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from rlbook.objectives import METHODS, NoTrustRegion, RatioClip, Tokens, policy_loss, weigh
from workshop.ch13.random_reward import (
    LOG_SYMMETRIC,
    clipping_bias,
    logit,
    many_batches,
    one_batch,
    outcomes,
    window,
)

CLIP = RatioClip(0.2, 0.2)
OLD = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
NOW = torch.tensor([0.45, 0.26, 0.11, 0.18], dtype=torch.float64)


@pytest.mark.parametrize("region", [CLIP, LOG_SYMMETRIC, NoTrustRegion()])
def test_bias_is_the_expected_gradient_of_the_packages_loss(region):
    """Each answer with each coin is a completion of one token, weighted by its chance."""
    method = replace(METHODS["grpo"], kl=None, trust_region=region, aggregation="token_mean")
    logits = NOW.log().requires_grad_()
    expected = torch.zeros(4, dtype=torch.float64)
    for answer, chance in enumerate(OLD):
        for coin in (1.0, -1.0):
            logp = logits.log_softmax(-1)[answer].view(1, 1)
            old, mask = OLD[answer].log().view(1, 1), torch.ones(1, 1, dtype=torch.bool)
            advantage = torch.tensor([coin], dtype=torch.float64)
            loss = policy_loss(method, logp, old, advantage, mask).loss
            expected -= chance / 2 * torch.autograd.grad(loss, logits)[0]
    widths = (region.low, region.high) if isinstance(region, RatioClip) else (torch.inf, torch.inf)
    bias = clipping_bias(SoftmaxPolicy.from_probs(NOW), OLD, *widths)
    torch.testing.assert_close(bias, expected)


def test_there_is_no_bias_inside_the_window_and_outside_it_leads_back():
    inside = SoftmaxPolicy.from_probs([0.55, 0.28, 0.115, 0.055])
    assert clipping_bias(inside, OLD).abs().max() == 0
    bias = clipping_bias(SoftmaxPolicy.from_probs(NOW), OLD)
    assert bias[0] > 0 > bias[3]  # the first fell below its window, the last rose above


def test_windows_of_two_answers_by_hand():
    down, up = window(0.5)
    assert down == pytest.approx(log(1.2 / 0.8)) and up == pytest.approx(down)
    common, rare = window(0.85), window(0.15)
    assert common == pytest.approx(rare[::-1])
    assert common[0] == pytest.approx(logit(0.85) - logit(0.82))  # the rare one rises to .18
    assert common[1] == pytest.approx(logit(0.88) - logit(0.85))  # the rare one falls to .12
    assert all(isinf(side) for side in window(0.5, low=1.0, high=1.0))


def test_every_way_that_answers_and_coins_fall_is_counted():
    counts, chances = outcomes(0.7, 3)
    assert len(counts) == 20 and chances.sum().item() == pytest.approx(1)
    assert (chances @ counts).tolist() == pytest.approx([1.05, 1.05, 0.45, 0.45])


def moved(region, p=0.65, updates=4):
    logits, chances = one_batch(p, region, updates, answers=4, lr=0.5)
    return (chances @ (logits - logit(p))).item()


def test_one_answer_and_two_updates_against_a_walk_by_hand():
    def step(z, first, coin, start, region):
        p, old = torch.tensor(z).double().sigmoid(), torch.tensor(start).double().sigmoid()
        prob, before, score = (p, old, 1 - p) if first else (1 - p, 1 - old, -p)
        a = torch.tensor(coin, dtype=torch.float64)
        weight = weigh(region, Tokens.of(prob.log(), before.log(), a)).weight
        return z + (weight * a * score).item()

    start, chance, mean = logit(0.7), {True: 0.35, False: 0.15}, 0.0
    for one in ((f, c) for f in chance for c in (1.0, -1.0)):
        for two in ((f, c) for f in chance for c in (1.0, -1.0)):
            z = step(step(start, *one, start, CLIP), *two, start, CLIP)
            mean += chance[one[0]] * chance[two[0]] * (z - start)
    logits, chances = one_batch(0.7, CLIP, updates=2, answers=1, lr=1.0)
    assert (chances @ (logits - start)).item() == pytest.approx(mean)


def test_without_a_clip_or_with_one_update_a_coin_moves_nothing_on_average():
    assert moved(NoTrustRegion()) == pytest.approx(0, abs=1e-14)
    assert moved(CLIP, updates=1) == pytest.approx(0, abs=1e-14)


def test_with_a_clip_the_common_answer_gains_and_a_window_even_in_logs_takes_that_away():
    assert moved(CLIP) > 0.002 and moved(CLIP, p=0.35) == pytest.approx(-moved(CLIP))
    assert abs(moved(LOG_SYMMETRIC)) < 0.3 * moved(CLIP)
    assert moved(RatioClip(0.2, 0.28)) < -0.3 * moved(CLIP)


def test_an_even_policy_is_pushed_nowhere():
    assert moved(CLIP, p=0.5) == pytest.approx(0, abs=1e-14)


def test_sampled_coins_agree_with_the_enumeration():
    exact_logits, chances = one_batch(0.65, CLIP, updates=3, answers=4, lr=1.0)
    ends = many_batches(0.65, CLIP, 1, updates=3, answers=4, lr=1.0, runs=40_000)[-1]
    exact = (chances @ exact_logits.sigmoid()).item()
    assert ends.mean().item() == pytest.approx(exact, abs=5 * ends.std().item() / 200)
