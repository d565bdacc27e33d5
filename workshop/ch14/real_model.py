"""Chapter 14: SmolLM2, which was never told the task, on sums behind one that is worked out."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.policy import load_policy
from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.sums import compared, is_integer
from rlbook.training import RunConfig, Trainer
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO

SHOWN = (47, 5)
EXAMPLE = "47 + 5 = 52\n"
WITHOUT_CARRY, WITH_CARRY = LEVELS = (1, 2)
HELD_OUT = 160  # of 809


class FewShotSums:
    """A number of two digits plus one of one digit; the level is 1, or 2 where a ten is carried.

    The answer is what the policy writes up to the end of the line, or before its EOS token: one
    canonical integer, white space around it allowed. What follows the line is not read: a policy
    that goes on with sums of its own is not wrong. Reasons are ``ok``, ``wrong``,
    ``not_an_integer`` and ``truncated`` (neither a line nor an answer has ended).
    """

    name = "few_shot_sums"
    levels = LEVELS

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems for training, drawn with replacement; the first do not depend on `n`."""
        rng = random.Random(f"few-shot sums {seed}")
        return rng.choices(of_levels(TRAINING, levels), k=n)

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` different problems that `sample` never returns, always the same ones.

        Raises `ValueError` if there are fewer.
        """
        kept = of_levels(KEPT, levels)
        if n > len(kept):
            raise ValueError(f"{self.name} holds {len(kept)} such problems out, not {n}")
        return kept[:n]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Compare the line with the reference as text; nothing is evaluated."""
        line, ended, _ = completion.partition("\n")
        if not (ended or finished):
            return Verdict(False, False, None, "truncated")
        answer = line.strip()
        return compared(problem, answer, format_ok=is_integer(answer))


def all_problems() -> list[Problem]:
    """All problems but the one that is worked out in every prompt, shuffled."""
    pairs = [(a, b) for a in range(10, 100) for b in range(1, 10)]
    problems = [problem_of(a, b) for a, b in pairs if (a, b) != SHOWN]
    random.Random("few-shot sums, held out").shuffle(problems)
    return problems


def problem_of(a: int, b: int) -> Problem:
    """The sum of a number of two digits and one of one, behind the example."""
    level = WITH_CARRY if a % 10 + b >= 10 else WITHOUT_CARRY
    return Problem(id=f"{a}+{b}", prompt=f"{EXAMPLE}{a} + {b} =", answer=str(a + b), level=level)


def of_levels(problems: Sequence[Problem], levels: Sequence[int] | None) -> list[Problem]:
    """The problems of these levels; raises `ValueError` for other levels."""
    levels = LEVELS if levels is None else tuple(levels)
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"few-shot sums have the levels {LEVELS}, got {levels}")
    return [problem for problem in problems if problem.level in levels]


PROBLEMS = all_problems()
KEPT, TRAINING = PROBLEMS[:HELD_OUT], PROBLEMS[HELD_OUT:]


SMOLLM2 = "smollm2-135m"
LONGEST = 5  # tokens: a space, three digits, the end of the line
# The verifier's word, and the null arm: any integer, right or wrong.
REWARDS = {"verifier": None, "format only": "rlbook.rewards.label_free:format_only"}

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def rewarded() -> Iterator[Arm]:
    """RLOO on 320 answers, at two learning rates."""
    settings: dict[str, Any] = {
        "policy": SMOLLM2,
        "task": "workshop.ch14.real_model:FewShotSums",
        "max_new_tokens": LONGEST,
    }
    settings |= {"prompts": 8, "group_size": 4, "minibatches": 1, "steps": 10}
    for label, reward in REWARDS.items():
        yield vary(arm(label, RLOO, reward=reward, **settings), lr=(1e-5, 2e-5))


def to_the_line(config: RunConfig) -> Trainer:
    """A trainer whose policy ends an answer with the line."""
    return Trainer(config, line_policy(config.model.policy))


def line_policy(name: str = SMOLLM2) -> Policy:
    """A policy whose EOS token is the end of a line, as few-shot prompts need it."""
    model, tokenizer = load_policy(name)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(tokenizer("\n").input_ids)[-1]
    return model, tokenizer


def before_and_after(trainer: Trainer) -> dict[str, int]:
    """Right answers of eight to each of 48 held-out sums: of the base, and of what it became."""
    trained = (trainer.model, trainer.tokenizer)
    counts = {"before": of_base(trainer.config.model.policy), "after": right_of_eight(trained)}
    return {f"{when}_{i}": int(n) for when, row in counts.items() for i, n in enumerate(row)}


@cache
def of_base(name: str) -> np.ndarray:
    return right_of_eight(line_policy(name))


def right_of_eight(policy: Policy) -> np.ndarray:
    rollouts = held_out_rollouts(policy, FewShotSums(), prompts=48, n=8, max_new_tokens=LONGEST)
    return right_counts(rollouts)
