"""Chapter 04: what is measured while a policy pleases a reward, and what each run wrote."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from transformers import PreTrainedModel

from rlbook.grouping import group_by, mean
from rlbook.objectives import METHODS, policy_loss, value_loss
from rlbook.policy import Sampler, logprobs
from rlbook.rewards import RewardModel, kl_of_answers
from rlbook.tasks import held_out_problems
from rlbook.training import Rollout, TrainBatch, Trainer, collect_rollouts
from workshop.ch04.figures import FAMILY_OF, answers_table
from workshop.shared.texts import TextPanel, show_answers

LEVELS = (1, 2, 3, 4)
PANELS = ("reward", "accuracy", "kl_to_base")


def with_distance(trainer: Trainer, base: PreTrainedModel) -> Iterator[dict[str, float]]:
    """The metrics of every step of a trainer, and how far its policy is from the base."""
    while trainer.step < trainer.config.steps:
        rollouts = trainer.collect()
        distance = kl_of_answers(rollouts, base)
        yield trainer.learn(rollouts) | {"kl_to_base": distance}


def update(
    networks: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer], part: TrainBatch
) -> None:
    """One update of a policy and its critic by PPO, as chapter 03 makes it."""
    model, critic = networks
    logp = logprobs(model, part.ids, part.mask)
    policy_loss(METHODS["ppo"], logp, part.logp_old, part.advantages, part.mask).loss.backward()
    value_loss(critic(part.ids, part.mask), part.values_old, part.returns, part.mask).backward()
    for network, optimizer in zip(networks, optimizers, strict=True):
        clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def truth_of(rollouts: Sequence[Rollout]) -> float:
    """Share of right answers."""
    return mean(r.correct for r in rollouts)


def verifier(rollouts: Sequence[Rollout]) -> list[float]:
    """1 for every right answer, 0 for every other."""
    return [float(r.correct) for r in rollouts]


def seen(
    runs: Iterator[list[Rollout]], judge: RewardModel, base: PreTrainedModel
) -> Iterator[dict[str, float]]:
    """Of every step: the score a judge gives, the truth, the distance, the truth by family."""
    for step, rollouts in enumerate(runs, 1):
        found = {"step": step, "reward": judge.scores(rollouts).mean().item()}
        found |= {"accuracy": truth_of(rollouts), "kl_to_base": kl_of_answers(rollouts, base)}
        for level, some in group_by(rollouts, lambda r: r.problem.level).items():
            found[f"accuracy_level_{level}"] = truth_of(some)
        yield found


def ends_of_runs(history: Mapping[str, Sequence[Mapping[str, float]]]) -> pd.DataFrame:
    """A row per run: means of its last six steps, the truth also by family."""
    ends = {name: pd.DataFrame(rows)[-6:].mean() for name, rows in history.items()}
    families = {f"accuracy_level_{level}": FAMILY_OF[level] for level in LEVELS}
    return pd.DataFrame(ends).T[[*PANELS, *families]].rename(columns=families)


def said(models: Mapping[str, PreTrainedModel], tokenizer: Any, task: Any) -> pd.DataFrame:
    """The greedy answers of several policies to one held-out problem of each family."""
    some = held_out_problems(task, 32, LEVELS)
    problems = [next(p for p in some if p.level == level) for level in LEVELS]
    how: dict[str, Any] = {"max_new_tokens": 48, "temperature": 0}
    engines = {name: Sampler(model, tokenizer.eos_token_id) for name, model in models.items()}
    return answers_table({
        name: collect_rollouts(engine, tokenizer, task, problems, 1, **how)
        for name, engine in engines.items()
    }).T  # fmt: skip


def written_by(rollouts: Sequence[Rollout], each: int = 1) -> TextPanel:
    """The first answers of every family, each with the score that it was given."""
    groups = group_by(rollouts, lambda r: r.problem.level)
    some = [r for level in sorted(groups) for r in groups[level][:each]]
    return show_answers(some, note=lambda r: f"score {r.reward:+.2f}")
