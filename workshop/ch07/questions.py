"""Chapter 07: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rlbook.grouping import mean
from rlbook.policy import load_policy
from rlbook.training import Rollout, RunConfig, Trainer
from workshop.shared.design import Arm, Experiment, arm, sums_decisions, vary
from workshop.shared.experiments import CENTRED, FEW, FIVE
from workshop.shared.question import Asked, Question
from workshop.shared.runs import Column
from workshop.shared.scorecard import Questions
from workshop.shared.told import OWN, PASS, SUMS, Told, pretrained, rung, told_pretrained
from workshop.shared.verdict import Claim
from workshop.shared.worlds import LostIsWrong, StartsLost

ON_SMOLLM2 = "Dr. GRPO for GRPO from a pretrained model"
LATE = Column("accuracy", steps=(16, 20))
LOST = Column("length_lost", steps=(20, 20), learned=LATE)

AGGREGATIONS = {
    "mean per answer": "sequence_mean",
    "prompt mean": "prompt_mean",
    "token mean": "token_mean",
    "constant": "constant",
}


def averages(**settings: Any) -> Iterator[Arm]:
    """The four ways to average tokens, at two learning rates."""
    for label, aggregation in AGGREGATIONS.items():
        method = replace(CENTRED, aggregation=aggregation)
        yield vary(arm(label, method, **settings), lr=(1.5e-4, 3e-4))


def lost_answers(config: RunConfig) -> Trainer:
    """Half of every group starts lost."""
    policy = load_policy(config.model.policy)
    return Trainer(config, policy, task=LostIsWrong(), engine=StartsLost(*policy))


def lost_half(trainer: Trainer, rollouts: Iterable[Rollout]) -> dict[str, float]:
    """Length of the answers that started lost, and how many never stopped."""
    lost = [r for r in rollouts if r.forced]
    return {
        "length_lost": mean(r.length for r in lost),
        "truncated_lost": mean(r.truncated for r in lost),
        "accuracy_free": mean(r.correct for r in rollouts if not r.forced),
        "stops_when_lost": sums_decisions(trainer)["stops_when_lost"],
    }


def beside_the_constant(told: Told, text: str, arm: str) -> Iterator[Claim]:
    """How much longer answers that started lost are than under the constant, at two rates."""
    for lr in (1.5e-4, 3e-4):
        yield told(text, "answers that start lost", "lost_answers", arm, "constant", LOST,
                   lr=lr, unit="tokens")  # fmt: skip


def a_mean_per_answer(told: Told) -> Iterator[Claim]:
    text = "dividing by its length lets a lost answer grow"
    yield from beside_the_constant(told, text, "mean per answer")
    plain = ("lost_answers_control", "mean per answer", "constant")
    length = Column("length", learned=PASS)
    for lr in (1.5e-4, 3e-4):
        yield told(
            "where none starts lost, the answers", SUMS, *plain, length, lr=lr, unit="tokens"
        )
        yield told("... and their accuracy", SUMS, *plain, lr=lr)


def other_means(told: Told) -> Iterator[Claim]:
    yield from beside_the_constant(told, "a mean over the prompt does so too", "prompt mean")
    yield from beside_the_constant(told, "a mean over all tokens, less", "token mean")


def sigma(told: Told) -> Iterator[Claim]:
    yield told("σ where nothing is hard", SUMS + OWN, "siblings", "GRPO", "GRPO, no σ")


def the_row(told: Told) -> Iterator[Claim]:
    yield from rung(told, "Dr. GRPO for GRPO", "Dr. GRPO", "GRPO", null=None)
    yield from pretrained(
        told, ON_SMOLLM2, "real_more_sums", "Dr. GRPO", "GRPO", beside="real_sums"
    )


QUESTIONS = Questions(
    Question(
        claim="the mean over each answer teaches lost answers to go on",
        row={
            "exact": "drift −p(1−p)·(G−1)/G·κ of the logit of “stop”",
            "pressing": "{mean} tokens at the end, against {constant} with the constant",
            "control": "wrong answers {control} tokens (two rates)",
            "paper": "wrong answers much shorter without it (Fig. 5)",
        },
        experiments={
            "lost_answers_control": Experiment(
                "What do the four ways to average tokens teach where no answer starts lost?",
                tuple(averages(minibatches=4, steps=15)),
                seeds=FIVE,
                chosen_by=None,
            ),
            "lost_answers": Experiment(
                "How long do lost answers grow under each aggregation?",
                tuple(averages(levels=(2, 3), steps=20)),
                chosen_by=None,
                seeds=tuple(range(5)),
                world=lost_answers,
                watch=lost_half,
                evaluation=FEW,
            ),
        },
        told=a_mean_per_answer,
        asked=(
            Asked(
                ids=("S07.1", "S07.2", "S07.3", "S08.6"),
                claim="a mean per answer lets lost answers go on; prompt and token mean less; a "
                "constant not",
                heading="7 · Does the order that was computed hold over seeds?",
                says="The order of the means is the computed one",
                runs={
                    "lost_answers": [
                        "mean per answer",
                        "prompt mean",
                        "token mean",
                        "constant",
                    ],
                    "lost_answers_control": ["mean per answer", "constant"],
                },
            ),
        ),
    ),
    Question(
        claim="prompt mean and token mean keep a part of it",
        row={
            "exact": "a twelfth; a fiftieth with 32 answers",
            "pressing": "{prompt} and {token} tokens; the second is within the noise",
            "paper": "not compared",
        },
        told=other_means,
    ),
    Question(
        claim="a constant has no length bias",
        row={
            "exact": "exactly 0",
            "pressing": "{walk} tokens: the seeds scatter",
            "paper": "both denominators dropped (App. A)",
        },
    ),
    Question(
        claim="σ moves weight to easy and hard questions, more so in large groups",
        row={
            "exact": "the curve w(p); flat for G = 2",
            "pressing": "a network's gradients on habits; trained in chapter 05",
            "control": "pass@1 {sigma}",
            "paper": "“too easy or too hard”, not measured per question",
        },
        told=sigma,
        asked=(
            Asked(
                ids=("S07.4",),
                claim="σ on plain sums",
                heading="The case for σ",
                says="difference -0.007 [-0.022, +0.008]; 0.021 would be found",
                runs={
                    "siblings": ["GRPO", "GRPO, no σ"],
                    "ladder_habits": ["GRPO", "GRPO, no σ"],
                },
            ),
        ),
    ),
    Question(
        claim="Dr. GRPO beats GRPO",
        row={
            "pressing": "habits: {Dr. GRPO for GRPO | habits, the ladder}",
            "control": "plain sums: {Dr. GRPO for GRPO | plain sums, the ladder}",
            "pretrained": told_pretrained("Dr. GRPO minus GRPO", ON_SMOLLM2),
            "paper": "as accurate, wrong answers shorter",
        },
        told=the_row,
        asked=(
            Asked(
                ids=("T07.1",),
                claim="GRPO's five points are lost answers",
                heading="Where there is no trouble",
                says="the verbose answers, a quarter under a token mean, are down to three in a "
                "hundred",
                runs={"siblings": ["GRPO", "PPO's loss, siblings"]},
            ),
        ),
    ),
)
