"""Chapter 10: the world in which all prompts share one opening, its runs and its solve rates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts
from rlbook.objectives import Method
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import Problem
from rlbook.training import Rollout, RunConfig, Trainer, collect_rollouts
from workshop.ch10.figures import opening_of
from workshop.shared.worlds.shared_choice import OpeningTask, shared_choice

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
TASK = OpeningTask()
LEVELS = (3, 6, 7)  # operands: a third of the sums is short
LIMIT = 28  # tokens: room to work out a short sum
SETTINGS = RunConfig(
    levels=LEVELS, max_new_tokens=LIMIT, prompts=16, group_size=16, minibatches=1, lr=0.1, steps=20
)


def base() -> Policy:
    """The tiny model, frozen but for the vector behind `<think>` that all prompts share."""
    return shared_choice(load_policy("tiny"))


def elected_by(method: Method, **changed: Any) -> Policy:
    """The policy whose one shared opening a method has trained, by `SETTINGS` or `changed` ones."""
    policy = base()
    config = SETTINGS.replace(method=replace(method, kl=None), **changed)
    list(Trainer(config, policy, task=TASK))
    return policy


def held_out(policy: Policy, levels: Sequence[int] = LEVELS, n: int = 128) -> list[Rollout]:
    """n answers to each of 48 held-out sums."""
    return held_out_rollouts(
        policy, TASK, prompts=48, n=n, levels=tuple(levels), max_new_tokens=LIMIT
    )


def answers_to(problem: Problem, policy: Policy) -> list[Rollout]:
    """Five answers to one sum, the same draws for every policy."""
    engine = Sampler(policy[0], policy[1].eos_token_id)
    return collect_rollouts(engine, policy[1], TASK, [problem], n=5, seed=2, max_new_tokens=LIMIT)


def solve_rates(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """By opening: how often it is chosen, and the share of right answers to short and long sums."""
    answers = pd.DataFrame(
        {
            "opening": opening_of(r),
            "sum": "short" if r.problem.level == LEVELS[0] else "long",
            "right": r.correct,
        }
        for r in rollouts
    )
    rates = answers.pivot_table(index="opening", columns="sum", values="right")[["short", "long"]]
    rates.insert(0, "chosen", answers.opening.value_counts(normalize=True))
    return rates
