"""Columns together that no row has together, against sums over tokens in plain Python numbers."""

from dataclasses import replace
from math import exp

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.objectives import (
    METHODS,
    KLPenalty,
    NoTrustRegion,
    RatioClip,
    RatioWindow,
    SamplerCorrection,
    WeightClip,
    policy_loss,
    totals_of,
)
from rlbook.objectives.loss import imitation_weights

LIMIT, BETA, BONUS, LIKELIHOOD = 50.0, 0.3, 0.2, 0.1
LENGTHS, GROUPS = (3, 1, 4, 2, 2), (7, 7, -1, -1, 4)
SIGNS = (1.5, -0.5, 0.7, -2.0, 0.0)  # advantages
RIGHT = tuple(a > 0 for a in SIGNS)
PLACES = [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]

RATIOS = {  # of one token of an answer, from the log-ratios of all its tokens
    "token": lambda moved, t: exp(moved[t]),
    "sequence": lambda moved, t: exp(sum(moved) / len(moved)),
    "sequence_product": lambda moved, t: exp(sum(moved)),
}
REGIONS = {  # (ratio, advantage) -> the weight, 0 where the token is stopped
    NoTrustRegion(): lambda r, a: r,
    RatioClip(0.2, 0.28): lambda r, a: r * (r <= 1.28 if a > 0 else r >= 0.8 or a == 0),
    WeightClip(1.5, 0.5): lambda r, a: min(max(r, 0.5), 1.5),
    RatioWindow(0.3, 0.4): lambda r, a: r * (0.7 < r < 1.4),
}
SHARES = {  # of one token of answer i
    "token_mean": lambda i: 1 / sum(LENGTHS),
    "sequence_mean": lambda i: 1 / (len(LENGTHS) * LENGTHS[i]),
    "sequence_sum": lambda i: 1 / len(LENGTHS),
    "constant": lambda i: 1 / (len(LENGTHS) * LIMIT),
    "prompt_mean": lambda i: (
        1 / (3 * sum(n for n, g in zip(LENGTHS, GROUPS, strict=True) if g == GROUPS[i]))
    ),
}
CORRECTIONS = {  # from the log-ratios π_old/μ of all tokens of an answer
    None: lambda moved, t: 1.0,
    SamplerCorrection(1.2): lambda moved, t: min(exp(moved[t]), 1.2),
    SamplerCorrection(2.0, "drop", "sequence", low=0.5): lambda moved, t: (
        exp(sum(moved)) * (0.5 <= exp(sum(moved)) <= 2.0)
    ),
    SamplerCorrection(1.05, level="geometric"): lambda moved, t: min(
        exp(sum(moved) / len(moved)), 1.05
    ),
}
SLOPES = {  # of the penalty in log π, from d = log π − log π_ref and ρ = π/π_old
    None: lambda d, r: 0.0,
    KLPenalty("k1", BETA, "loss", "k2"): lambda d, r: d,
    KLPenalty("k1", BETA, "loss", "naive"): lambda d, r: 1.0,
    KLPenalty("k3", BETA, "loss", "naive"): lambda d, r: 1 - exp(-d),
    KLPenalty("k1", BETA, "loss", "score"): lambda d, r: r * (d + 1),
    KLPenalty("k3", BETA, "loss", "score"): lambda d, r: r * (exp(-d) - 1 + d + 1 - exp(-d)),
}


def tensor(value):
    """A number per place as (N, T); padding is no number."""
    whole = torch.full((len(LENGTHS), max(LENGTHS)), float("nan"), dtype=torch.float64)
    for i, t in PLACES:
        whole[i, t] = value(i, t)
    return whole


@settings(max_examples=60)
@given(
    ratio=st.sampled_from(sorted(RATIOS)),
    region=st.sampled_from(list(REGIONS)),
    share=st.sampled_from(sorted(SHARES)),
    correction=st.sampled_from(list(CORRECTIONS)),
    kl=st.sampled_from(list(SLOPES)),
    bonus=st.sampled_from([0.0, BONUS]),
    imitates=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_columns_add_up_as_each_says(ratio, region, share, correction, kl, bonus, imitates, seed):
    """∂loss/∂log π_t = share · (−correction · weight · A + β · slope of KL − likelihood).

    The correction multiplies the surrogate alone, and halves of the batch add up to the whole.
    """
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, len(LENGTHS), max(LENGTHS), generator=draw, dtype=torch.float64) * 0.3
    now, old, sampler, ref = (noise - 2).tolist()
    mask = tensor(lambda i, t: 1.0) == 1
    right, imitates = torch.tensor(RIGHT), imitates and share == "token_mean"
    method = replace(
        METHODS["grpo"], ratio=ratio, trust_region=region, aggregation=share, constant=LIMIT,
        kl=kl, sampler_correction=correction, old_logprobs="recomputed", entropy_bonus=bonus,
        likelihood=LIKELIHOOD * imitates,
    )  # fmt: skip
    logp, logp_old, mu, logp_ref = (
        tensor(lambda i, t, values=values: values[i][t]) for values in (now, old, sampler, ref)
    )
    signs = torch.tensor(SIGNS, dtype=torch.float64)
    entropy, groups = torch.ones_like(logp), torch.tensor(GROUPS)
    logp, entropy = logp.requires_grad_(), entropy.requires_grad_()
    weighed = correction and correction(logp_old, mu, mask)
    imitated = imitation_weights(right, mask)
    for half in ([0, 3], [1, 2, 4]):
        policy_loss(
            method, logp[half], logp_old[half], signs[half], mask[half],
            groups=groups[half], totals=totals_of(mask, groups), logp_ref=logp_ref[half],
            correction=None if weighed is None else weighed[half],
            entropy=entropy[half] if bonus else None, imitated=imitated[half],
        ).loss.backward()  # fmt: skip

    def slope(i, t):
        places, a = range(LENGTHS[i]), SIGNS[i]
        moved = [now[i][s] - old[i][s] for s in places]
        off = [old[i][s] - sampler[i][s] for s in places]
        weight = REGIONS[region](RATIOS[ratio](moved, t), a)
        pulled = BETA * SLOPES[kl](now[i][t] - ref[i][t], exp(moved[t]))
        taught = sum(LENGTHS) / sum(n for n, ok in zip(LENGTHS, RIGHT, strict=True) if ok)
        liked = LIKELIHOOD * imitates * RIGHT[i] * taught
        return SHARES[share](i) * (-CORRECTIONS[correction](off, t) * weight * a + pulled - liked)

    expected = torch.where(mask, tensor(slope), 0.0)
    torch.testing.assert_close(logp.grad, expected, rtol=1e-6, atol=1e-8)
    if bonus:
        expected = torch.where(mask, tensor(lambda i, t: -bonus * SHARES[share](i)), 0.0)
        torch.testing.assert_close(entropy.grad, expected, rtol=1e-6, atol=1e-8)
