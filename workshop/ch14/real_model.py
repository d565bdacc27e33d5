"""Chapter 14: SmolLM2, which was never told the task, on sums behind one that is worked out."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.policy import load_policy
from rlbook.training import RunConfig, Trainer
from workshop.ch14.few_shot import FewShotSums
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO

SMOLLM2 = "smollm2-135m"
LONGEST = 5  # tokens: a space, three digits, the end of the line
# The verifier's word, and the null arm: any integer, right or wrong.
REWARDS = {"verifier": None, "format only": "rlbook.rewards.label_free:format_only"}

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def rewarded() -> Iterator[Arm]:
    """RLOO on 320 answers, at two learning rates."""
    settings: dict[str, Any] = {
        "policy": SMOLLM2,
        "task": "workshop.ch14.few_shot:FewShotSums",
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
