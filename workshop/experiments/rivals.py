"""Chapters 04 and 13: what a claim has to beat, and the arm that a reader would ask for next."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from math import ceil
from typing import Any

import torch

from rlbook.evaluation import held_out_rollouts, pass_rates
from rlbook.policy import load_policy
from rlbook.rewards import (
    Preference,
    ProxyReward,
    RewardModel,
    expert,
    train_dpo,
    train_reward_model,
)
from rlbook.rewards.preferences import answered, drawn_pair
from rlbook.tasks.habits import HabitsTask, draw, problem_of
from rlbook.training import Rollout, RunConfig, Trainer, derive_seed
from rlbook.training.metrics import rollout_metrics
from rlbook.training.sft import Answer, sft, written_answer
from workshop.bases.habits import written
from workshop.experiments.design import Arm, Experiment, arm, vary
from workshop.experiments.levels import family_rates, level_columns
from workshop.experiments.pressing import FEW, RLOO
from workshop.experiments.reality import LOGGED, ONE_UPDATE, at_both_rates, rewarded
from workshop.experiments.rlhf import (
    FIVE,
    LEVELS,
    LIMIT,
    NOISE,
    SEEN,
    base,
    ppo,
    preferences,
    reward_model,
)
from workshop.experiments.settings import HABITS
from workshop.worlds.best_of_n import best_of_n_mean
from workshop.worlds.entropy_tuning import EntropyFineTuning
from workshop.worlds.self_confidence import EntropyInference, SelfCertainty

WORLDS: dict[str, dict[str, Any]] = {"habits": HABITS, "sums": {}}
TEMPERATURES = (0.7, 0.5, 0.3)
ROUND, ROUNDS, PAIRS = 6, 5, 200  # steps between two askings, askings, pairs of each
ASKED_AT_MOST = 5 * PAIRS  # problems, when a policy gives answers of one worth only
PICKED = (1, 2, 4, 8, 16, 32, 64)


class Untrained(Trainer):
    """A trainer whose policy stays as it was; its answers are only logged."""

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        self.step += 1
        return {"step": self.step, **rollout_metrics(rollouts, self.version)}


def cold() -> Iterator[Arm]:
    """The base as it is, at lower temperatures and by EM-INF."""
    for world, settings in WORLDS.items():
        few: dict[str, Any] = {"prompts": 2, "group_size": 2, "minibatches": 1, "steps": 1}
        for t in TEMPERATURES:
            yield arm(f"T = {t:g}, {world}", RLOO, temperature=t, **few, **settings)
        yield arm(f"EM-INF, {world}", replace(RLOO, name="em_inf"), **few, **settings)


def as_it_is(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1 of each level, drawn with the run's own seed."""
    how: dict[str, Any] = {"temperature": trainer.config.rollout.temperature}
    if trainer.config.method.name == "em_inf":
        how["engine"] = EntropyInference(trainer.model, trainer.tokenizer.eos_token_id)
    seed = derive_seed(trainer.config.seed, "cold")
    return level_columns(trainer, ("pass@1",), 24, 8, seed=seed, **how)


def one_prompt() -> Iterator[Arm]:
    """Entropy fine-tuning on a single prompt without a label, in ten steps."""
    settings = {"prompts": 1, "group_size": 64, "pool": 1, "minibatches": 1, "steps": 10}
    for world, where in WORLDS.items():
        yield vary(arm(f"one prompt, {world}", RLOO, **settings, **where), lr=(1e-4, 3e-4, 1e-3))


def certain() -> Iterator[Arm]:
    """Self-certainty as the reward."""
    for world, where in WORLDS.items():
        one = arm(f"self-certainty, {world}", RLOO, **ONE_UPDATE, **where)
        yield vary(one, lr=(1.5e-4, 3e-4, 6e-4))


def self_certain(config: RunConfig) -> Trainer:
    policy = load_policy(config.model.policy)
    return Trainer(config, policy, reward=SelfCertainty(policy[0]))


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
            self.pairs += self.asked()
            proxy = learned(self.pairs, 2, derive_seed(self.config.seed, "proxy", self.step))
            self.source.rewards = (proxy, *self.source.rewards[1:])
        return super().collect(seed)

    def asked(self) -> list[Preference]:
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

RIVALS: dict[str, Experiment] = {
    "cold": Experiment(
        "What does the base gain by a lower temperature, or by surer decoding, untrained?",
        tuple(cold()),
        columns=LOGGED,
        chosen_by=None,
        world=Untrained,
        measure=as_it_is,
        evaluation=FEW,
    ),
    "one_prompt": Experiment(
        "What does entropy minimised on one prompt teach in both worlds?",
        tuple(one_prompt()),
        columns=LOGGED,
        chosen_by=None,
        world=EntropyFineTuning,
        measure=family_rates,
        evaluation=FEW,
    ),
    "self_certainty": Experiment(
        "What does self-certainty as a reward teach in both worlds?",
        tuple(certain()),
        columns=LOGGED,
        chosen_by=None,
        seeds=FIVE,
        world=self_certain,
        measure=family_rates,
        evaluation=FEW,
    ),
    "told_directly": Experiment(
        "What do demonstrations, DPO and picking make of as many labels?",
        tuple(told_directly()),
        columns=("accuracy", "completions"),
        tuning_seeds=(100, 101),
        world=Directly,
        measure=families_or_picked,
        evaluation=ASKED,
    ),
    "fresh_pairs": Experiment(
        "Do pairs of the policy as it is keep a reward model true?",
        (
            in_rounds("its own pairs, five times", "its own"),
            in_rounds("the base's pairs, five times", "the base"),
        ),
        **PROXY,
    ),
    "passes": Experiment(
        "What do more pairs buy with as many passes over them?",
        tuple(
            ppo(f"1000 pairs, {words}", made)
            for words, made in (
                ("one pass", "once_over_1000"),
                ("four passes", "four_times_over_1000"),
            )
        ),
        **SEEN,
    ),
    "short_leash": Experiment(
        "Does a leash beyond the largest that was tried hold better?",
        (ppo("1000 pairs, β = 0.3", "after_1000", 0.3),),
        **SEEN,
    ),
    "committee": Experiment(
        "Is the smallest score of three reward models harder to please?",
        (
            ppo("committee of three", "three_of_1000"),
            ppo("committee of three, β = 0.03", "three_of_1000", 0.03),
        ),
        **SEEN,
    ),
    "format_control": Experiment(
        "Does the format alone teach anything where one answer in nine lacks it?",
        at_both_rates([rewarded("format only", "format_only", **ONE_UPDATE)]),
        seeds=FIVE,
        columns=(*LOGGED, "share_direct"),
        chosen_by=None,
        measure=family_rates,
        evaluation=FEW,
    ),
    "fresh_leash": Experiment(
        "... and pairs of the policy as it is, under a leash?",
        (in_rounds("its own pairs, β = 0.1", "its own", 0.1),),
        **PROXY,
    ),
}
