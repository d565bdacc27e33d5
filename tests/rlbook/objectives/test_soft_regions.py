"""Weights that fade, turn round or judge whole answers: each against its paper's objective."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    DivergencePenalty,
    GeometricClip,
    Method,
    RatioClip,
    RatioWindow,
    SamplerCorrection,
    SequenceGamma,
    SequenceMask,
    SoftGate,
    TaperedWeight,
    Tokens,
    policy_loss,
    surrogate,
    weigh,
)

PER_TOKEN = [SoftGate(), SoftGate(0.5, 2.0), DivergencePenalty(0.15), TaperedWeight()]
log_probs = st.floats(-6, -1e-3)
advantages = st.floats(-3, 3, allow_subnormal=False)


def double(*values):
    return torch.tensor([values], dtype=torch.float64)


def weight_of(region, ratio, advantage, logp_old=-2.0):
    logp_old, advantage = double(logp_old), double(advantage)
    return weigh(region, Tokens.of(logp_old + math.log(ratio), logp_old, advantage)).weight.item()


@settings(max_examples=60)
@given(log_probs, log_probs, advantages)
def test_gradient_is_minus_weight_times_advantage(logp, logp_old, advantage):
    for region in PER_TOKEN:
        x, old, a = double(logp).requires_grad_(), double(logp_old), double(advantage)
        result = surrogate(region, Tokens.of(x, old, a), x)
        (grad,) = torch.autograd.grad(result.loss.sum(), x)
        assert grad.item() == pytest.approx(-result.weight.item() * advantage, rel=1e-9, abs=1e-12)
        assert result.keep.all()


@pytest.mark.parametrize("region", PER_TOKEN, ids=str)
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_token_that_has_not_moved_weighs_one(region, advantage):
    assert weight_of(region, 1.0, advantage) == pytest.approx(1)


@settings(max_examples=60)
@given(log_probs, log_probs, advantages)
def test_drpo_is_the_gradient_of_its_penalised_objective(logp, logp_old, advantage):
    x, old, a = double(logp).requires_grad_(), double(logp_old), double(advantage)
    ratio = (x - old).exp()
    objective = ratio * a - a.abs() / (2 * 0.15) * old.exp() * (ratio - 1) ** 2
    (wanted,) = torch.autograd.grad(-objective.sum(), x)
    ours = surrogate(DivergencePenalty(0.15), Tokens.of(x, old, a), x).loss
    (given_,) = torch.autograd.grad(ours.sum(), x)
    torch.testing.assert_close(given_, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mu, pi, advantage", [(0.3, 0.6, 1), (0.6, 0.3, -1), (0.02, 0.3, 1)])
def test_drpo_pulls_back_exactly_where_dppo_masks(mu, pi, advantage):
    def weight(p):
        return weight_of(DivergencePenalty(0.15), p / mu, advantage, math.log(mu))

    edge = mu + 0.15 * advantage
    assert weight(edge) == pytest.approx(0, abs=1e-9)
    assert weight(pi) < 0 and weight(0.5 * (mu + edge)) > 0
    tokens = Tokens.of(double(math.log(pi)), double(math.log(mu)), double(float(advantage)))
    assert not weigh(DivergenceMask("tv", 0.15, 0.15), tokens).keep.item()


def test_drpo_helps_a_token_home():
    """Rising although its answer is bad, or falling although it is good: more than ρ."""
    assert weight_of(DivergencePenalty(0.15), 1.5, -1.0) > 1.5
    assert weight_of(DivergencePenalty(0.15), 0.5, 1.0) > 0.5


def test_sapo_fades_on_both_sides_and_sooner_for_bad_answers():
    good, bad = ([weight_of(SoftGate(), r, a) for r in (2.0, 4.0, 8.0)] for a in (1.0, -1.0))
    assert good[0] > good[1] > good[2] > 0
    assert all(b < g for b, g in zip(bad, good, strict=True))
    assert weight_of(SoftGate(), 0.1, 1.0) < 0.1


def test_topr_trusts_good_answers_and_lets_bad_ones_fade():
    weights = [[weight_of(TaperedWeight(), r, a) for r in (0.2, 3.0)] for a in (1.0, -1.0)]
    assert weights == [[1, 1], [pytest.approx(0.2), 1]]


def test_drifted_bad_answers_are_left_out_whole():
    """Mean log-ratios −0.2, −0.2, −0.05: of these only a bad answer below −0.1 is silent."""
    moved = torch.tensor([[-0.3, -0.1], [-0.3, -0.1], [-0.1, 0.0]], dtype=torch.float64)
    old, mask = torch.full_like(moved, -1.0), torch.ones(3, 2, dtype=torch.bool)
    a = torch.tensor([[1.0], [-1.0], [-1.0]], dtype=torch.float64).expand(3, 2)
    result = weigh(SequenceMask(0.1), Tokens.of(old + moved, old, a, mask, "sequence"))
    inner = weigh(RatioClip(0.2, 0.2), Tokens.of(old + moved, old, a, mask))
    assert (inner.keep & mask).tolist() == [[True, True], [False, True], [True, True]]
    assert result.keep.tolist() == [[True, True], [False, False], [True, True]]
    torch.testing.assert_close(result.weight, inner.weight * torch.tensor([[1.0], [0], [1]]))


def test_a_window_stops_a_token_on_its_way_back_too():
    """PPO's clip lets a good answer's token rise again from below; the window does not."""
    for ratio, advantage in ((0.5, 1.0), (0.5, -1.0), (1.5, 1.0), (1.5, -1.0)):
        assert weight_of(RatioWindow(), ratio, advantage) == 0
    assert weight_of(RatioClip(), 0.5, 1.0) == pytest.approx(0.5)
    assert weight_of(RatioWindow(), 1.1, -1.0) == pytest.approx(1.1)


@settings(max_examples=60)
@given(log_probs, log_probs, advantages)
def test_a_window_is_icepops_weight_of_another_ratio(logp, logp_old, advantage):
    x, old, mask = double(logp), double(logp_old), torch.ones(1, 1, dtype=torch.bool)
    window = weigh(RatioWindow(0.25, 0.25), Tokens.of(x, old, double(advantage))).weight
    icepop = SamplerCorrection(1.25, "drop", low=0.75)(x, old, mask)
    edge = min(abs((x - old).exp().item() - bound) for bound in (0.75, 1.25))
    assert edge < 1e-9 or torch.equal(window, icepop)  # the bounds themselves: open and closed


def test_vespo_peaks_where_the_paper_puts_it():
    region = SequenceGamma()
    for advantage, peak in ((1.0, 2 / 3), (-1.0, 3 / 2)):
        weights = [weight_of(region, peak * f, advantage) for f in (0.9, 1.0, 1.1)]
        assert weights[1] == max(weights)
        assert weight_of(region, 1.0, advantage) == pytest.approx(1)


@pytest.mark.parametrize("make", [lambda: SoftGate(0), lambda: DivergencePenalty(0)])
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match=r"positive|above 0"):
        make()
    with pytest.raises(ValueError, match="drift"):
        SequenceMask(-0.1)
    with pytest.raises(ValueError, match="log-ratios ≥ 0"):
        GeometricClip(-0.4)
    with pytest.raises(ValueError, match="distances from 1"):
        RatioWindow(-0.2)


@pytest.mark.parametrize(
    "region", [*PER_TOKEN, RatioWindow(), SequenceMask(0.1), SequenceGamma()], ids=str
)
def test_a_row_with_one_of_them_goes_through_a_file(region):
    (ratio,) = getattr(region, "needs_ratio", ["sequence"])
    row = replace(METHODS["dppo"], ratio=ratio, trust_region=region)
    assert Method.from_dict(row.to_dict()) == row
    assert row.to_dict()["trust_region"]["type"] == type(region).__name__


def test_a_whole_row_trains_only_on_answers_within_the_drift():
    """Through `policy_loss`, padding included: the drifted bad answer has gradient 0."""
    old = torch.tensor([[-1.0, -1.0, 0.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
    new = (old - torch.tensor([[0.4], [0.01]], dtype=torch.float64)).requires_grad_()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    row = replace(METHODS["gspo"], trust_region=SequenceMask(0.1))
    policy_loss(row, new, old, double(-1.0, -1.0)[0], mask).loss.backward()
    assert (new.grad[0] == 0).all() and (new.grad[1] != 0).all()
