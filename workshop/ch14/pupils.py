"""Chapter 14: what comes before RL, and what a teacher's word is worth to the end of an answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rlbook.objectives import METHODS, reward_to_go
from rlbook.policy import load_policy
from rlbook.training import Rollout, RunConfig, Trainer
from rlbook.training.chat import decode
from rlbook.training.sft import written_answer
from workshop.ch14.experiments import SFT, Imitation, fine_tune, taught, worked_examples
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO
from workshop.shared.worlds import HABITS
from workshop.shared.worlds.engines import StartsLost

OPD = METHODS["opd"]
SINGLE = {"prompts": 64, "group_size": 1}
FIRST = {  # what a run does with half of its answers before RL has the other half
    "distilled": {"method": OPD, "lr": 5e-4},
    "imitated": {"method": SFT, "lr": 1e-3},
}
SHOWN, BEGUN, EXAMPLES = "shown", "begun", "imitation"
TWELVE, LOW = 12, 3e-4  # passes over the worked examples, and their rate


class BeginsRight(StartsLost):
    """Half of every group of squares begins as a worked answer does: `<think>3+4=`.

    The words are forced, so that they are not trained on. Source: POPE, arXiv:2601.18779, which
    begins problems that are never solved with a piece of a solution.
    """

    def lost_start(self, prompt: Sequence[int]) -> list[int]:
        """Token ids of the first half of the first step, for a square; none for other problems."""
        square = re.search(r"\((\d+\+\d+)\)\^2", decode(self.tokenizer, list(prompt)))
        text = f"<think>{square[1]}=" if square else ""
        return cast(list[int], self.tokenizer(text, add_special_tokens=False).input_ids)


def arms() -> Iterator[Arm]:
    """2,560 answers each: γ, and RL by itself behind a teacher, examples, or beginnings."""
    settings: dict[str, Any] = HABITS | {"steps": 40, "minibatches": 1}
    rl = {"prompts": 8, "group_size": 8}
    far = replace(OPD, advantage=partial(reward_to_go, gamma=1.0))
    for label, row in (("γ = 0", OPD), ("γ = 1", far)):
        yield vary(arm(label, row, **SINGLE, **settings), lr=(2.5e-4, 5e-4, 1e-3))
    rates = (1.5e-4, 3e-4, 6e-4)
    before = {
        "48 examples, then RL": (SHOWN, 40),
        "distilled, then RL": ("distilled", 20),
        "imitated, then RL": ("imitated", 20),
        "squares begun, RL": (BEGUN, 40),
        "48 examples": (EXAMPLES, 12),
    }
    for label, (name, steps) in before.items():
        one = arm(label, replace(RLOO, name=name), **settings | rl | {"steps": steps})
        yield vary(one, lr=rates)


def pupil(config: RunConfig) -> Trainer:
    """The trainer of an arm, with what comes before it behind it."""
    name, policy = config.method.name, load_policy(config.model.policy)
    if name == BEGUN:
        return Trainer(config, policy, engine=BeginsRight(*policy))
    if name == EXAMPLES:
        return Imitation(config)
    if name == SHOWN:
        trainer = Trainer(config)
        examples = worked_examples(8, config.seed)
        answers = [written_answer(trainer.tokenizer, problem, text) for problem, text in examples]
        fine_tune(trainer, answers, epochs=TWELVE, lr=LOW, batch=16)
        return trainer
    if name in FIRST:
        first = taught(config.replace(**SINGLE, **FIRST[name], steps=20))
        for _ in first:
            pass
        return Trainer(config, (first.model, first.tokenizer))
    return taught(config)


def sampled(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Answers that a run has sampled, those before its first step counted."""
    earlier = 20 if trainer.config.method.name in FIRST else 0
    return {"answers_sampled": 64 * (earlier + trainer.step)}
