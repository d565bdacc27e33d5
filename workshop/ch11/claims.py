"""What chapter 11 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.told import Told, clip_where_nothing_is_rare, masks, rare, rung
from workshop.shared.verdict import Claim


def dppo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DPPO for DAPO", "DPPO", "DAPO", null=None)
    yield from clip_where_nothing_is_rare(told, "DPPO", "DPPO", "clip 0.2")
    texts = "a divergence mask frees it as soon", "DPPO on a rare rule"
    yield from rare(told, *texts, "DPPO", "clip 0.2")
    yield from masks(
        told, "DPPO", "clip at μ", "a divergence for a ratio, both held to the sampler"
    )
    held = "a clip held to the sampler, for one held to the trainer"
    yield from masks(told, "clip at μ", "clip at π_old", held)


SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "rounding alone sends rare tokens out of a ratio window",
        "exact": "B2: .003 of probability, counted as 43 per cent",
        "pressing": "4 bits: a third of the rare ones (section 1, one batch)",
        "control": "bfloat16: none",
        "paper": "yes, Fig. 2",
    },
    {
        "claim": "a ratio clip held to the sampler, minus one held to the trainer",
        "pressing": "rough sampler: {a clip held to the sampler, for one held to the trainer | a "
        "rough sampler, own rates}",
        "control": "new and exact: {control: a clip held to the sampler, for one held to the "
        "trainer | a rough sampler, own rates}; old: {a clip held to the sampler, for one held to "
        "the trainer | tokens 8 updates old, own rates}",
        "paper": "the opposite: **recomputed collapses**",
    },
    {
        "claim": "a divergence minus a ratio, both held to the sampler",
        "pressing": "rough: {a divergence for a ratio, both held to the sampler | a rough sampler, "
        "own rates}; old: {a divergence for a ratio, both held to the sampler | tokens 8 updates "
        "old, own rates}",
        "control": "{control: a divergence for a ratio, both held to the sampler | a rough "
        "sampler, own rates}",
        "paper": "ahead",
    },
    {
        "claim": "DPPO frees a rare token sooner than a clip of 0.2 (batches)",
        "exact": "walls at μ + δ and at 1.28 μ",
        "pressing": "{a divergence mask frees it as soon | rare opening, lr 1e-4}; the best rate "
        "is open, no region is as soon",
        "control": "plain sums: {DPPO where nothing is rare | plain sums, own rates, "
        "16 minibatches}",
        "paper": "faster, also by accuracy",
    },
    {
        "claim": "the weight belongs to the sampler",
        "exact": "bandit, large steps: clearly; at the best rate no difference",
        "paper": "always so",
    },
)
