"""Chapter 07: its experiments."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rlbook.grouping import mean
from rlbook.policy import load_policy
from rlbook.training import Rollout, RunConfig, Trainer
from workshop.shared.design import Arm, Experiment, arm, sums_decisions, vary
from workshop.shared.experiments import CENTRED, FEW, FIVE
from workshop.shared.worlds import LostIsWrong, StartsLost

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


EXPERIMENTS: dict[str, Experiment] = {
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
}
