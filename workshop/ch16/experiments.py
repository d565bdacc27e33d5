"""Chapter 16: whose turn was it? Credit for turns in three worlds, each at two learning rates."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.objectives.process import token_credit
from rlbook.policy import logprobs
from rlbook.rewards.turns import BATCH, BesideCredit, GiGPOCredit, PricedCredit
from rlbook.tasks import get_task
from rlbook.training import Reward, Rollout, RunConfig, Trainer, collate
from workshop.ch16.players import base_of
from workshop.shared.design import Arm, Experiment, arm, no_columns, vary
from workshop.shared.experiments import RLOO

TURNWISE = replace(RLOO, advantage=token_credit)
RATES = (4e-4, 8e-4)
SETTINGS = {
    "guess": {"prompts": 8, "turn_tokens": 4, "max_new_tokens": 24, "steps": 40},
    "walk": {"prompts": 8, "turn_tokens": 2, "max_new_tokens": 50, "steps": 60},
}
BY_TURN = "paid by turn"


def number_of_turn(rollout: Rollout, turn: int) -> tuple[int, int]:
    """The group's episodes in the same turn, wherever they stand."""
    return rollout.group, turn


def by_turn() -> Reward:
    """What the world pays from a turn on, beside the group's episodes in the same turn."""
    return BesideCredit(number_of_turn)


def batch_places() -> Reward:
    """The reward beside all episodes of the batch that stood at the same place."""
    return BesideCredit(BATCH)


HERE = "workshop.ch16.experiments"
CREDITS: dict[str, Callable[[], Reward] | None] = {
    "outcome": None,
    BY_TURN: by_turn,
    "GiGPO": GiGPOCredit,
    "place in the batch": batch_places,
    "priced": PricedCredit,
}


def path_of(make: Callable[[], Reward]) -> str:
    """Where a file would name it."""
    return f"{make.__module__}:{make.__name__}"


def play(config: RunConfig) -> Trainer:
    """A run that begins with the base of its world."""
    task, named = get_task(config.data.task), config.data.reward
    makes = {path_of(make): make for make in CREDITS.values() if make}
    reward = makes[named]() if named else None
    return Trainer(config, deepcopy(base_of(task.name)), task=task, reward=reward)


def arms(world: str, paid: str, of: str, labels: Sequence[str] = tuple(CREDITS)) -> Iterator[Arm]:
    """The same run with other credit for turns; `paid` is the world that pays for each of them."""
    for label in labels:
        make, task = CREDITS[label], paid if label == BY_TURN else world
        settings: dict[str, Any] = SETTINGS[of] | {"group_size": 8, "minibatches": 1, "task": task}
        named = path_of(make) if make else None
        one = arm(label, TURNWISE if make else RLOO, reward=named, **settings)
        yield vary(one, lr=RATES)


def in_world(question: str, world: str, paid: str, of: str, **more: Any) -> Experiment:
    """All ways to give credit in one world."""
    return Experiment(
        question,
        tuple(arms(world, paid, of)),
        chosen_by=None,
        world=play,
        measure=no_columns,
        evaluation={"prompts": 64, "n": 2, "ks": (1,)},
        columns=("accuracy", "completions", "entropy", "grad_norm"),
        **more,
    )


def outcome_credit(rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
    """The group's leave-one-out advantage as credit: the same number for every turn."""
    earned: dict[int, list[float]] = {}
    for r in rollouts:
        earned.setdefault(r.group, []).append(r.worth)
    advantages = [
        r.worth - (sum(of := earned[r.group]) - r.worth) / (len(of) - 1) for r in rollouts
    ]
    return {"credit": [[a] * r.length for a, r in zip(advantages, rollouts, strict=True)]}


def gradient(model: PreTrainedModel, rollouts: Sequence[Rollout]) -> Float[Tensor, " P"]:
    """The gradient of Σ m_t Â_t log π(y_t) with outcome credit, over all weights; m is the mask."""
    twin, batch = deepcopy(model), collate(rollouts)
    push = torch.zeros(batch.mask.shape)
    credit = outcome_credit(rollouts)["credit"]
    for row, r, values in zip(push, rollouts, credit, strict=True):
        row[len(r.prompt_ids) : len(r.prompt_ids) + r.length] = torch.tensor(values)
    logp = logprobs(twin, batch.ids, batch.mask)
    (push * logp * batch.mask).sum().backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
