"""Chapter 08: its experiments."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from rlbook.evaluation import held_out_rollouts
from rlbook.grouping import mean
from rlbook.objectives import METHODS, Method, PromptFilter, RatioClip
from rlbook.tasks import SumsTask, Task
from rlbook.training import RunConfig, Trainer
from workshop.shared.design import Arm, Experiment, World, arm, sums_decisions, vary
from workshop.shared.experiments import FEW, GRPO, ONCE
from workshop.shared.worlds import Unsolvable, tight_limit


def overlong() -> dict[str, Method]:
    """What a truncated answer may be worth: nothing, less and less, or no vote at all."""
    token_mean = replace(GRPO, aggregation="token_mean")
    return {
        "cliff": token_mean,
        "ramp": replace(token_mean, reward_shaping="overlong", reward_values=(-1.0, 1.0)),
        "filter": replace(token_mean, reward_shaping="overlong_filter"),
    }


def limited() -> Iterator[Arm]:
    """Cliff, ramp and filter where half of the answers are cut off, and where none is."""
    for name, method in overlong().items():
        one = arm(name, method, steps=14)
        tight = replace(one, config=tight_limit(one.config))
        yield vary(tight, lr=(1e-4, 2e-4, 4e-4))


def unlimited() -> Iterator[Arm]:
    """The control: the same long sums, with room to write."""
    for name, method in overlong().items():
        one = arm(name, method, steps=14, levels=(4, 5, 6, 7))
        yield vary(one, lr=(1e-4, 2e-4, 4e-4))


def silent_prompts(**settings: Any) -> Iterator[Arm]:
    """Prompts that teach nothing: kept, replaced by others, or kept for twice as long."""
    token_mean = replace(GRPO, aggregation="token_mean")
    refilled = replace(token_mean, prompt_filter=PromptFilter("correct", resample=True))
    arms = (
        arm("GRPO", token_mean, steps=12, **settings),
        arm("GRPO, twice the batches", token_mean, steps=24, **settings),
        arm("+ dynamic sampling", refilled, steps=12, **settings),
    )
    for one in arms:
        yield vary(one, lr=(7.5e-5, 1.5e-4, 3e-4))


def unsolvable(share: float) -> World:
    """A share of the problems has no right answer."""
    return partial(_with_task, Unsolvable(share))


def _with_task(task: SumsTask, config: RunConfig) -> Trainer:
    return Trainer(config, task=task)


def on_plain_sums(trainer: Trainer) -> dict[str, float]:
    """pass@1 on sums that all have an answer."""
    policy = trainer.model, trainer.tokenizer
    rollouts = held_out_rollouts(policy, SumsTask(), prompts=96, n=8)
    return {"pass@1_solvable": mean(r.correct for r in rollouts)}


def at_two_limits(trainer: Trainer, task: Task | None = None) -> dict[str, float]:
    """Accuracy under the limit of training and when 80 tokens are allowed, and what was decided.

    On problems of the run's task, or of another.
    """
    policy, levels = (trainer.model, trainer.tokenizer), trainer.config.data.levels
    row = sums_decisions(trainer)
    for limit in (32, 80):
        rollouts = held_out_rollouts(
            policy, task or trainer.task, prompts=96, n=8, levels=levels, max_new_tokens=limit
        )
        row[f"pass@1_limit_{limit}"] = mean(r.correct for r in rollouts)
        row[f"truncated_limit_{limit}"] = mean(r.truncated for r in rollouts)
    return row


def equal_answers() -> Iterator[Arm]:
    """GRPO with as many answers as dynamic sampling has, and the latter at a rate more."""
    plain, _, refilled = silent_prompts()
    for one, steps in ((plain, 62), (refilled, 30)):
        longer = Arm(one.label, one.config.replace(steps=steps))
        yield vary(longer, lr=(7.5e-5, 1.5e-4, 3e-4, 6e-4))


def whole_and_in_parts() -> Iterator[Arm]:
    """GRPO, DAPO, and DAPO without one of its parts, where each part has its trouble."""
    dapo = METHODS["dapo"]
    rows = {
        "GRPO": GRPO,
        "DAPO": dapo,
        "DAPO, clip 0.2": replace(dapo, trust_region=RatioClip(0.2, 0.2)),
        "DAPO, silent groups kept": replace(dapo, prompt_filter=None),
        "DAPO, mean per answer": replace(dapo, aggregation=GRPO.aggregation),
        "DAPO, no ramp": replace(dapo, reward_shaping="none"),
    }
    for label, method in rows.items():
        one = arm(label, method, steps=32, **ONCE)
        tight = replace(one, config=tight_limit(one.config))
        yield vary(tight, lr=(5e-5, 1e-4, 2e-4))


EXPERIMENTS: dict[str, Experiment] = {
    "tight_limit": Experiment(
        "What do cliff, ramp and filter teach where half of the answers are cut off?",
        tuple(limited()),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_limit_32",
        measure=at_two_limits,
        evaluation=FEW,
    ),
    "tight_limit_control": Experiment(
        "... and where there is room to write?",
        tuple(unlimited()),
        seeds=tuple(range(5)),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_limit_80",
        measure=at_two_limits,
        evaluation=FEW,
    ),
    "unsolvable": Experiment(
        "What does dynamic sampling buy where three prompts in four teach nothing?",
        tuple(silent_prompts()),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_solvable",
        world=unsolvable(0.75),
        measure=on_plain_sums,
        evaluation=FEW,
    ),
    "all_troubles": Experiment(
        "What is DAPO worth, whole and without each part, where all of its troubles are?",
        tuple(whole_and_in_parts()),
        columns=("accuracy", "completions", "length", "truncated"),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_limit_32",
        world=unsolvable(0.5),
        measure=partial(at_two_limits, task=SumsTask()),
        evaluation=FEW,
        answers=32 * 128,
    ),
    "equal_answers": Experiment(
        "Is dynamic sampling ahead of GRPO with as many answers?",
        tuple(equal_answers()),
        columns=("accuracy", "completions"),
        tuning_seeds=(100, 101),
        chosen_by="pass@1_solvable",
        world=unsolvable(0.75),
        measure=on_plain_sums,
        evaluation=FEW,
        answers=62 * 128,
    ),
}
