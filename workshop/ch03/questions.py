"""Chapter 03: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from rlbook.objectives import NoTrustRegion, RatioClip
from workshop.ch03.figures import USES
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.experiments import BATCH_MEAN_PPO
from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import OWN, SUMS, Told, clip_where_nothing_is_rare, rung
from workshop.shared.verdict import Claim


def clipped(width: float, **settings) -> Arm:
    """PPO's clip of ±`width` on batch-mean advantages; no trust region for width 0."""
    region = RatioClip(width, width) if width else NoTrustRegion()
    label = f"clip {width:g}" if width else "no trust region"
    return arm(label, replace(BATCH_MEAN_PPO, trust_region=region), **settings)


def reuse() -> Iterator[Arm]:
    """Sixteen updates on a batch, in one pass or in four, with and without a clip, and one."""
    batches = {"steps": 12}
    one = clipped(0, minibatches=1, epochs=1, **batches)
    yield vary(replace(one, label="one update"), lr=(1e-4, 2e-4, 4e-4, 8e-4))
    for words, use in (
        ("16 minibatches", {"minibatches": 16, "epochs": 1}),
        ("4 passes of 4", {"minibatches": 4, "epochs": 4}),
    ):
        for width in (0, 0.2):
            many = clipped(width, **use, **batches)
            label = f"{words}, {many.label}"
            yield vary(replace(many, label=label), lr=(2.5e-5, 5e-5, 1e-4, 2e-4))


def for_reinforce(told: Told) -> Iterator[Claim]:
    yield from rung(told, "PPO for REINFORCE", "PPO", "REINFORCE", null=None)


def many_updates(told: Told) -> Iterator[Claim]:
    clipped, free = "16 minibatches, clip 0.2", "16 minibatches, no trust region"
    how = (SUMS + OWN, "reuse")
    yield told("sixteen updates pay, with a clip", *how, clipped, "one update", null=free)
    yield told("sixteen without a clip", *how, free, "one update")
    yield told("four passes or one", *how, "4 passes of 4, clip 0.2", clipped)


def later_rewards(told: Told) -> Iterator[Claim]:
    critics = ("PPO, critic, λ = 0.95", "PPO, critic, λ = 1")
    yield told("λ = 0.95 against 1", SUMS + OWN, "siblings", *critics)


def a_clip(told: Told) -> Iterator[Claim]:
    yield from clip_where_nothing_is_rare(told, "a clip", "clip 0.2", "no trust region")


def live(ends: pd.Series, reach: pd.DataFrame) -> dict[str, str]:
    """What the rows quote: live accuracy by rate and arm (`ends`), `usable` rates (`reach`)."""
    alive, idle = (
        f"{ends[lr]['with your clip']:.2f}, without {ends[lr]['without']:.2f}"
        for lr in ("1.5e-4", "4e-5")
    )
    with_clip, without = (
        reach.loc[f"{USES[0]}, {region}", "twice"] for region in ("clip 0.2", "no trust region")
    )
    return {"alive": alive, "idle": idle, "twice": f"{with_clip:.2f}, without {without:.2f}"}


QUESTIONS = Questions(
    Question(
        claim="the clip is a mask: 5 of 16 tokens",
        row={
            "exact": "by autograd",
            "paper": "PPO, Eq. 7",
        },
    ),
    Question(
        claim="a clip keeps sixteen updates a batch alive (one seed)",
        row={
            "pressing": "{alive}",
            "control": "at a quarter of the rate {idle}",
            "paper": "PPO, Table 1",
        },
        told=a_clip,
        asked=(
            Asked(
                ids=("S03.3",),
                claim="a clip keeps many updates alive",
                heading="9 · Scorecard",
                says="a clip keeps sixteen updates a batch alive (one seed)",
                how="live, one seed, said in the row",
            ),
        ),
    ),
    Question(
        claim="a clip widens the range of rates (two seeds)",
        row={
            "pressing": "at twice its best rate {twice}",
        },
        asked=(
            Asked(
                ids=("S03.5",),
                claim="the clip widens the range of rates",
                heading="9 · Scorecard",
                says="a clip widens the range of rates (two seeds)",
                how="tuning runs, two seeds, said in the row",
            ),
        ),
    ),
    Question(
        claim="sixteen updates a batch pay, each arm at its own rate",
        row={
            "pressing": "{sixteen updates pay, with a clip | plain sums, own rates}; without a "
            "clip {sixteen without a clip | plain sums, own rates}",
        },
        experiments={
            "reuse": Experiment(
                "What do sixteen updates on a batch buy, in one pass or in four, with and without "
                "a clip?",
                tuple(reuse()),
                tuning_seeds=(100, 101),
            ),
        },
        told=many_updates,
        asked=(
            Asked(
                ids=("S03.4", "C03.A"),
                claim="sixteen updates pay, with a clip: +.08 or +.065",
                heading="8 · Evidence: do sixteen updates pay?",
                says="Without a clip the gain is not resolved.",
                runs={
                    "reuse": [
                        "4 passes of 4, clip 0.2",
                        "16 minibatches, clip 0.2",
                        "16 minibatches, no trust region",
                        "one update",
                    ]
                },
            ),
            Asked(
                ids=("S03.6",),
                claim="the clip steadies the end",
                heading="Deeper: How do the seeds scatter, and are passes better than minibatches?",
                says="chance alone does it once in ten times",
                runs={
                    "reuse": [
                        "16 minibatches, no trust region",
                        "4 passes of 4, no trust region",
                    ]
                },
            ),
        ),
    ),
    Question(
        claim="PPO for REINFORCE, on as many answers",
        row={
            "pressing": "{PPO for REINFORCE | habits, the ladder}",
            "control": "{control: PPO for REINFORCE | habits, the ladder}",
        },
        told=for_reinforce,
    ),
    Question(
        claim="a critic sees what is to come",
        told=later_rewards,
        asked=(
            Asked(
                ids=("S03.7",),
                claim="pretraining informs the critic",
                heading="Deeper: What does a critic explain, and of what is that a share?",
                says="Trained along, it explains a few per cent",
                runs={"siblings": ["PPO, critic, λ = 0.95"]},
            ),
        ),
    ),
)
