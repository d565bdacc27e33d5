"""Chapter 04: a reward model in the verifier's place."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from rlbook.objectives import METHODS, KLPenalty, Method
from rlbook.policy import load_policy
from rlbook.rewards import (
    Annotator,
    Misled,
    Preference,
    ProxyReward,
    RewardModel,
    expert,
    kl_of_answers,
    margins,
    sample_preferences,
    train_reward_model,
)
from rlbook.tasks.habits import HabitsTask
from rlbook.training import Rollout, RunConfig, Trainer
from rlbook.training.metrics import group_by, mean
from rlbook.training.rewards import get_reward
from workshop.experiments.design import Arm, Experiment, arm
from workshop.experiments.settings import HABITS

LEVELS = (1, 2, 3, 4)  # of the others the base gives too few right answers to be compared
NOISE = 0.1
EPOCHS = {150: 4, 1000: 2, 4000: 1}
HELD_OUT = 999  # seed of the preferences that no reward model learns from
MISLED = Misled(HabitsTask(), levels=(3, 4))
KL_EVERY = 3
LIMIT = 48


def preferences(n: int, seed: int, annotator: Annotator = expert, noise: float = NOISE):
    """Preferences between answers of the base."""
    policy = load_policy(HABITS["policy"])
    how = {"answers": 4, "levels": LEVELS, "max_new_tokens": LIMIT}
    return sample_preferences(
        policy, HabitsTask(), n, annotator=annotator, noise=noise, seed=seed, **how
    )


def reward_model(
    pairs: int, seed: int, annotator: Annotator = expert, epochs: int | None = None
) -> RewardModel:
    """The reward model of a number of preferences; trained once, then read from `runs`.

    `epochs` passes over them, or as many as `EPOCHS` says.
    """
    who = "misled" if annotator is MISLED else "expert"
    passes = f"-{epochs}" if epochs else ""
    path = Path("runs/reward_models") / f"{who}-{pairs}-{seed}{passes}.pt"
    model = RewardModel(load_policy(HABITS["policy"])[0])
    if path.is_file():
        model.load_state_dict(torch.load(path))
        return model
    data = preferences(pairs, seed, annotator)
    for _ in train_reward_model(model, data, epochs=epochs or EPOCHS[pairs], seed=seed):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_suffix(f".{os.getpid()}")
    torch.save(model.state_dict(), partial_path)
    os.replace(partial_path, path)
    return model


def proxy(pairs: int, annotator: Annotator, seed: int, epochs: int | None = None) -> ProxyReward:
    return ProxyReward(reward_model(pairs, seed, annotator, epochs))


after_150 = partial(proxy, 150, expert)
after_1000 = partial(proxy, 1000, expert)
after_4000 = partial(proxy, 4000, expert)
once_over_1000 = partial(proxy, 1000, expert, epochs=1)
four_times_over_1000 = partial(proxy, 1000, expert, epochs=4)
after_1000_misled = partial(proxy, 1000, MISLED)


class Committee:
    """The smallest score of several reward models, put on one zero: what each gives the base."""

    def __init__(self, models: Sequence[RewardModel]):
        answers = [answer for pair in held_out() for answer in (pair.chosen, pair.rejected)]
        self.zeros = [(model, model.scores(answers).mean()) for model in models]

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        scores = [model.scores(rollouts) - zero for model, zero in self.zeros]
        return {"proxy": torch.stack(scores).amin(0).tolist()}


def three_of_1000(seed: int) -> Committee:
    """Three models of a thousand pairs each, one of them that of the arms of a single model."""
    return Committee([reward_model(1000, seed + 1000 * k) for k in range(3)])


def rewarded(config: RunConfig) -> Trainer:
    """The reward that `config.data.reward` makes of the run's seed; else the verifier's word."""
    make = config.data.reward
    return Trainer(config, reward=get_reward(make)(config.seed) if make else None)


def distance(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """KL(π ‖ base) of whole answers, every few steps, of the policy that gave these."""
    if (trainer.step - 1) % KL_EVERY:
        return {}
    return {"kl_to_base": kl_of_answers(rollouts, base())}


@cache
def base():
    return load_policy(HABITS["policy"])[0]


@cache
def held_out() -> list[Preference]:
    return preferences(400, HELD_OUT, noise=0.0)


def agreement(trainer: Trainer) -> dict[str, float]:
    """On how many held-out pairs the run's reward prefers the right answer, by family."""
    (reward, *_) = trainer.source.rewards
    if not isinstance(reward, ProxyReward):
        return {}
    found = zip(held_out(), (margins(reward.model, held_out()) > 0).tolist(), strict=True)
    by_level = group_by(found, lambda pair: pair[0].level)
    return {
        f"agrees_level_{level}": mean(agrees for _, agrees in by_level[level]) for level in LEVELS
    }


def leashed(beta: float) -> Method:
    """PPO whose reward pays β for every nat that an answer is from the base."""
    kl = KLPenalty("k1", beta, "reward") if beta else None
    return replace(METHODS["ppo"], kl=kl)


def ppo(label: str, made: str | None, beta: float = 0.0, **changes: Any) -> Arm:
    """PPO on a reward that a function of this module makes."""
    settings = {"prompts": 48, "group_size": 2, "minibatches": 4, "steps": 30, "levels": LEVELS}
    settings |= {"lr": 6e-4, "critic_lr": 1e-3, "max_new_tokens": LIMIT} | HABITS | changes
    reward = made and f"{__name__}:{made}"
    return arm(label, leashed(beta), reward=reward, **settings)


FIVE = (0, 1, 2, 3, 4)
PURSUED = ("reward", "accuracy", "completions", "entropy", "kl_to_base")  # by step
PURSUED += tuple(f"accuracy_level_{level}" for level in LEVELS)
SEEN = {
    "columns": PURSUED,
    "chosen_by": None,
    "world": rewarded,
    "begins": Trainer,
    "watch": distance,
    "measure": agreement,
    "evaluation": {"prompts": 64, "n": 4, "ks": (1,)},
}

RLHF: dict[str, Experiment] = {
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
    "misled": Experiment(
        "What does PPO learn from annotators who share the misconception in two families?",
        (ppo("misled annotators, β = 0.1", "after_1000_misled", 0.1),),
        seeds=FIVE,
        **SEEN,
    ),
}
