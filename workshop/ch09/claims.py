"""What chapter 09 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.told import (
    HALF_TIME,
    OWN,
    SUMS,
    Told,
    clip_where_nothing_is_rare,
    masks,
    rare,
    rung,
)
from workshop.shared.verdict import Claim


def cispo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "CISPO for DAPO", "CISPO", "DAPO", null=None)
    yield from rung(told, "GSPO at its own width, for DAPO", "GSPO", "DAPO", null=None)
    for name, arm in (("CISPO", "CISPO"), ("GSPO at its own width", "GSPO")):
        yield from clip_where_nothing_is_rare(told, name, arm, "clip 0.2")
    texts = "a clipped weight frees it sooner", "CISPO on a rare rule"
    yield from rare(told, *texts, "CISPO", "clip 0.2")
    for lr in (5e-5, 1e-4, 2e-4):
        yield told("CISPO's cap itself does nothing here", "rare opening", "rare_opening", "CISPO",
                   "no trust region", HALF_TIME, lr=lr, unit="batches")  # fmt: skip
    yield told("GSPO against DAPO", SUMS + OWN, "methods", "gspo", "dapo", null=None)
    yield from masks(told, "clip at μ", "CISPO", "a clip held to the sampler, for a capped weight")
    yield from masks(told, "CISPO", "no region", "the cap itself")


SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "a clip silences the rare token that ought to grow",
        "exact": "up to four updates a batch: nobody; at sixteen it takes three times as long",
        "pressing": "half of the good `check ` (section 1, one run)",
        "control": "plain sums: less than one token in a hundred",
        "paper": "MiniMax: *However*, *Aha*",
    },
    {
        "claim": "CISPO is sooner, in batches of sixteen updates until one half",
        "pressing": "against a clip of 0.2: {a clipped weight frees it sooner | rare opening, "
        "lr 1e-4}; the best rate is open",
        "control": "plain sums: {CISPO where nothing is rare | plain sums, own rates, "
        "16 minibatches}",
        "paper": "MiniMax: half of DAPO's steps",
    },
    {
        "claim": "what helps is the missing mask, not the cap",
        "exact": "level with no region",
        "pressing": "cap minus none: {CISPO's cap itself does nothing here | rare opening, "
        "lr 1e-4}; rough sampler {the cap itself | a rough sampler, own rates}",
        "paper": "ScaleRL: caps of 4, 5 and 8 do not differ",
    },
    {
        "claim": "a clip held to the sampler, minus a capped weight",
        "pressing": "old tokens: {a clip held to the sampler, for a capped weight | tokens 8 "
        "updates old, own rates}; rough sampler: {a clip held to the sampler, for a capped "
        "weight | a rough sampler, own rates}",
        "control": "{control: a clip held to the sampler, for a capped weight | a rough sampler, "
        "own rates}",
        "paper": "ScaleRL: CISPO",
    },
    {
        "claim": "GSPO with a window of its answers' size, minus DAPO",
        "control": "plain sums: {GSPO against DAPO | plain sums, own rates}",
        "paper": "GSPO: ahead, on a mixture of experts",
    },
)
