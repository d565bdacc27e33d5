"""Clips, masks and weights: which side is stopped, and that the gradient is the stated weight."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    SamplerCorrection,
    SoftGate,
    Surrogate,
    Tokens,
    WeightClip,
    binary_divergence,
    listed_logps,
    policy_loss,
    sequence_ratio,
    surrogate,
    topk_divergence,
    topk_tokens,
    weigh,
)

REGIONS = [
    NoTrustRegion(),
    RatioClip(0.2, 0.28),
    RatioClip(0.2, 0.2, dual=3.0),
    WeightClip(max=5.0),
    WeightClip(min=0.8, max=1.28),
    DivergenceMask("tv", 0.15, 0.15),
    DivergenceMask("kl", 0.05, 0.1, ratio_cap=3.0),
]
log_probs = st.floats(-6, -1e-3)
advantages = st.floats(-3, 3, allow_subnormal=False)


def at(region, logp, logp_old, advantage):
    """Surrogate of a single token and the gradient of its loss."""
    logp = torch.tensor([[logp]], dtype=torch.float64, requires_grad=True)
    logp_old = torch.tensor([[logp_old]], dtype=torch.float64)
    advantage = torch.tensor([[advantage]], dtype=torch.float64)
    result = surrogate(region, Tokens.of(logp, logp_old, advantage), logp)
    (grad,) = torch.autograd.grad(result.loss.sum(), logp)
    return Surrogate(*(part.detach() for part in result)), float(grad)


@settings(max_examples=60)
@given(log_probs, log_probs, advantages)
def test_gradient_is_minus_weight_times_advantage(logp, logp_old, advantage):
    for region in REGIONS:
        result, grad = at(region, logp, logp_old, advantage)
        expected = -float(result.weight) * advantage
        assert grad == pytest.approx(expected, rel=1e-9, abs=1e-12), region
        assert bool(result.keep) or result.weight == 0, region


@settings(max_examples=60)
@given(log_probs, log_probs, advantages)
def test_ppo_is_the_pessimistic_minimum_and_its_gradient_a_mask(logp, logp_old, advantage):
    result, grad = at(RatioClip(0.2, 0.28), logp, logp_old, advantage)
    ratio = math.exp(logp - logp_old)
    clipped = min(max(ratio, 0.8), 1.28)
    assert float(result.loss) == pytest.approx(-min(ratio * advantage, clipped * advantage))
    stopped = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
    assert bool(result.keep) == (not stopped)
    assert (grad == 0) == (stopped or advantage == 0)


@pytest.mark.parametrize(
    "ratio, advantage, objective, masked",
    [
        (1.5, 1, 1.2, True),
        (0.5, 1, 0.5, False),
        (0.5, -1, -0.8, True),
        (1.5, -1, -1.5, False),
        (1.1, 1, 1.1, False),
        (0.9, -1, -0.9, False),
    ],
)
def test_the_cases_of_the_clip(ratio, advantage, objective, masked):
    result, grad = at(RatioClip(0.2, 0.2), math.log(ratio) - 2, -2.0, advantage)
    assert float(result.loss) == pytest.approx(-objective)
    assert bool(result.keep) != masked
    assert grad == pytest.approx(0 if masked else -ratio * advantage)


@pytest.mark.parametrize("ratio, masked", [(0.7, True), (2.0, False), (3.5, True)])
def test_dual_clip_stops_bad_tokens_that_became_far_more_likely(ratio, masked):
    region = RatioClip(0.2, 0.2, dual=3.0)
    result, grad = at(region, math.log(ratio) - 2, -2.0, -1.0)
    assert (grad == 0) == masked == (not bool(result.keep))
    assert float(result.loss) <= 3.0
    good, grad = at(region, math.log(ratio) - 2, -2.0, 1.0)
    assert float(good.loss) == pytest.approx(-min(ratio, 1.2))


def test_weight_clip_bounds_are_absolute_and_every_token_keeps_a_gradient():
    for ratio, weight in ((0.01, 0.01), (1.0, 1.0), (4.0, 4.0), (7.0, 5.0)):
        for advantage in (-1.0, 1.0):
            result, grad = at(WeightClip(max=5.0), math.log(ratio) - 3, -3.0, advantage)
            assert grad == pytest.approx(-weight * advantage)
            assert bool(result.keep)


@pytest.mark.parametrize(
    "mu, pi, tv, kl",
    [
        (1e-4, 1e-2, 0.0099, 0.0095),
        (0.99, 0.80, 0.19, 0.1810),
        (0.5, 0.3, 0.20, 0.0872),
        (0.9, 0.74, 0.16, 0.0806),
    ],
)
def test_binary_divergences(mu, pi, tv, kl):
    old, new = (torch.tensor([[math.log(x)]], dtype=torch.float64) for x in (mu, pi))
    assert float(binary_divergence(new, old, "tv")) == pytest.approx(tv, abs=1e-9)
    assert float(binary_divergence(new, old, "kl")) == pytest.approx(kl, abs=6e-5)


@pytest.mark.parametrize(
    "mu, pi, advantage, clip_masks, tv15_masks, tv20_masks, kl_masks",
    [
        (1e-4, 1e-2, 1, True, False, False, False),  # rare token, ratio 100, moved by .0099
        (0.99, 0.80, -1, False, True, False, True),  # common token, ratio .81, moved by .19
        (0.99, 0.80, 1, False, False, False, False),  # coming back towards the sampler
        (0.5, 0.8, -1, False, False, False, False),
    ],
)
def test_ratio_and_divergence_disagree(
    mu, pi, advantage, clip_masks, tv15_masks, tv20_masks, kl_masks
):
    for region, masked in (
        (RatioClip(0.2, 0.2), clip_masks),
        (DivergenceMask("tv", 0.15, 0.15), tv15_masks),
        (DivergenceMask("tv", 0.2, 0.2), tv20_masks),
        (DivergenceMask("kl", 0.05, 0.05), kl_masks),
    ):
        result, _ = at(region, math.log(pi), math.log(mu), advantage)
        assert bool(result.keep) != masked, region


def test_divergence_thresholds_of_the_two_signs():
    """`high` stops rising good tokens, `low` falling bad ones; both moved by .1 here."""
    region = DivergenceMask("tv", low=0.05, high=0.2)
    rising, falling = (math.log(0.6), math.log(0.5)), (math.log(0.4), math.log(0.5))
    assert bool(at(region, *rising, 1.0)[0].keep)
    assert not bool(at(region, *falling, -1.0)[0].keep)
    opposite = DivergenceMask("tv", low=0.2, high=0.05)
    assert not bool(at(opposite, *rising, 1.0)[0].keep)
    assert bool(at(opposite, *falling, -1.0)[0].keep)


def test_small_negative_moves_are_kept():
    """A < 0 is masked beyond −δ, not below +δ: on-policy nothing is."""
    result, _ = at(DivergenceMask("tv", 0.15, 0.15), -1.0, -1.0, -1.0)
    assert bool(result.keep)


def full_divergence(p, q, kind):
    """TV or KL(q ‖ p) of whole distributions."""
    return 0.5 * (p - q).abs().sum(-1) if kind == "tv" else (q * (q / p).log()).sum(-1)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_topk_lies_between_binary_and_full_divergence(kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 50, 9, generator=generator, dtype=torch.float64)
    logp, logp_old = torch.log_softmax(logits, -1)
    full = full_divergence(logp.exp(), logp_old.exp(), kind)
    order = logp_old.argsort(-1, descending=True)
    bounds = []
    for k in (1, 3, 6, 9):
        listed = [x.gather(-1, order[:, :k])[None] for x in (logp, logp_old)]
        bounds.append(topk_divergence(*listed, kind)[0])
    torch.testing.assert_close(bounds[-1], full, rtol=0, atol=1e-9)
    top = [x.gather(-1, order[:, :1]).T for x in (logp, logp_old)]
    torch.testing.assert_close(bounds[0], binary_divergence(*top, kind)[0], rtol=0, atol=1e-6)
    for coarse, fine in pairwise(bounds):
        assert (fine >= coarse - 1e-9).all()


def random_policies(seed, tokens=40, vocabulary=9):
    """(logp, logp_old) of shape (1, T, V) and sampled ids (1, T), each token sampled somewhere."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, 1, tokens, vocabulary, generator=generator, dtype=torch.float64)
    ids = torch.arange(tokens)[None] % vocabulary
    return *torch.log_softmax(logits, -1), ids


@pytest.mark.parametrize("k", [1, 3, 8, 9, 20])
def test_topk_tokens_are_the_likeliest_and_the_sampled_one_each_once(k):
    logp, logp_old, ids = random_policies(0)
    listed = topk_tokens(logp_old, ids, k)
    assert listed.shape == (1, 40, min(k, 9) + 1)
    logps = listed_logps(logp, listed)
    for t, row in enumerate(listed[0]):
        likeliest = sorted(range(9), key=lambda v: -float(logp_old[0, t, v]))[:k]
        tokens = [v for v in row.tolist() if v >= 0]
        assert sorted(tokens) == sorted({*likeliest, int(ids[0, t])})
        expected = [float(logp[0, t, v].exp()) if v >= 0 else 0.0 for v in row.tolist()]
        assert logps[0, t].exp().tolist() == pytest.approx(expected)


def divergence_by_enumeration(mu, pi, ids, k, kind):
    """D over the set {k likeliest under μ} ∪ {sampled} and the rest, one token at a time."""
    result = []
    for p_old, p, own in zip(mu.tolist(), pi.tolist(), ids.tolist(), strict=True):
        kept = {*sorted(range(len(p)), key=lambda v: -p_old[v])[:k], own}
        cells = [(p_old[v], p[v]) for v in kept]
        if len(kept) < len(p):
            cells.append(tuple(sum(x[v] for v in set(range(len(p))) - kept) for x in (p_old, p)))
        by_kind = {
            "tv": sum(abs(a - b) for a, b in cells) / 2,
            "kl": sum(a * math.log(a / b) for a, b in cells),
        }
        result.append(by_kind[kind])
    return result


@pytest.mark.parametrize("kind", ["tv", "kl"])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_divergence_of_the_listed_tokens(kind, k):
    """Equal to enumeration; at least the binary divergence, at most the full one."""
    logp, logp_old, ids = random_policies(k)
    listed = topk_tokens(logp_old, ids, k)
    ours = topk_divergence(listed_logps(logp, listed), listed_logps(logp_old, listed), kind)[0]
    expected = divergence_by_enumeration(logp_old.exp()[0], logp.exp()[0], ids[0], k, kind)
    assert ours.tolist() == pytest.approx(expected, abs=1e-9)
    own = (x.gather(-1, ids[..., None])[..., 0] for x in (logp, logp_old))
    assert (ours >= binary_divergence(*own, kind)[0] - 1e-6).all()
    assert (ours <= full_divergence(logp.exp(), logp_old.exp(), kind)[0] + 1e-9).all()


def test_top_k_asks_for_the_divergence_and_masks_by_it():
    logp, logp_old, ids = random_policies(3)
    own = [x.gather(-1, ids[..., None])[..., 0] for x in (logp, logp_old)]
    mask, method = torch.ones(1, 40).bool(), replace(METHODS["dppo"], name="topk")
    method = replace(method, trust_region=DivergenceMask("tv", 0.3, 0.3, top_k=2))
    with pytest.raises(ValueError, match=r"top_k=2\) needs `divergence`: pass topk_divergence"):
        policy_loss(method, *own, torch.ones(1), mask)
    listed = topk_tokens(logp_old, ids, method.top_k)
    divergence = topk_divergence(listed_logps(logp, listed), listed_logps(logp_old, listed))
    loss = policy_loss(method, *own, torch.ones(1), mask, divergence=divergence)
    stopped = (own[0] > own[1]) & (divergence > 0.3)
    assert 0 < int(loss.sums["masked_tokens"]) == int(stopped.sum()) < 40
    assert ((loss.token_loss == 0) == stopped).all()


@pytest.mark.parametrize("region", REGIONS)
def test_every_region_is_called_alike(region):
    """A divergence is ignored by those that do not ask for one."""
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    tokens = Tokens.of(logp, logp - 0.3, torch.ones_like(logp))
    given = weigh(region, replace(tokens, divergence=torch.full_like(logp, 0.5)))
    if isinstance(region, DivergenceMask):
        assert not given.keep.any()
    else:
        assert all(map(torch.equal, given, weigh(region, tokens)))


def test_a_given_divergence_replaces_the_binary_one():
    logp = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    divergence = torch.tensor([[0.1, 0.3]], dtype=torch.float64)
    loss = policy_loss(
        METHODS["dppo"], logp, logp - 0.05, torch.ones(1), mask, divergence=divergence
    )
    assert float(loss.sums["masked_tokens"]) == 1


@settings(max_examples=30)
@given(st.lists(st.tuples(log_probs, log_probs), min_size=1, max_size=6))
def test_sequence_ratio_is_the_geometric_mean(pairs):
    logp, logp_old = torch.tensor(pairs, dtype=torch.float64).T[:, None]
    mask = torch.ones_like(logp, dtype=torch.bool)
    ratio = sequence_ratio(logp, logp_old, mask)
    expected = math.prod(math.exp(a - b) for a, b in pairs) ** (1 / len(pairs))
    assert ratio.flatten().tolist() == pytest.approx([expected] * len(pairs))


def test_gspo_clips_whole_answers_where_ppo_clips_one_token():
    logp_old = torch.full((1, 3), -1.0, dtype=torch.float64)
    logp = logp_old + torch.tensor([[0.1, -0.1, 0.2]])
    mask, positive = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 3, dtype=torch.float64)
    answer = Tokens.of(logp, logp_old, positive, mask, "sequence")
    assert float(answer.ratio[0, 0]) == pytest.approx(1.0689, abs=1e-4)
    assert not weigh(RatioClip(3e-4, 4e-4), answer).keep.any()
    token = weigh(RatioClip(0.2, 0.2), Tokens.of(logp, logp_old, positive, mask))
    assert token.keep.tolist() == [[True, True, False]]


@pytest.mark.parametrize("normalize", [True, False])
def test_both_gradient_forms_of_the_sequence_ratio(normalize):
    """Equal for one advantage per sequence when the exponent is 1/|y|; |y| times apart without."""
    generator = torch.Generator().manual_seed(3)
    logp_old = -torch.rand(4, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 4])[:, None]
    advantage = torch.tensor([1.0, -2.0, 0.5, 0.7], dtype=torch.float64)[:, None]
    grads = []
    for form in ("token", "sequence"):
        logp = (0.9 * logp_old).requires_grad_()
        ratio = sequence_ratio(logp, logp_old, mask, normalize, form)
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.5) * advantage)
        torch.where(mask, loss, 0.0).sum().backward()
        grads.append(logp.grad)
    factor = 1 if normalize else mask.sum(1, keepdim=True)
    torch.testing.assert_close(grads[0] * factor, grads[1])


def test_sampler_correction_truncates_or_drops():
    old = torch.tensor([[-1.0, -1.0, -1.0]], dtype=torch.float64)
    sampler = old - torch.tensor([[0.0, math.log(1.5), math.log(4.0)]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    weights = SamplerCorrection(2.0)(old, sampler, mask)
    assert weights[0].tolist() == pytest.approx([1, 1.5, 2])
    assert SamplerCorrection(2.0, "drop")(old, sampler, mask)[0].tolist() == pytest.approx(
        [1, 1.5, 0]
    )
    whole = SamplerCorrection(5.0, level="sequence")(old, sampler, mask)
    assert whole[0].tolist() == [5, 5, 5]


def test_bounds_and_levels_of_the_correction():
    """Ratios 0.25, 1 and 8 in a row, then 8 outside the mask; product 2, geometric mean 2^(1/3)."""
    ratio = torch.tensor([[0.25, 1.0, 8.0, 8.0]], dtype=torch.float64)
    old = torch.full_like(ratio, -1.0)
    mask = torch.tensor([[True, True, True, False]])
    mean = 2 ** (1 / 3)
    for settings_, expected in [
        (SamplerCorrection(5.0, low=0.5), [0.5, 1, 5]),
        (SamplerCorrection(5.0, "drop", low=0.5), [0, 1, 0]),  # IcePop
        (SamplerCorrection(8.5, "drop"), [0.25, 1, 8]),
        (SamplerCorrection(3.0, level="sequence"), [2, 2, 2]),
        (SamplerCorrection(1.5, "drop", "sequence"), [0, 0, 0]),
        (SamplerCorrection(1.5, "drop", "geometric"), [mean, mean, mean]),
        (SamplerCorrection(1.001, "drop", "geometric", low=0.999), [0, 0, 0]),
        (SamplerCorrection(1.001, level="geometric"), [1.001, 1.001, 1.001]),
    ]:
        weights = settings_(old, old - ratio.log(), mask)[0].tolist()
        assert weights == pytest.approx([*expected, 1]), settings_


@pytest.mark.parametrize(
    "region", [RatioClip(0.2, 0.28, dual=3.0), RatioClip(), SoftGate(), SoftGate(0.5, 2.0)], ids=str
)
def test_finite_differences(region):
    """The weight is the slope of the loss that the paper states, taken on its own."""
    generator = torch.Generator().manual_seed(1)
    logp_old = -3 * torch.rand(3, 4, generator=generator, dtype=torch.float64)
    logp = logp_old + 0.6 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    advantage = torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def loss(x):
        return surrogate(region, Tokens.of(x, logp_old, advantage), x).loss.sum()

    assert torch.autograd.gradcheck(loss, logp.requires_grad_())


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: WeightClip(max=0.28), "absolute"),
        (lambda: RatioClip(low=-0.1), "distances from 1"),
        (lambda: RatioClip(dual=0.5), "above 1"),
        (lambda: DivergenceMask("js"), "kind: .*'tv' or 'kl', got 'js'"),
        (lambda: DivergenceMask(low=-1.0), "≥ 0"),
        (lambda: DivergenceMask(top_k=0), "at least 1"),
        (lambda: SamplerCorrection(0.9), "must enclose 1"),
        (lambda: SamplerCorrection(2.0, low=1.1), "must enclose 1"),
        (lambda: SamplerCorrection(2.0, "clip"), "mode: .*'truncate' or 'drop', got 'clip'"),
        (lambda: SamplerCorrection(2.0, level="mean"), "level: .*or .geometric., got .mean."),
    ],
)
def test_settings_that_cannot_be_meant(make, message):
    with pytest.raises(ValueError, match=message):
        make()
