"""Chapter 05: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator

from workshop.shared.question import Asked, Question
from workshop.shared.scorecard import Questions
from workshop.shared.told import (
    ALL_LEVELS,
    OWN,
    SUMS,
    Told,
    pretrained,
    rung,
    there,
    told_pretrained,
)
from workshop.shared.verdict import Claim

HOW = (SUMS + OWN, "siblings")
SIBLINGS = "PPO's loss, siblings"
ON_SMOLLM2 = "GRPO for RLOO from a pretrained model"


def a_critic(told: Told) -> Iterator[Claim]:
    yield from rung(told, "GRPO for PPO", "GRPO", "PPO", null=None)
    yield told("siblings against a critic", *HOW, SIBLINGS, "PPO, critic, λ = 1")
    yield told("siblings against the batch mean", *HOW, SIBLINGS, "batch mean")


def a_mean_per_answer(told: Told) -> Iterator[Claim]:
    yield told("a mean per answer costs", *HOW, "GRPO", SIBLINGS)


def sigma(told: Told) -> Iterator[Claim]:
    yield from rung(told, "σ and nothing else", "GRPO", "GRPO, no σ")
    if there(told.load, "habits_sigma"):
        habits = ("habits, forty batches, own rates", "habits_sigma", "GRPO", "GRPO, no σ")
        yield told("σ and nothing else", *habits, control="ladder_sums")
    habits = ("habits, own rates", "habits", "GRPO", "RLOO", ALL_LEVELS)
    yield told("σ brings rare rules forward", *habits, null=None)
    yield from pretrained(told, ON_SMOLLM2, "real_sums", "GRPO", "RLOO")


def a_penalty(told: Told) -> Iterator[Claim]:
    yield told("a KL penalty", *HOW, "GRPO + KL", "GRPO")


QUESTIONS = Questions(
    Question(
        claim="siblings know a prompt at once",
        row={
            "pressing": "a critic needs more than a thousand answers (section 1, five rates)",
            "paper": "DeepSeekMath: a critic is costly and hard to get right",
        },
        asked=(
            Asked(
                ids=("S05.2",),
                claim="a critic is level after 2,688 answers",
                heading="9 · What stands",
                says="a critic needs more than a thousand answers (section 1, five rates)",
                how="live, one critic; five rates tried",
            ),
        ),
    ),
    Question(
        claim="siblings replace the critic",
        row={
            "control": "plain sums: {siblings against a critic | plain sums, own rates}; "
            "{detectable: siblings against a critic | plain sums, own rates} would be found",
            "paper": "DeepSeekMath: yes",
        },
        told=a_critic,
        asked=(
            Asked(
                ids=("S05.3",),
                claim="siblings replace the critic",
                heading="7 · Do siblings replace the critic?",
                says="That siblings equal a critic is not shown",
                runs={"siblings": ["PPO's loss, siblings", "PPO, critic, λ = 1"]},
            ),
        ),
    ),
    Question(
        claim="what parts GRPO from PPO is the averaging",
        row={
            "control": "plain sums: {a mean per answer costs | plain sums, own rates}",
            "paper": "Dr. GRPO, DAPO",
        },
        told=a_mean_per_answer,
        asked=(
            Asked(
                ids=("S05.4",),
                claim="a mean over tokens beats one per answer",
                heading="7 · Do siblings replace the critic?",
                says="it stands when the seeds that chose the rates are drawn again",
                runs={"siblings": ["GRPO", "PPO's loss, siblings"]},
            ),
        ),
    ),
    Question(
        claim="σ brings rare rules forward",
        row={
            "exact": "w(p, G); not at all at G = 2",
            "pressing": "habits, all families: {σ brings rare rules forward | habits, own rates}; "
            "σ alone, forty batches: {σ and nothing else | habits, forty batches, own rates}",
            "control": "plain sums: {σ where nothing is hard | plain sums, own rates}",
            "pretrained": told_pretrained("GRPO minus RLOO", ON_SMOLLM2),
            "paper": "Dr. GRPO: a bias",
        },
        told=sigma,
        asked=(
            Asked(
                ids=("S05.5",),
                claim="σ brings rare rules forward",
                heading="Deeper: What does σ do where prompts are graded?",
                says="rare minus common: +0.111, 95 % from +0.044 to +0.179",
                runs={
                    "habits": ["GRPO", "RLOO"],
                    "habits_sigma": ["GRPO", "GRPO, no σ"],
                    "ladder_habits": ["GRPO", "GRPO, no σ"],
                },
            ),
            Asked(
                ids=("S05.6",),
                claim="σ makes scales comparable",
                heading="Deeper: When is σ right? Ten points for brackets.",
                says="With σ the factor is gone before anybody sees it: that run is the run with "
                "one scale.",
                how="live, one seed",
            ),
        ),
    ),
    Question(
        claim="the KL penalty is needed",
        row={
            "control": "plain sums, with minus without: {a KL penalty | plain sums, own rates}",
            "paper": "β = 0.04; most later runs 0",
        },
        told=a_penalty,
    ),
    Question(
        claim="a rule is obeyed to the letter",
        asked=(
            Asked(
                ids=("S05.8",),
                claim="a rule is obeyed to the letter",
                heading="What each rule does alone",
                says="That is reward hacking, in twelve steps.",
                how="live, one seed",
            ),
        ),
    ),
)
