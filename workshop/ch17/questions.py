"""Chapter 17: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.shared.question import Asked, Question
from workshop.shared.runs import HALF, PIPELINE, Column
from workshop.shared.scorecard import Questions
from workshop.shared.told import NOT_NAMED, SUMS, Told, masks, rung
from workshop.shared.verdict import Claim

LAST = Column("pass@1", steps=(80, 80))


def in_the_pipeline(
    told: Told, text: str, arm: str, against: str, cap: str = NOT_NAMED
) -> Iterator[Claim]:
    """At both rates, the slower one being the control; `cap` was run at the faster alone."""
    for rate, slower in (("4e-4", ""), ("2e-4", HALF)):
        half = None if slower else (PIPELINE, arm + HALF, against + HALF)
        yield told(text, f"{SUMS}, a pipeline, lr {rate}", PIPELINE, arm + slower,
                   against + slower, LAST, null=NOT_NAMED if slower else cap, control=half,
                   at="stated")  # fmt: skip


def another_loss(told: Told) -> Iterator[Claim]:
    arms = ("DAPO's clip", "PipelineRL-2")
    yield from in_the_pipeline(told, "DAPO's clip for CISPO, up to 2 old", *arms)


def age(told: Told) -> Iterator[Claim]:
    for k in (2, 8):
        arms = (f"PipelineRL-{k}", "PipelineRL-0")
        yield from in_the_pipeline(told, f"tokens up to {k} updates old", *arms)


def a_mask(told: Told) -> Iterator[Claim]:
    arms = ("DAPO's clip, k = 8", "PipelineRL-8", "cap 1.26, k = 8")
    yield from in_the_pipeline(told, "DAPO's clip for CISPO, up to 8 old", *arms)
    yield from masks(told, "clip at μ", "no region", "a clip held to the sampler, for no region")


def the_row(told: Told) -> Iterator[Claim]:
    yield from rung(told, "ScaleRL for GRPO", "ScaleRL", "GRPO", null=None)


QUESTIONS = Questions(
    Question(
        claim="a part of the recipe, DAPO's clip for its loss",
        row={
            "exact": "on fresh tokens one gradient",
            "pressing": "4e-4: {DAPO's clip for CISPO, up to 2 old | plain sums, a pipeline, lr "
            "4e-4}",
            "control": "2e-4: {DAPO's clip for CISPO, up to 2 old | plain sums, a pipeline, lr "
            "2e-4}; "
            "no other part at either rate",
            "paper": "all eight within ±0.02 of the recipe's A; B 2.01 with CISPO, 1.77 with the "
            "clip",
        },
        told=another_loss,
        asked=(
            Asked(
                ids=("S17.1",),
                claim="a part exchanged at 4e-4 and at half of it",
                heading="6 · What is a part of the recipe worth, at two rates?",
                says="So a sentence about a part of a recipe needs the learning rate in it.",
                runs={
                    "pipeline": [
                        "PipelineRL-2",
                        "DAPO's clip",
                        "σ per prompt",
                        "mean per answer",
                        "all prompts",
                        "solved prompts again",
                    ]
                },
            ),
            Asked(
                ids=("S17.4",),
                claim="the length penalty 'the paper tried'",
                heading="Deeper: May a thought be interrupted?",
                says="so ours is not a test of theirs",
                runs={
                    "pipeline": [
                        "limit 40",
                        "limit 40, length penalty",
                        "limit 30",
                        "limit 40, interrupted",
                    ]
                },
            ),
        ),
    ),
    Question(
        claim="age costs what the rate makes of it (eight updates)",
        row={
            "pressing": "4e-4: {tokens up to 8 updates old | plain sums, a pipeline, lr 4e-4}",
            "control": "2e-4: {tokens up to 8 updates old | plain sums, a pipeline, lr 2e-4}",
            "paper": "k = 4 and 8 alike, at 5e-7",
        },
        told=age,
        asked=(
            Asked(
                ids=("S17.2",),
                claim="the older the lower",
                heading="7 · What does the age of samples cost, and what does a mask save?",
                says="So an age is large or small only for a learning rate.",
                runs={"pipeline": ["PipelineRL-0", "PipelineRL-2", "PipelineRL-8"]},
            ),
            Asked(
                ids=("S17.6",),
                claim="the bound is not the target of age",
                heading="Deeper: What is the bound, and what is the target?",
                says="With a bound of 8 these may come late while the others go on",
                how="the simulator, checked against logs",
            ),
        ),
    ),
    Question(
        claim="a mask holds old samples where the rate is too high",
        row={
            "exact": "a cap keeps every gradient, a mask does not",
            "pressing": "4e-4, k = 8: "
            "{DAPO's clip for CISPO, up to 8 old | plain sums, a pipeline, lr 4e-4}; own rates, "
            "against no region: {a clip held to the sampler, for no region | "
            "tokens 8 updates old, own rates}",
            "control": "2e-4: {DAPO's clip for CISPO, up to 8 old | plain sums, a pipeline, lr "
            "2e-4}; "
            "old and rough: {a clip held to the sampler, for no region | "
            "old tokens of a rough sampler, own rates}",
            "paper": "not asked",
        },
        told=a_mask,
        asked=(
            Asked(
                ids=("S17.3",),
                claim="a mask holds old samples",
                heading="7 · What does the age of samples cost, and what does a mask save?",
                says="With old samples no rule can be told from no region",
                runs={
                    "pipeline": ["DAPO's clip, k = 8", "PipelineRL-8", "cap 1.26, k = 8"],
                    "mask_old": ["clip at μ", "no region", "CISPO", "DPPO"],
                },
            ),
        ),
    ),
    Question(
        claim="the row against GRPO's, by answers",
        row={
            "pressing": "habits: {ScaleRL for GRPO | habits, the ladder}",
            "control": "sums: {ScaleRL for GRPO | plain sums, the ladder}",
            "paper": "judged by GPU-hours",
        },
        told=the_row,
        asked=(
            Asked(
                ids=("S17.7",),
                claim="ten updates of our own, one seed",
                heading="6 · What is a part of the recipe worth, at two rates?",
                says="80 updates, ten seeds.",
                runs={"pipeline": ["PipelineRL-2", "PipelineRL-0"]},
            ),
        ),
    ),
    Question(
        claim="80 updates leave the ceiling open",
        row={
            "exact": "early, only (A − R_0) / C_mid^B matters",
            "pressing": "five of six arms at 2e-4",
            "paper": "two runs of one recipe differ in A by up to 0.03",
        },
        asked=(
            Asked(
                ids=("S17.5",),
                claim="A and B of the parts",
                heading="Deeper: Is it the ceiling or the speed?",
                says="No difference in $A$ can be told from zero",
                runs={"pipeline": ["PipelineRL-2, half the rate", "DAPO's clip, half the rate"]},
            ),
        ),
    ),
    Question(
        claim="rounding of the head parts sampler and trainer",
        asked=(
            Asked(
                ids=("S17.8",),
                claim="the head's rounding",
                heading="Deeper: What does a head in FP32 do?",
                says="no verdict here on what a head in FP32 is worth in training",
                runs={
                    "pipeline": [
                        "one process, exact sampler",
                        "one process, rounded sampler",
                        "one process, rounded but for the head",
                    ]
                },
            ),
        ),
    ),
)
