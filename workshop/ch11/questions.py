"""Chapter 11: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import (
    Told,
    clip_where_nothing_is_rare,
    masks,
    pretrained,
    rare,
    rung,
    told_pretrained,
)
from workshop.shared.verdict import Claim

ON_SMOLLM2 = "a divergence mask for a clip from a pretrained model"


def sampler_or_trainer(told: Told) -> Iterator[Claim]:
    held = "a clip held to the sampler, for one held to the trainer"
    yield from masks(told, "clip at μ", "clip at π_old", held)


def divergence_or_ratio(told: Told) -> Iterator[Claim]:
    text = "a divergence for a ratio, both held to the sampler"
    yield from masks(told, "DPPO", "clip at μ", text)


def rare_tokens(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DPPO for DAPO", "DPPO", "DAPO", null=None)
    yield from clip_where_nothing_is_rare(told, "DPPO", "DPPO", "clip 0.2")
    texts = "a divergence mask frees it as soon", "DPPO on a rare rule"
    yield from rare(told, *texts, "DPPO", "clip 0.2")
    yield from pretrained(told, ON_SMOLLM2, "real_off_policy", "DPPO", "clip 0.2")


QUESTIONS = Questions(
    Question(
        claim="rounding alone sends rare tokens out of a ratio window",
        row={
            "exact": "B2: .003 of probability, counted as 43 per cent",
            "pressing": "4 bits: a third of the rare ones (section 1, one batch)",
            "control": "bfloat16: none",
            "paper": "yes, Fig. 2",
        },
    ),
    Question(
        claim="a ratio clip held to the sampler, minus one held to the trainer",
        row={
            "pressing": "rough sampler: {a clip held to the sampler, for one held to the trainer "
            "| a "
            "rough sampler, own rates}",
            "control": "new and exact: {control: a clip held to the sampler, for one held to the "
            "trainer | a rough sampler, own rates}; old: {a clip held to the sampler, for one "
            "held to "
            "the trainer | tokens 8 updates old, own rates}",
            "paper": "the opposite: **recomputed collapses**",
        },
        told=sampler_or_trainer,
        asked=(
            Asked(
                ids=("S11.7",),
                claim="chapter 11's own evidence",
                heading="6 · Which rule survives rough and old samples?",
                says="a ratio clip at μ loses most by a rough sampler",
                runs={
                    "mask_new": ["DPPO"],
                    "mask_old": ["DPPO"],
                    "mask_rough": ["DPPO", "clip at μ", "no region"],
                    "mask_old_rough": ["DPPO"],
                },
            ),
        ),
    ),
    Question(
        claim="a divergence minus a ratio, both held to the sampler",
        row={
            "pressing": "rough: {a divergence for a ratio, both held to the sampler | a rough "
            "sampler, "
            "own rates}; old: {a divergence for a ratio, both held to the sampler | tokens 8 "
            "updates "
            "old, own rates}",
            "control": "{control: a divergence for a ratio, both held to the sampler | a rough "
            "sampler, own rates}",
            "paper": "ahead",
        },
        told=divergence_or_ratio,
    ),
    Question(
        claim="DPPO frees a rare token sooner than a clip of 0.2 (batches)",
        row={
            "exact": "walls at μ + δ and at 1.2 μ",
            "pressing": "{a divergence mask frees it as soon | rare opening, lr 1e-4}; the best "
            "rate "
            "is open, no region is as soon",
            "control": "plain sums: {DPPO where nothing is rare | plain sums, own rates, "
            "16 minibatches}",
            "pretrained": told_pretrained(
                "accuracy at the end, DPPO minus clip 0.2 on old answers", ON_SMOLLM2
            ),
            "paper": "faster, also by accuracy",
        },
        told=rare_tokens,
        asked=(
            Asked(
                ids=("S11.2",),
                claim="a divergence mask frees a rare token sooner",
                heading="7 · What does a divergence mask free where the right thing is rare?",
                says="DPPO is nearly as fast as no mask at all",
                runs={"rare_opening": ["DPPO", "clip 0.2", "no trust region"]},
            ),
            Asked(
                ids=("S11.3",),
                claim="Relax-high is the whole effect",
                heading="Deeper: How large are the differences, and which side of the clip is it?",
                says="Relax-high is half of the effect or more",
                how="live, one seed",
            ),
            Asked(
                ids=("S11.6",),
                claim="stopping falling bad tokens is not enough",
                heading="Deeper: Which few tokens must be stopped?",
                says="rescues nothing here",
                how="a bandit, ten runs",
            ),
        ),
    ),
    Question(
        claim="the weight belongs to the sampler",
        row={
            "exact": "bandit, large steps: clearly; at the best rate mixed",
            "paper": "always so",
        },
        asked=(
            Asked(
                ids=("S11.4", "S11.5"),
                claim="the weight must be held to μ, and the mask not",
                heading="Deeper: Four combinations of mask and weight, at six rates",
                says="the weight belongs to μ, and a ratio clip does not",
                how="a bandit, ten runs, six rates",
            ),
        ),
    ),
)
