"""Chapter 02: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import METHODS, Method
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.experiments import FIVE
from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import OWN, SUMS, Told, rung
from workshop.shared.verdict import Claim

WORLD = "plain sums, own rates"


def baselines() -> Iterator[Arm]:
    """One arm per pair of (wrong, right) rewards: the same preferences, another zero."""
    settings = {"minibatches": 1, "steps": 20}
    arms = [
        *(
            arm(f"none, {w}/{r}", rewarded("reinforce", w, r), **settings)
            for w, r in ((0, 1), (1, 2), (-1, 1))
        ),
        arm("batch mean", "reinforce_batch_mean", **settings),
        arm("EMA, 1/2", rewarded("reinforce_ema", 1, 2), **settings),
    ]
    for one in arms:
        yield vary(one, lr=(1e-4, 2e-4, 4e-4, 8e-4))


def rewarded(method: str, wrong: float, right: float) -> Method:
    """A row with other rewards for a wrong and a right answer."""
    return replace(METHODS[method], reward_values=(float(wrong), float(right)))


def a_point_more(told: Told) -> Iterator[Claim]:
    how = (SUMS + OWN, "baselines")
    yield told("one point more for every answer costs", *how, "none, 1/2", "none, 0/1")


def a_mean(told: Told) -> Iterator[Claim]:
    yield from rung(told, "a batch mean for no baseline", "REINFORCE, batch mean", "REINFORCE")
    average = "REINFORCE, moving average"
    yield from rung(told, "an average that starts at the mean", average, "REINFORCE")
    how = (SUMS + OWN, "baselines")
    yield told("a batch mean against no baseline", *how, "batch mean", "none, 0/1", null=None)


QUESTIONS = Questions(
    Question(
        claim="the score function estimates ∇J without bias",
        row={
            "exact": "yes: autograd on the sum agrees",
            "paper": "Williams 1992: proved",
        },
    ),
    Question(
        claim="a point in every reward is noise and nothing else",
        row={
            "exact": "the same mean gradient, four times the rollouts and more",
            "pressing": f"{{one point more for every answer costs | {WORLD}}}",
            "control": "0 once a mean is subtracted: the same run, bit for bit",
        },
        experiments={
            "baselines": Experiment(
                "Does REINFORCE need a baseline, and when?",
                tuple(baselines()),
                seeds=FIVE,
                tuning_seeds=(100, 101),
            ),
        },
        told=a_point_more,
        asked=(
            Asked(
                ids=("S02.3", "T02.2"),
                claim="one point more for every answer is noise; a mean repairs it",
                heading="9 · Evidence: does a baseline pay?",
                says='because "batch mean" is the same run for both rewards',
                runs={"baselines": ["none, 1/2", "none, 0/1", "batch mean"]},
            ),
        ),
    ),
    Question(
        claim="subtracting the mean helps",
        row={
            "exact": "less noise for long answers, more for two answers above p = ⅔",
            "pressing": "rewards 1 and 2: {back} pass@1",
            "control": f"rewards 0 and 1: {{a batch mean against no baseline | {WORLD}}}",
            "paper": "Ahmadian et al. 2024: helps a little",
        },
        told=a_mean,
        asked=(
            Asked(
                ids=("S02.4", "T02.1"),
                claim="no baseline leads for rewards 0 and 1",
                heading="Deeper: Do ten seeds and another world agree about the mean?",
                says="a good moving average 0.08. On habits neither can be told from no baseline",
                runs={
                    "baselines": ["batch mean", "none, 0/1"],
                    "ladder_sums": ["REINFORCE, moving average", "REINFORCE"],
                },
            ),
        ),
    ),
    Question(
        claim="REINFORCE can change a model's mode",
        row={
            "pressing": "two habits, live, one seed: greedy {before} → {after}",
            "control": "plain sums: the mode was right before",
        },
        asked=(
            Asked(
                ids=("S02.5",),
                claim="REINFORCE changes a mode",
                heading="Deeper: Does the mode change on every seed?",
                says="What you saw was one run. Here is RLOO",
                runs={"habits": ["RLOO"], "ladder_habits": ["REINFORCE"]},
            ),
        ),
    ),
)
