"""Chapter 04: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.ch04.experiments import (
    ASKED,
    FIVE,
    PROXY,
    SEEN,
    Directly,
    families_or_picked,
    in_rounds,
    ppo,
    told_directly,
)
from workshop.shared.design import Experiment
from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import Told, there
from workshop.shared.verdict import Claim

WORLD, NAME = "habits, 1000 pairs", "overoptimisation"
LEASH = "1000 pairs, β = 0.1"


def a_wrong_reward(told: Told) -> Iterator[Claim]:
    yield told("a reward model instead of the verifier", WORLD, NAME, "1000 pairs", "verifier")
    yield told("half the rate, twice the steps", WORLD, f"{NAME}_slow", "1000 pairs", "1000 pairs",
               beside=NAME)  # fmt: skip


def a_leash(told: Told) -> Iterator[Claim]:
    yield told("... and what a leash of 0.1 gives back", WORLD, NAME, LEASH, "1000 pairs")
    yield told("a leash of 0.3, for one of 0.1", WORLD, "short_leash", "1000 pairs, β = 0.3", LEASH,
               beside=NAME)  # fmt: skip


def more_pairs(told: Told) -> Iterator[Claim]:
    yield told("four passes over 1000 pairs, for one over 4000", WORLD, "passes",
               "1000 pairs, four passes", "4000 pairs", beside=NAME)  # fmt: skip
    yield told("four passes over 1000 pairs, for one", WORLD, "passes",
               "1000 pairs, four passes", "1000 pairs, one pass")  # fmt: skip


def misled(told: Told) -> Iterator[Claim]:
    arm = "misled annotators, β = 0.1"
    yield told("annotators who share a misconception", WORLD, "misled", arm, LEASH, beside=NAME)


def without_rl(told: Told) -> Iterator[Claim]:
    if there(told.load, "told_directly"):
        yield told("DPO, for PPO under a leash of 0.1, the same pairs", WORLD,
                   "told_directly", "DPO on 1000 pairs", LEASH, beside=NAME, null=None)  # fmt: skip


def from_examples(told: Told) -> Iterator[Claim]:
    if there(told.load, "told_directly"):
        yield told("right answers that somebody wrote, for PPO with a verifier", "habits",
                   "told_directly", "256 written answers", "verifier", beside=NAME,
                   null=None)  # fmt: skip


def new_pairs(told: Told) -> Iterator[Claim]:
    if there(told.load, "fresh_pairs"):
        yield told("pairs of the policy as it is, for pairs of the base", WORLD, "fresh_pairs",
                   "its own pairs, five times", "the base's pairs, five times")  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="pleasing a learned reward loses the truth",
        row={
            "exact": "β = 10, 0.71, 0.1: truth .31, .66, .00",
            "pressing": "minus a verifier in its place: {a reward model instead of the verifier | "
            "habits, 1000 pairs}; one rate",
            "paper": "Gao et al.: up, then down",
        },
        experiments={
            "overoptimisation": Experiment(
                "What becomes of the truth while PPO maximises a reward model, and what holds it?",
                (
                    ppo("1000 pairs", "after_1000"),
                    ppo("4000 pairs", "after_4000"),
                    ppo("150 pairs", "after_150"),
                    ppo("verifier", None),
                    ppo("1000 pairs, β = 0.03", "after_1000", 0.03),
                    ppo("1000 pairs, β = 0.1", "after_1000", 0.1),
                ),
                **SEEN,
            ),
            "overoptimisation_slow": Experiment(
                "... and at half the learning rate, in twice the steps?",
                (ppo("1000 pairs", "after_1000", lr=3e-4, steps=60),),
                seeds=FIVE,
                **SEEN,
            ),
            "committee": Experiment(
                "Is the smallest score of three reward models harder to please?",
                (
                    ppo("committee of three", "three_of_1000"),
                    ppo("committee of three, β = 0.03", "three_of_1000", 0.03),
                ),
                **SEEN,
                planned=True,
            ),
        },
        told=a_wrong_reward,
        asked=(
            Asked(
                ids=("S04.4", "S04.7"),
                claim="a wrong proxy: up, turn, down; a verifier in its place does not turn",
                heading="9 · Scorecard",
                says="pleasing a learned reward loses the truth",
                runs={"overoptimisation": ["150 pairs", "1000 pairs", "4000 pairs", "verifier"]},
            ),
            Asked(
                ids=("S04.6", "T04.2"),
                claim="stopping early saves a part; half the rate: as deep, half as fast",
                heading="Deeper: Is it the learning rate? Or does one only have to stop early?",
                says="Stopping early is a limit in time.",
                runs={
                    "overoptimisation": ["1000 pairs"],
                    "overoptimisation_slow": ["1000 pairs"],
                },
            ),
        ),
    ),
    Question(
        claim="a KL penalty saves the mean; a larger one loses less of the worst family",
        row={
            "pressing": "β = 0.1 minus none: {... and what a leash of 0.1 gives back | "
            "habits, 1000 pairs}; plain sums fall at 0.1 and rise at 0.3, the largest that was "
            "tried",
            "paper": "Gao et al.: no more truth than stopping early",
        },
        experiments={
            "short_leash": Experiment(
                "Does a leash beyond the largest that was tried hold better?",
                (ppo("1000 pairs, β = 0.3", "after_1000", 0.3),),
                **SEEN,
            ),
        },
        told=a_leash,
        asked=(
            Asked(
                ids=("S04.5",),
                claim="a KL penalty holds it",
                heading="9 · Scorecard",
                says="a KL penalty saves the mean; a larger one loses less of the worst family",
                runs={"overoptimisation": ["1000 pairs, β = 0.1", "1000 pairs"]},
            ),
        ),
    ),
    Question(
        claim="a better trained reward model: a higher peak, and an end below a tenth all the same",
        row={
            "pressing": "1000 pairs four times minus 4000 once, at the end: "
            "{four passes over 1000 pairs, for one over 4000 | habits, 1000 pairs}; level at the "
            "peak",
        },
        experiments={
            "passes": Experiment(
                "What do more pairs buy with as many passes over them?",
                tuple(
                    ppo(f"1000 pairs, {words}", made)
                    for words, made in (
                        ("one pass", "once_over_1000"),
                        ("four passes", "four_times_over_1000"),
                    )
                ),
                **SEEN,
            ),
        },
        told=more_pairs,
        asked=(
            Asked(
                ids=("T04.1",),
                claim="with more pairs the truth turns later",
                heading="9 · Scorecard",
                says="a better trained reward model: a higher peak, and an end below a tenth",
                runs={
                    "overoptimisation": ["4000 pairs", "1000 pairs"],
                    "passes": ["1000 pairs, four passes", "1000 pairs, one pass"],
                },
            ),
        ),
    ),
    Question(
        claim="under the same KL penalty, annotators who err together cost truth",
        row={
            "pressing": "minus experts: {annotators who share a misconception | habits, 1000 "
            "pairs}",
        },
        experiments={
            "misled": Experiment(
                "What does PPO learn from annotators who share the misconception in two families?",
                (ppo("misled annotators, β = 0.1", "after_1000_misled", 0.1),),
                seeds=FIVE,
                **SEEN,
            ),
        },
        told=misled,
        asked=(
            Asked(
                ids=("T04.3",),
                claim="misled annotators: two families die, nothing warns",
                heading="9 · Scorecard",
                says="under the same KL penalty, annotators who err together cost truth",
                runs={
                    "misled": ["misled annotators, β = 0.1"],
                    "overoptimisation": ["1000 pairs, β = 0.1"],
                },
            ),
        ),
    ),
    Question(
        claim="picking the best of n, and DPO, turn as well",
        row={
            "exact": "best of 1024: truth .00",
            "pressing": "one reward model, one run (folded)",
        },
        told=without_rl,
        asked=(
            Asked(
                ids=("S04.8", "S04.10"),
                claim="best-of-n over-optimises, DPO has the same hump",
                heading="Deeper: Can one do without the reward model? DPO",
                says="DPO and PPO under its KL penalty come to about the same",
                runs={
                    "told_directly": ["best of n", "DPO on 1000 pairs"],
                    "overoptimisation": ["1000 pairs, β = 0.1"],
                },
            ),
        ),
    ),
    Question(
        claim="being told right answers is worth more than RL on a reward",
        row={
            "pressing": "256 written answers minus PPO with a verifier: "
            "{right answers that somebody wrote, for PPO with a verifier | habits} (folded)",
        },
        experiments={
            "told_directly": Experiment(
                "What do demonstrations, DPO and picking make of as many labels?",
                tuple(told_directly()),
                columns=("accuracy", "completions"),
                tuning_seeds=(100, 101),
                world=Directly,
                measure=families_or_picked,
                evaluation=ASKED,
            ),
        },
        told=from_examples,
    ),
    Question(
        claim="pairs of the policy as it is keep a reward model true",
        experiments={
            "fresh_pairs": Experiment(
                "Do pairs of the policy as it is keep a reward model true?",
                (
                    in_rounds("its own pairs, five times", "its own"),
                    in_rounds("the base's pairs, five times", "the base"),
                ),
                **PROXY,
            ),
            "fresh_leash": Experiment(
                "... and pairs of the policy as it is, under a leash?",
                (in_rounds("its own pairs, β = 0.1", "its own", 0.1),),
                **PROXY,
                planned=True,
            ),
        },
        told=new_pairs,
    ),
)
