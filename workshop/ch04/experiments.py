"""Chapter 04: a reward model in the verifier's place."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch

from rlbook.evaluation import held_out_rollouts, pass_rates
from rlbook.grouping import group_by, mean
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
    train_dpo,
    train_reward_model,
)
from rlbook.rewards.preferences import answered, drawn_pair
from rlbook.tasks.habits import HabitsTask, draw, problem_of
from rlbook.training import Rollout, RunConfig, Trainer, derive_seed
from rlbook.training.metrics import rollout_metrics
from rlbook.training.rewards import get_reward
from rlbook.training.sft import Answer, sft, written_answer
from workshop.bases.habits import written
from workshop.ch04.best_of_n import best_of_n_mean
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO
from workshop.shared.worlds import HABITS

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
ROUND, ROUNDS, PAIRS = 6, 5, 200  # steps between two askings, askings, pairs of each
ASKED_AT_MOST = 5 * PAIRS  # problems, when a policy gives answers of one worth only
PICKED = (1, 2, 4, 8, 16, 32, 64)


def learned(pairs: list[Preference], epochs: int, seed: int) -> ProxyReward:
    model = RewardModel(base())
    for _ in train_reward_model(model, pairs, epochs=epochs, seed=seed):
        pass
    return ProxyReward(model)


class Annotated(Trainer):
    """Every few steps an expert is asked for pairs, and a new reward model learns from all so far.

    The pairs are between answers of the policy as it is, or of the base.
    """

    def __init__(self, config: RunConfig):
        super().__init__(config, reward=ProxyReward(RewardModel(base())))
        self.pairs: list[Preference] = []

    def collect(self, seed: int | None = None) -> list[Rollout]:
        if self.step % ROUND == 0 and self.step < ROUND * ROUNDS:
            self.pairs += self.fresh_pairs()
            proxy = learned(self.pairs, 2, derive_seed(self.config.seed, "proxy", self.step))
            self.source.rewards = (proxy, *self.source.rewards[1:])
        return super().collect(seed)

    def fresh_pairs(self) -> list[Preference]:
        """Fewer pairs where most answers to a problem are worth the same."""
        seed = derive_seed(self.config.seed, "annotated", self.step)
        model = base() if "base" in self.config.method.name else self.model
        groups = answered((model, self.tokenizer), self.task, 4, LEVELS, LIMIT, seed)
        rng = random.Random(f"annotated {seed}")
        found = (drawn_pair(group, expert, rng) for group in islice(groups, ASKED_AT_MOST))
        kept = islice((pair for pair in found if pair), PAIRS)
        return [pair.flipped if rng.random() < NOISE else pair for pair in kept]


def in_rounds(label: str, whose: str, beta: float = 0.0) -> Arm:
    one = ppo(label, None, beta)
    named = replace(one.config.method, name=f"ppo, pairs of {whose}")
    return Arm(label, one.config.replace(method=named))


Descent = tuple[Iterator[float], int]  # updates that come one by one, and how many are a pass


class Directly(Trainer):
    """A step is one pass over what was written or preferred; the policy's answers are logged."""

    descent: Descent

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        if self.step == 0:
            self.descent = DIRECTLY[self.config.method.name](self)
        updates, a_pass = self.descent
        for _ in islice(updates, a_pass):
            pass
        self.step += 1
        return {"step": self.step, **rollout_metrics(rollouts, self.version)}


def from_written(trainer: Trainer) -> Descent:
    """SFT on 256 right answers that somebody wrote."""
    config, rng = trainer.config, random.Random(f"written {trainer.config.seed}")
    answers: list[Answer] = []
    for _ in range(256):
        worked = draw(rng, level := rng.choice(LEVELS))
        problem, text = problem_of(worked, level), written(worked.right, rng)
        answers.append(written_answer(trainer.tokenizer, problem, text))
    how: dict[str, Any] = {"epochs": config.steps, "lr": config.optimizer.lr, "seed": config.seed}
    return sft(trainer.model, answers, batch=32, **how), ceil(256 / 32)


def from_pairs(trainer: Trainer) -> Descent:
    """DPO on the thousand pairs that the reward model of the same seed learns from."""
    config = trainer.config
    how: dict[str, Any] = {"epochs": config.steps, "lr": config.optimizer.lr, "seed": config.seed}
    return train_dpo(trainer.model, preferences(1000, config.seed), **how), ceil(1000 / 32)


def nothing(trainer: Trainer) -> Descent:
    return iter(()), 0


DIRECTLY: dict[str, Callable[[Trainer], Descent]] = {
    "sft": from_written,
    "dpo": from_pairs,
    "picking": nothing,
}


def told_directly() -> Iterator[Arm]:
    """What demonstrations, pairs without RL, and picking by a reward model come to."""
    settings: dict[str, Any] = HABITS | {"prompts": 2, "group_size": 2, "minibatches": 1}
    settings |= {"levels": LEVELS, "max_new_tokens": LIMIT}
    tag = {name: replace(RLOO, name=name) for name in DIRECTLY}
    for label, name, rates, passes in (
        ("256 written answers", "sft", (1e-4, 3e-4, 1e-3, 3e-3), (2, 4)),
        ("DPO on 1000 pairs", "dpo", (5e-5, 1.5e-4, 4.5e-4), (1, 2, 3)),
    ):
        yield vary(arm(label, tag[name], **settings), lr=rates, steps=passes)
    yield vary(arm("best of n", tag["picking"], **settings), lr=(3e-4,), steps=(1,))


def families_or_picked(trainer: Trainer) -> dict[str, float]:
    """pass@1 of each family; of the arm that picks, the truth of the best of n by its score."""
    if trainer.config.method.name == "picking":
        return picked(trainer)
    policy, asked = (trainer.model, trainer.tokenizer), {"max_new_tokens": LIMIT}
    answers = held_out_rollouts(policy, trainer.task, 64, 4, LEVELS, **asked)
    rates = pass_rates(answers, lambda r: r.problem.level)
    return {f"pass@1_level_{level}": rate for level, rate in sorted(rates.items())}


def picked(trainer: Trainer) -> dict[str, float]:
    """Truth and score of the best of n answers of the base, by the run's own reward model."""
    answers = answers_of_the_base()
    scores = reward_model(1000, trainer.config.seed).scores(answers).reshape(64, 64)
    truths = torch.tensor([float(r.correct) for r in answers]).reshape(64, 64)
    found = {"truth": truths, "score": scores}
    return {
        f"{what}_{n}": float(best_of_n_mean(scores, values, n).mean())
        for what, values in found.items()
        for n in PICKED
    }


@cache
def answers_of_the_base() -> tuple[Rollout, ...]:
    """64 answers of the base to each of 64 held-out problems."""
    policy = load_policy(HABITS["policy"])
    how = {"max_new_tokens": LIMIT}
    return tuple(held_out_rollouts(policy, HabitsTask(), 64, 64, LEVELS, **how))


ASKED = {"prompts": 64, "n": 4, "ks": (1,)}
PROXY = SEEN | {"world": Annotated, "begins": Trainer}
