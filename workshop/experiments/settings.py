"""The worlds experiments are run in, and what is measured there: see `workshop.worlds.troubles`."""

from collections.abc import Iterable, Sequence
from functools import partial

from rlbook.evaluation import held_out_rollouts
from rlbook.policy import load_policy
from rlbook.tasks import SumsTask, Task
from rlbook.training import Rollout, RunConfig, Trainer
from rlbook.training.metrics import mean
from workshop.experiments.design import World, sums_decisions
from workshop.worlds.shared_choice import OpeningTask, shared_choice
from workshop.worlds.troubles import (
    LostIsWrong,
    RareOpening,
    StartsLost,
    Unsolvable,
)

HABITS = {"policy": "tiny-habits", "task": "habits"}


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


def rare_opening(config: RunConfig) -> Trainer:
    """Right is what opens with "check "."""
    return Trainer(config, task=RareOpening())


def rare_decision(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The probability of the rare opening after a step."""
    return {"opens_rarely": sums_decisions(trainer)["opens_careful"]}


def unsolvable(share: float) -> World:
    """A share of the problems has no right answer."""
    return partial(_with_task, Unsolvable(share))


def _with_task(task: SumsTask, config: RunConfig) -> Trainer:
    return Trainer(config, task=task)


def on_plain_sums(trainer: Trainer) -> dict[str, float]:
    """pass@1 on sums that all have an answer."""
    policy = trainer.model, trainer.tokenizer
    rollouts = held_out_rollouts(policy, SumsTask(), prompts=96, n=8)
    return {"pass@1_solvable": mean(r.correct for r in rollouts)}


def at_two_limits(trainer: Trainer, task: Task | None = None) -> dict[str, float]:
    """Accuracy under the limit of training and when 80 tokens are allowed, and what was decided.

    On problems of the run's task, or of another.
    """
    policy, levels = (trainer.model, trainer.tokenizer), trainer.config.data.levels
    row = sums_decisions(trainer)
    for limit in (32, 80):
        rollouts = held_out_rollouts(
            policy, task or trainer.task, prompts=96, n=8, levels=levels, max_new_tokens=limit
        )
        row[f"pass@1_limit_{limit}"] = mean(r.correct for r in rollouts)
        row[f"truncated_limit_{limit}"] = mean(r.truncated for r in rollouts)
    return row


def one_choice(config: RunConfig) -> Trainer:
    """All prompts share one opening, and nothing else can be trained."""
    return Trainer(config, shared_choice(load_policy(config.model.policy)), task=OpeningTask())
