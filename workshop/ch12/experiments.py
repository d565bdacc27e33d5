"""Chapter 12: LitePPO, one choice exchanged and all choices crossed, and the dials of entropy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from rlbook.evaluation import held_out_rollouts
from rlbook.grouping import mean
from rlbook.objectives import (
    METHODS,
    CovarianceClip,
    CovarianceKL,
    Method,
    RatioClip,
    TopEntropy,
    group_center,
    group_normalize,
    reinforce_plus_plus,
)
from rlbook.objectives.selection import next_bonus
from rlbook.policy import load_policy
from rlbook.training import Rollout, RunConfig, Trainer, derive_seed
from workshop.shared.design import Arm, Experiment, World, arm, over_choices, vary
from workshop.shared.worlds import HABITS

LITE = METHODS["lite_ppo"]
FIVE = (0, 1, 2, 3, 4)
ASKED = {"prompts": 96, "n": 8, "ks": (1, 8)}
TARGET, STEP = 0.15, 0.1  # nats per token, and the bonus's change per batch


@dataclass(frozen=True)
class LowestEntropy(TopEntropy):
    """The other tokens: only the `share` with the lowest entropy learns."""

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Tensor:
        return super().__call__(logp, -entropy, advantages, mask, seed)


@dataclass(frozen=True)
class RandomTokens(TopEntropy):
    """As few tokens as the others, drawn without looking."""

    def __call__(
        self, logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, seed: int = 0
    ) -> Tensor:
        noise = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
        return super().__call__(logp, noise.to(mask.device), advantages, mask, seed)


class TargetEntropy(Trainer):
    """A trainer whose entropy bonus follows `next_bonus`."""

    bonus = 0.0

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        metrics = super().learn(rollouts)
        self.bonus = next_bonus(self.bonus, metrics["entropy"], TARGET, STEP)
        in_force = self.bonus * (metrics["entropy"] <= TARGET)
        self.learner.method = replace(self.method, entropy_bonus=in_force)
        return metrics | {"entropy_bonus": in_force}


def dialled(config: RunConfig) -> Trainer:
    """The trainer of a dial: the adaptive one has no setting of its own."""
    return (TargetEntropy if config.method.name == "adaptive" else Trainer)(config)


@cache
def trained_weights(steps: int = 30) -> Mapping[str, Tensor]:
    """The tiny model after batches of LitePPO: after thirty, most sums are right."""
    method = replace(LITE, old_logprobs="sampler")
    trainer = Trainer(RunConfig(method=method, seed=1000, steps=steps))
    for _ in trainer:
        pass
    return trainer.model.state_dict()


def from_trained(config: RunConfig, steps: int = 30) -> Trainer:
    """A run that goes on from `trained_weights`."""
    model, tokenizer = load_policy(config.model.policy)
    model.load_state_dict(trained_weights(steps))
    return Trainer(config, (model, tokenizer))


def with_room(trainer: Trainer) -> dict[str, float]:
    """Accuracy where nothing is cut off."""
    policy, levels = (trainer.model, trainer.tokenizer), trainer.config.data.levels
    rollouts = held_out_rollouts(policy, trainer.task, prompts=96, n=8, levels=levels)
    return {"pass@1_room": mean(r.correct for r in rollouts)}


def own_draws(config: RunConfig, policy: str) -> RunConfig:
    """The cells of a grid share prompts and noise; its rates, data and policies do not.

    So each seed of each of these is a block of its own, and the intervals are over blocks.
    """
    block = policy, config.data.levels, config.optimizer.lr
    return config.replace(seed=derive_seed(config.seed, *block))


def base_cell(config: RunConfig) -> Trainer:
    return Trainer(own_draws(config, "base"))


def trained_cell(config: RunConfig) -> Trainer:
    return from_trained(own_draws(config, "trained"))


def grid() -> Iterator[Arm]:
    """Every choice with every other, on easy and hard sums, where the limit cuts off some."""
    for data, levels, limit in (("easy", (2, 3), 24), ("hard", (4, 5, 6), 40)):
        settings = {"levels": levels, "max_new_tokens": limit, "minibatches": 8, "steps": 6}
        one = arm(data, LITE, **settings)
        for column, choices in CHOICES.items():
            one = over_choices(one, column, choices)
        yield vary(one, lr=(1e-4, 2e-4))


def crossed(question: str, world: World) -> Experiment:
    return Experiment(
        question,
        tuple(grid()),
        columns=("accuracy", "completions", "truncated", "entropy"),
        seeds=(0, 1),
        chosen_by=None,
        world=world,
        measure=with_room,
        evaluation={"prompts": 96, "n": 4, "ks": (1,)},
    )


def exchanged(changes: Mapping[str, Method], lr: tuple[float, ...], **settings) -> Iterator[Arm]:
    """LitePPO, and LitePPO with one choice exchanged, all at the same rates."""
    for label, method in ({"LitePPO": LITE} | dict(changes)).items():
        yield vary(arm(label, method, **settings), lr=lr)


NORMS = {
    "no σ": replace(LITE, advantage=group_center),
    "group σ": replace(LITE, advantage=group_normalize),
}
PER_ANSWER = {"mean per answer": replace(LITE, aggregation="sequence_mean")}
WHOLE_BATCH = partial(reinforce_plus_plus, population="sequences")
TOKENS = {
    "top 20 %": replace(LITE, selection=TopEntropy(0.2)),
    "random 20 %": replace(LITE, selection=RandomTokens(0.2)),
    "lowest 80 %": replace(LITE, selection=LowestEntropy(0.8)),
}
DIALS = {
    "bonus": replace(LITE, entropy_bonus=0.2),
    "adaptive": replace(LITE, name="adaptive"),
    "Clip-Cov": replace(LITE, selection=CovarianceClip(1e-2, low=0.5, high=50.0)),
    "KL-Cov": replace(LITE, selection=CovarianceKL(2e-2)),
    "KL-Cov, k3": replace(LITE, selection=CovarianceKL(2e-2, kind="k3")),
}
HIGHER = {"clip-higher": replace(LITE, trust_region=RatioClip(0.2, 0.28))}
CHOICES = {
    "normalisation": {
        "none": {"advantage": group_center},
        "group σ": {"advantage": group_normalize},
        "batch σ": {"advantage": LITE.advantage},
    },
    "average": {
        "over tokens": {"aggregation": "token_mean"},
        "per answer": {"aggregation": "sequence_mean"},
    },
    "clip": {
        "symmetric": {"trust_region": RatioClip(0.2, 0.2)},
        "higher": {"trust_region": RatioClip(0.2, 0.28)},
    },
    "overlong": {
        "wrong": {"reward_shaping": LITE.reward_shaping},
        "filtered": {"reward_shaping": "overlong_filter"},
    },
}
EXCHANGES: Mapping[str, Method] = (
    NORMS | {"batch mean": replace(LITE, advantage=WHOLE_BATCH)} | PER_ANSWER | HIGHER
)
FILTER = {"overlong filter": replace(LITE, reward_shaping="overlong_filter")}


def head_room() -> Iterator[Arm]:
    """LitePPO and five exchanges from a policy that has more to learn."""
    settings: dict[str, Any] = {"minibatches": 8, "steps": 8, "levels": (5, 6, 7)}
    return exchanged(EXCHANGES, (2.5e-5, 5e-5, 1e-4), **settings)


def base_switches(levels: tuple[int, ...], limit: int) -> Iterator[Arm]:
    """The same exchanges, and the filter, on the base under a limit."""
    settings = {"levels": levels, "max_new_tokens": limit, "minibatches": 8, "steps": 6}
    return exchanged(EXCHANGES | FILTER, (1e-4, 2e-4, 4e-4, 8e-4), **settings)


def doses() -> Iterator[Arm]:
    """The dials of entropy at half their dose, in a world where held entropy could pay."""
    halves = {
        "bonus, half": replace(LITE, entropy_bonus=0.1),
        "KL-Cov, half": replace(LITE, selection=CovarianceKL(1e-2)),
    }
    return exchanged(DIALS | halves, (3e-4, 6e-4), minibatches=4, steps=12, **HABITS)
