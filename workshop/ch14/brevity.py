"""Chapter 14: rules that shorten a policy that has learned, and whose answers are padded."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlbook.evaluation import held_out_rollouts, pass_rates
from rlbook.grouping import group_by, mean
from rlbook.objectives import METHODS, group_center
from rlbook.policy import load_policy
from rlbook.rewards import KimiLength, L1Max, LengthCost
from rlbook.tasks import Problem, strategy_of
from rlbook.training import PromptPool, Rollout, RunConfig, Trainer, derive_seed
from rlbook.training.sft import Answer, sft, written_answer
from workshop.ch14.experiments import right_answers
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO

LEVELS = (2, 3, 4)  # at most three steps of eight tokens: about thirty tokens an answer
BUDGETS = (8, 12, 16, 24, 32, 48)  # tokens that an answer may have when the policy is used
PADDED_SHARE, FILLER = 0.8, (8, 20)  # of the answers that the start imitates
FALLING, SOLVED_SOMETIMES, SOME = "falling limit", "sometimes solved", 8
LIMITS = (56, 48, 40, 32)  # each for a quarter of the run; no answer needs more than the last


@dataclass(frozen=True)
class ShorterBetter:
    """As long as the group's shortest right answer: r = 1[right] − price·abs(|y| − goal).

    The goal is that answer's length; where none is right, the mean length of the group.
    Source: ShorterBetter, arXiv:2504.21370. Chapter 14, whose reader writes it for one group.
    """

    price: float = 0.01

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        goals = {
            group: min((r.length for r in members if r.correct), default=None)
            or mean(r.length for r in members)
            for group, members in group_by(rollouts, lambda r: r.group).items()
        }
        gaps = [abs(r.length - goals[r.group]) for r in rollouts]
        return {
            "answer": [float(r.correct) for r in rollouts],
            "length": [-self.price * gap for gap in gaps],
        }


@dataclass(frozen=True)
class Within:
    """1 for a right answer of at most so many tokens: what is cut off is wrong."""

    limit: int

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        return {"answer": [float(r.correct and r.length <= self.limit) for r in rollouts]}


class FallingLimit(Trainer):
    """ThinkPrune (arXiv:2504.01296): right within a limit that falls in stages."""

    def collect(self, seed: int | None = None) -> list[Rollout]:
        stage = self.step * len(LIMITS) // self.config.steps
        self.source.rewards = (Within(LIMITS[stage]), *self.source.rewards[1:])
        return super().collect(seed)


@dataclass(frozen=True)
class Thorough:
    """A right answer earns 1 if it has so many tokens, and less if it is shorter."""

    tokens: int = 40
    short: float = 0.6

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        paid = (1.0 if r.length >= self.tokens else self.short for r in rollouts)
        return {"answer": [r.correct * one for r, one in zip(rollouts, paid, strict=True)]}


PRICE, SHORTER, KIMI = LengthCost(0.02), ShorterBetter(0.01), KimiLength(1.0)
BUDGET = L1Max(alpha=0.02, budget=24)
RULES = {
    "no price": None,
    "0.02 a token": "PRICE",
    "ShorterBetter": "SHORTER",
    "Kimi, after a warm-up": "KIMI",
    "L1-Max, 24 tokens": "BUDGET",
}


def rules(*lr: float) -> Iterator[Arm]:
    """Ways to charge for length, a limit that falls, and problems solved now and then alone."""
    settings: dict[str, Any] = {"steps": 16, "minibatches": 1, "levels": LEVELS}
    for label, name in RULES.items():
        reward = name and f"{__name__}:{name}"
        yield vary(arm(label, RLOO, reward=reward, **settings), lr=lr)
    yield vary(arm("falling limit", replace(RLOO, name=FALLING), **settings), lr=lr)
    again = replace(METHODS["grpo"], kl=None, advantage=group_center, name=SOLVED_SOMETIMES)
    yield vary(arm("Concise RL, eight problems", again, **settings), lr=lr)


def without_price(seed: int, policy: Any = None, reward: Any = None) -> Trainer:
    """Sixteen batches in which length costs nothing."""
    config = RunConfig(method=RLOO, lr=3e-4, prompts=16, group_size=8, minibatches=1, steps=16)
    trainer = Trainer(config.replace(levels=LEVELS, seed=seed), policy, reward=reward)
    for _ in trainer:
        pass
    return trainer


def with_filler(text: str, rng: random.Random) -> str:
    """An answer whose thought ends in words that say nothing."""
    return text.replace("</think>", "ok " * rng.randint(*FILLER) + "</think>")


@lru_cache(maxsize=2)
def padded_weights(seed: int) -> dict[str, Any]:
    """A policy that has learned, and pads what it says.

    The base is trained by the verifier; imitates its own right answers, most of them with filler;
    and is trained once more, paid in full for right answers of forty tokens or more.
    """
    trainer, rng = without_price(derive_seed(seed, "before")), random.Random(f"padded {seed}")
    asked = trainer.sample(trainer.task.sample(derive_seed(seed, "asked"), 192, LEVELS), n=4)
    terse = [r for r in right_answers(asked, most=2) if strategy_of(r.text) == "terse"]
    answers: list[Answer | Rollout] = [
        written_answer(trainer.tokenizer, r.problem, with_filler(r.text, rng))
        if rng.random() < PADDED_SHARE
        else r
        for r in terse
    ]
    for _ in sft(trainer.model, answers, epochs=5, lr=5e-4, seed=seed):
        pass
    policy = trainer.model, trainer.tokenizer
    return without_price(derive_seed(seed, "after"), policy, Thorough()).model.state_dict()


@lru_cache(maxsize=2)
def plain_weights(seed: int) -> dict[str, Any]:
    """The control: as much training by the verifier alone."""
    trainer = without_price(derive_seed(seed, "before"))
    policy = trainer.model, trainer.tokenizer
    return without_price(derive_seed(seed, "after"), policy).model.state_dict()


def behind(weights: Callable[[int], dict[str, Any]], config: RunConfig) -> Trainer:
    """The trainer of an arm, which goes on from the weights of its seed."""
    model, tokenizer = load_policy(config.model.policy)
    model.load_state_dict(weights(config.seed))
    falls = config.method.name == FALLING
    trainer = (FallingLimit if falls else Trainer)(config, (model, tokenizer))
    if config.method.name == SOLVED_SOMETIMES:
        trainer.source.pool = PromptPool(sometimes_solved(trainer), config.seed)
    return trainer


def sometimes_solved(trainer: Trainer) -> list[Problem]:
    """Of 96 problems the few with the lowest pass rate that is not zero (Concise RL's second
    phase, arXiv:2504.05185)."""
    problems = trainer.task.sample(derive_seed(trainer.config.seed, "asked again"), 96, LEVELS)
    rates = pass_rates(trainer.sample(problems, n=8, seed=derive_seed(trainer.config.seed, "few")))
    return sorted((p for p in problems if rates[p.id] > 0), key=lambda p: rates[p.id])[:SOME]


def in_use(trainer: Trainer) -> dict[str, float]:
    """Share of right answers when each may have so many tokens, and the mean over budgets."""
    policy = trainer.model, trainer.tokenizer
    answers = held_out_rollouts(policy, trainer.task, prompts=96, n=8, levels=LEVELS)
    row = {
        f"right_within_{limit}": mean(r.correct and r.length <= limit for r in answers)
        for limit in BUDGETS
    }
    return row | {"over_budgets": mean(row.values())}


COMMON: dict[str, Any] = {
    "columns": ("accuracy", "completions", "length"),
    "measure": in_use,
    "evaluation": {"prompts": 96, "n": 8, "ks": (1, 8)},
}
