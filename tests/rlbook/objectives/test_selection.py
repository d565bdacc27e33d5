"""Selections of tokens by hand, and the entropy bonus; what each does to loss and gradient."""

from dataclasses import replace

import pytest
import torch

from rlbook.objectives import (
    METHODS,
    CovarianceClip,
    CovarianceKL,
    Method,
    RatioClip,
    Selection,
    TopEntropy,
    group_center,
    method_table,
    policy_loss,
    totals_of,
)
from rlbook.objectives.selection import (
    next_bonus,
    token_covariance,
)

MASK = torch.tensor([[True, True, True], [True, True, False]])
LOGP = torch.tensor([[-1.0, -3.0, -2.0], [-2.0, -2.0, 9.0]], dtype=torch.float64)  # mean −2
ADVANTAGES = torch.tensor([[4.0, 4.0, 4.0], [-6.0, -6.0, 9.0]], dtype=torch.float64)  # mean 0
ENTROPY = torch.tensor([[0.5, 0.1, 0.9], [0.2, 0.7, 9.0]], dtype=torch.float64)
PLAIN = Method("plain", "-", group_center, ratio="token", trust_region=RatioClip(0.2, 0.2))


def picked(selection, seed=0):
    chosen = selection(LOGP, ENTROPY, ADVANTAGES, MASK, seed)
    return [tuple(position) for position in chosen.nonzero().tolist()]


def gradient(method, logp=LOGP, logp_old=LOGP, selected=None, entropy=None):
    logp = logp.clone().requires_grad_()
    result = policy_loss(
        method, logp, logp_old, ADVANTAGES, MASK, selected=selected, entropy=entropy
    )
    result.loss.backward()
    return logp.grad, result


def test_covariance_of_a_token_by_hand_and_their_mean_is_the_covariance():
    found = token_covariance(LOGP, ADVANTAGES, MASK)
    assert found.tolist() == [[4.0, -4.0, 0.0], [0.0, 0.0, 0.0]]
    g = torch.Generator().manual_seed(0)
    logp, advantages = torch.randn(2, 30, 40, generator=g, dtype=torch.float64)
    mask = torch.rand(30, 40, generator=g) > 0.3
    pairs = torch.stack([logp[mask], advantages[mask]])
    mean = token_covariance(logp, advantages, mask)[mask].mean()
    torch.testing.assert_close(mean, torch.cov(pairs, correction=0)[0, 1])


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.2, [(0, 2)]),
        (0.4, [(0, 2), (1, 1)]),
        (0.59, [(0, 2), (1, 1)]),  # rounded down
        (0.01, [(0, 2)]),  # at least one
        (1.0, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),  # never the padding
    ],
)
def test_top_entropy_picks_the_highest_of_the_mask(share, expected):
    assert picked(TopEntropy(share)) == expected


def test_kl_cov_picks_the_highest_covariance():
    assert picked(CovarianceKL(0.2)) == [(0, 0)]
    assert picked(CovarianceKL(1e-9)) == [(0, 0)]


def test_clip_cov_draws_in_its_band_alone():
    assert picked(CovarianceClip(1.0, low=1.0, high=5.0)) == [(0, 0)]
    assert picked(CovarianceClip(1.0, low=4.0, high=5.0)) == []  # the edges are outside
    drawn = {tuple(picked(CovarianceClip(0.2, -0.5, 5.0), seed)) for seed in range(60)}
    assert drawn == {((0, 0),), ((0, 2),), ((1, 0),), ((1, 1),)}  # one of the four, each in turn
    assert picked(CovarianceClip(0.4, -5, 5), 7) == picked(CovarianceClip(0.4, -5, 5), 7)


def test_a_token_that_does_not_learn_keeps_its_place_in_the_denominator():
    whole, _ = gradient(PLAIN)
    for selection, learns in ((TopEntropy(0.2), True), (CovarianceClip(0.2, -5.0), False)):
        selected = selection(LOGP, ENTROPY, ADVANTAGES, MASK)
        found, result = gradient(replace(PLAIN, selection=selection), selected=selected)
        expected = torch.where(selected == learns, whole, 0.0)
        torch.testing.assert_close(found, expected)
        rests = int((MASK & (selected != learns)).sum())
        assert result.metrics["clip_fraction"] == pytest.approx(rests / 5)


@pytest.mark.parametrize(
    ("kind", "slope"), [("abs", 1.0), ("k2", 0.1), ("k3", 0.10517091807564771)]
)
def test_kl_cov_is_silent_until_the_policy_moves_and_then_pulls_back(kind, slope):
    """Slopes at a log-ratio of 0.1: 1, 0.1 and e^0.1 − 1; β is 3, and there are 2 sequences."""
    selected = CovarianceKL(0.2)(LOGP, ENTROPY, ADVANTAGES, MASK)
    held = replace(PLAIN, selection=CovarianceKL(0.2, 3.0, kind))
    torch.testing.assert_close(gradient(held, selected=selected)[0], gradient(PLAIN)[0])
    moved = LOGP + 0.1
    change = gradient(held, moved, selected=selected)[0] - gradient(PLAIN, moved)[0]
    torch.testing.assert_close(change, torch.where(selected, 3 / 2 * slope, 0.0).double())


def test_a_rounding_error_turns_kl_cov_on_at_full_strength_unless_its_slope_is_smooth():
    selected = CovarianceKL(0.2)(LOGP, ENTROPY, ADVANTAGES, MASK)
    rounded = LOGP + 1e-7
    for kind, least, most in (("abs", 0.49, 0.51), ("k2", 0, 1e-6), ("k3", 0, 1e-6)):
        held = replace(PLAIN, selection=CovarianceKL(0.2, 1.0, kind))
        change = gradient(held, rounded, selected=selected)[0] - gradient(PLAIN, rounded)[0]
        assert least <= change.abs().max() <= most


def test_a_selection_gives_the_same_gradient_whatever_the_slices():
    """The choice is the batch's: a slice takes its part of it."""
    method = replace(PLAIN, selection=TopEntropy(0.4), aggregation="token_mean")
    selected, totals = TopEntropy(0.4)(LOGP, ENTROPY, ADVANTAGES, MASK), totals_of(MASK)
    logp = LOGP.clone().requires_grad_()
    for row in (slice(0, 1), slice(1, 2)):
        policy_loss(
            method, logp[row], LOGP[row], ADVANTAGES[row], MASK[row], totals=totals,
            selected=selected[row],
        ).loss.backward()  # fmt: skip
    torch.testing.assert_close(logp.grad, gradient(method, selected=selected)[0])


def test_the_bonus_raises_entropy_along_its_gradient():
    """Three tokens of one softmax: ∂H/∂z = −π (log π + H), against finite differences."""
    logits = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)

    def entropy(z):
        return -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)

    logp = logits.log_softmax(-1)
    method = replace(PLAIN, entropy_bonus=0.5)
    mask, nothing = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.float64)
    one = logp[:1][None]
    loss = policy_loss(
        method, one, one.detach(), nothing, mask, entropy=entropy(logits)[None, None]
    )
    (found,) = torch.autograd.grad(loss.loss, logits)
    z, h = logits.detach(), 1e-6
    steps = torch.eye(3, dtype=torch.float64) * h
    slope = torch.stack([(entropy(z + s) - entropy(z - s)) / (2 * h) for s in steps])
    torch.testing.assert_close(found, -0.5 * slope, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(slope, -z.softmax(-1) * (z.log_softmax(-1) + entropy(z)))


def test_the_controller_goes_up_below_the_target_and_never_under_zero():
    assert next_bonus(0.01, entropy=0.1, target=0.2, step=0.005) == pytest.approx(0.015)
    assert next_bonus(0.01, entropy=0.3, target=0.2, step=0.005) == pytest.approx(0.005)
    assert next_bonus(0.001, entropy=0.3, target=0.2, step=0.005) == 0.0


@pytest.mark.parametrize("one", [TopEntropy(0.3), CovarianceClip(1e-3, 0.5, 9.0), CovarianceKL()])
def test_a_selection_is_data(one):
    method = replace(METHODS["grpo"], selection=one)
    assert isinstance(one, Selection)
    assert Method.from_dict(method.to_dict()) == method
    assert method.to_dict()["selection"]["type"] == type(one).__name__
    assert Method.from_dict({"name": "grpo", "selection": method.to_dict()["selection"]}) == method


def test_errors_name_the_thing_and_the_fix():
    with pytest.raises(ValueError, match="above 0 and at most 1, got 20"):
        TopEntropy(20)
    with pytest.raises(ValueError, match="low must lie below high"):
        CovarianceClip(low=5.0, high=1.0)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        CovarianceKL(beta=-1)
    with pytest.raises(ValueError, match=r"selected=method\.selection\("):
        gradient(replace(PLAIN, selection=TopEntropy()))
    with pytest.raises(ValueError, match="entropy_grad=True"):
        gradient(replace(PLAIN, entropy_bonus=0.1))
    with pytest.raises(ValueError, match="selection 'Top' is unknown: choose from TopEntropy"):
        Method.from_dict({"name": "grpo", "selection": "Top"})


def test_columns_are_shown_where_a_row_uses_them():
    assert "selection" not in method_table()[0] and "entropy bonus" not in method_table()[0]
