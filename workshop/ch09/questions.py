"""Chapter 09: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import (
    HALF_TIME,
    OWN,
    SUMS,
    Told,
    clip_where_nothing_is_rare,
    masks,
    pretrained,
    rare,
    rung,
    told_pretrained,
)
from workshop.shared.verdict import Claim

ON_SMOLLM2 = "a capped weight for a clip from a pretrained model"


def sooner(told: Told) -> Iterator[Claim]:
    yield from rung(told, "CISPO for DAPO", "CISPO", "DAPO", null=None)
    yield from clip_where_nothing_is_rare(told, "CISPO", "CISPO", "clip 0.2")
    texts = "a clipped weight frees it sooner", "CISPO on a rare rule"
    yield from rare(told, *texts, "CISPO", "clip 0.2")
    yield from pretrained(told, ON_SMOLLM2, "real_off_policy", "CISPO", "clip 0.2")


def the_cap(told: Told) -> Iterator[Claim]:
    for lr in (5e-5, 1e-4, 2e-4):
        yield told("CISPO's cap itself does nothing here", "rare opening", "rare_opening", "CISPO",
                   "no trust region", HALF_TIME, lr=lr, unit="batches")  # fmt: skip
    yield from masks(told, "CISPO", "no region", "the cap itself")


def held_to_the_sampler(told: Told) -> Iterator[Claim]:
    yield from masks(told, "clip at μ", "CISPO", "a clip held to the sampler, for a capped weight")


def whole_answers(told: Told) -> Iterator[Claim]:
    yield from rung(told, "GSPO at its own width, for DAPO", "GSPO", "DAPO", null=None)
    yield from clip_where_nothing_is_rare(told, "GSPO at its own width", "GSPO", "clip 0.2")
    yield told("GSPO against DAPO", SUMS + OWN, "methods", "gspo", "dapo", null=None)


QUESTIONS = Questions(
    Question(
        claim="a clip masks the rare token that ought to grow",
        row={
            "exact": "up to four updates a batch no token is masked; at sixteen PPO needs three "
            "times as many batches",
            "pressing": "half of the good `check ` (section 1, one run)",
            "control": "plain sums: less than one token in a hundred",
            "paper": "MiniMax: *However*, *Aha*",
        },
    ),
    Question(
        claim="CISPO is sooner, in batches of sixteen updates until one half",
        row={
            "pressing": "against a clip of 0.2: {a clipped weight frees it sooner | rare opening, "
            "lr 1e-4}; the best rate is open",
            "control": "plain sums: {CISPO where nothing is rare | plain sums, own rates, "
            "16 minibatches}",
            "pretrained": told_pretrained(
                "accuracy at the end, CISPO minus clip 0.2 on old answers", ON_SMOLLM2
            ),
            "paper": "MiniMax: half of DAPO's steps",
        },
        told=sooner,
        asked=(
            Asked(
                ids=("S09.2", "S09.3"),
                claim="CISPO needs half the steps, for its missing mask",
                heading="4 · Does it train faster, and which part of it does?",
                says="The whole gain comes from the missing mask.",
                runs={"rare_opening": ["CISPO", "clip 0.2", "no trust region"]},
            ),
            Asked(
                ids=("T09.1",),
                claim="at the small step CISPO is ahead of the clips on a rare rule",
                heading="Deeper: And a rare rule instead of a rare word?",
                says="Five seeds do not settle that.",
                runs={"rare_habits": ["CISPO", "clip 0.2", "clip-higher 0.28", "no trust region"]},
            ),
        ),
    ),
    Question(
        claim="what helps is the missing mask, not the cap",
        row={
            "exact": "level with no region",
            "pressing": "cap minus none: {CISPO's cap itself does nothing here | rare opening, "
            "lr 1e-4}; rough sampler {the cap itself | a rough sampler, own rates}",
            "paper": "ScaleRL: caps of 4, 5 and 8 do not differ",
        },
        told=the_cap,
    ),
    Question(
        claim="clip at μ, minus CISPO (section 5)",
        row={
            "pressing": "old tokens: {a clip held to the sampler, for a capped weight | tokens 8 "
            "updates old, own rates}; rough sampler: {a clip held to the sampler, for a capped "
            "weight | a rough sampler, own rates}",
            "control": "{control: a clip held to the sampler, for a capped weight | a rough "
            "sampler, "
            "own rates}",
            "paper": "ScaleRL: CISPO",
        },
        told=held_to_the_sampler,
        asked=(
            Asked(
                ids=("S09.4", "S09.5", "C09.16"),
                claim="the cap itself helps; a clip must not be held to a sampler, never or +.40",
                heading="5 · When is a mask the better choice?",
                says="So the verdict **falls**: the choice of the rate had made it.",
                runs={
                    "mask_new": ["CISPO", "clip at μ"],
                    "mask_old": ["CISPO", "clip at μ"],
                    "mask_rough": ["CISPO", "no region", "clip at μ", "clip at π_old"],
                    "mask_old_rough": ["DPPO"],
                },
            ),
        ),
    ),
    Question(
        claim="GSPO with a window of its answers' size, minus DAPO",
        row={
            "control": "plain sums: {GSPO against DAPO | plain sums, own rates}",
            "paper": "GSPO: ahead, on a mixture of experts",
        },
        told=whole_answers,
        asked=(
            Asked(
                ids=("S09.6",),
                claim="GSPO's published window is slow",
                heading="7 · How wide must the window be?",
                says="the published window is behind at each of three learning rates",
                how="tuning runs, two seeds; on the ladder its own width",
            ),
            Asked(
                ids=("S09.7",),
                claim="GSPO learns faster than DAPO",
                heading="7 · How wide must the window be?",
                says="Chapter 12's ladder has GSPO ahead of DAPO on sums",
                runs={
                    "methods": ["gspo", "dapo"],
                    "ladder_sums": ["GSPO", "DAPO"],
                    "ladder_habits": ["GSPO", "DAPO"],
                },
            ),
            Asked(
                ids=("T09.2",),
                claim="width and rate matter more than which rule",
                heading="Deeper: Sixteen minibatches, or stale samples?",
                says="At its best rate no region is told apart from CISPO",
                runs={
                    "regions_minibatches": ["CISPO", "no trust region"],
                    "regions_stale": ["CISPO", "no trust region"],
                },
            ),
        ),
    ),
)
