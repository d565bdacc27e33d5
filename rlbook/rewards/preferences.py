"""Preferences: which of two answers to one prompt somebody likes better."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.grouping import group_by
from rlbook.policy import Sampler, end_ids
from rlbook.tasks import Task
from rlbook.tasks.base import Labelled
from rlbook.training import Rollout, collect_rollouts, derive_seed

__all__ = ["Annotator", "Misled", "Preference", "expert", "sample_preferences"]

PROMPTS_AT_ONCE = 64


@dataclass(frozen=True)
class Preference:
    """Two completions of one prompt, `chosen` liked better than `rejected`."""

    chosen: Rollout
    rejected: Rollout

    @property
    def level(self) -> int:
        """Level of the problem that both answer."""
        return self.chosen.problem.level

    @property
    def flipped(self) -> "Preference":
        """The opposite opinion."""
        return Preference(self.rejected, self.chosen)


class Annotator(Protocol):
    """What an answer is worth to somebody; of two answers the one worth more is preferred."""

    def __call__(self, rollout: Rollout, /) -> float: ...


def expert(rollout: Rollout) -> float:
    """Worth of an answer to somebody who can tell right from wrong: the verifier's word."""
    return float(rollout.correct)


@dataclass(frozen=True)
class Misled:
    """An annotator who shares the pupils' misconception on some levels, and is an expert elsewhere.

    `task` labels answers by the rule they follow (`rlbook.tasks.HabitsTask`).
    """

    task: Labelled
    levels: tuple[int, ...]

    def __call__(self, rollout: Rollout) -> float:
        if rollout.problem.level not in self.levels:
            return expert(rollout)
        label = self.task.label(rollout.problem, rollout.text, not rollout.truncated)
        return float(label == "misconception")


def sample_preferences(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    n: int,
    *,
    annotator: Annotator = expert,
    noise: float = 0.0,
    answers: int = 8,
    levels: Sequence[int] | None = None,
    max_new_tokens: int = 80,
    seed: int = 0,
) -> list[Preference]:
    """`n` preferences between answers that the policy itself gives.

    Every problem is answered `answers` times; if the annotator values these differently, one pair
    of unequal worth is drawn, and with probability `noise` the label is flipped. A pure function
    of its arguments; a longer list begins with the shorter one of the same seed. Raises
    `ValueError` for a noise outside [0, 1].
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is the probability of a flipped label, got {noise}")
    rng = random.Random(f"preferences {seed}")
    groups = answered(policy, task, answers, levels, max_new_tokens, seed)
    pairs = (pair for group in groups if (pair := drawn_pair(group, annotator, rng)))
    return [pair.flipped if rng.random() < noise else pair for pair in islice(pairs, n)]


def answered(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    answers: int,
    levels: Sequence[int] | None,
    max_new_tokens: int,
    seed: int,
) -> Iterator[list[Rollout]]:
    """Endless groups of completions, one group a problem."""
    model, tokenizer = policy
    engine = Sampler(model, end_ids(model, tokenizer))
    for number in count():
        problems = task.sample(
            derive_seed(seed, "preferences", "prompts", number), PROMPTS_AT_ONCE, levels
        )
        noise = derive_seed(seed, "preferences", "rollouts", number)
        rollouts = collect_rollouts(
            engine, tokenizer, task, problems, answers, max_new_tokens=max_new_tokens, seed=noise
        )
        yield from group_by(rollouts, lambda r: r.group).values()


def drawn_pair(
    group: Sequence[Rollout], annotator: Annotator, rng: random.Random
) -> Preference | None:
    """Two answers of unequal worth, or None where all are worth the same."""
    worth = [annotator(r) for r in group]
    unequal = [
        (better, other)
        for better, high in zip(group, worth, strict=True)
        for other, low in zip(group, worth, strict=True)
        if high > low
    ]
    return Preference(*rng.choice(unequal)) if unequal else None
