"""Worlds in which one trouble is pressing, and the same arms on plain sums, the control."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    Method,
    NoTrustRegion,
    PromptFilter,
    RatioClip,
    WeightClip,
    group_center,
)
from workshop.experiments.design import Arm, Experiment, arm, no_columns, vary
from workshop.experiments.levels import families, rules_by_family
from workshop.experiments.settings import (
    HABITS,
    at_two_limits,
    lost_answers,
    lost_half,
    on_plain_sums,
    one_choice,
    rare_decision,
    rare_opening,
    unsolvable,
)
from workshop.worlds.troubles import tight_limit

GRPO = replace(METHODS["grpo"], kl=None)
RLOO = replace(METHODS["rloo"], kl=None)
CENTRED = replace(GRPO, advantage=group_center, aggregation="token_mean")
ONCE = {"minibatches": 16, "epochs": 1}  # sixteen updates, every answer used once

REGIONS = {
    "no trust region": NoTrustRegion(),
    "clip 0.2": RatioClip(0.2, 0.2),
    "clip-higher 0.28": RatioClip(0.2, 0.28),
    "CISPO": WeightClip(max=5.0),
    "DPPO": DivergenceMask("tv", 0.15, 0.15),
}
AGGREGATIONS = {
    "mean per answer": "sequence_mean",
    "prompt mean": "prompt_mean",
    "token mean": "token_mean",
    "constant": "constant",
}
ON_POLICY = {"rloo": "RLOO", "grpo": "GRPO", "maxrl": "MaxRL"}
FEW = {"prompts": 8, "n": 2, "ks": (1,)}


def bounded(name: str) -> Method:
    """Group-centred advantages and a mean over tokens, under one of the trust regions."""
    return replace(CENTRED, trust_region=REGIONS[name])


def rare() -> Iterator[Arm]:
    """How many batches until a rare opening is no longer rare, under each trust region."""
    settings = {"prompts": 32, "steps": 6, "max_new_tokens": 12} | ONCE
    for name in REGIONS:
        yield vary(arm(name, bounded(name), **settings), lr=(5e-5, 1e-4, 2e-4))


def rare_habits() -> Iterator[Arm]:
    """The same trust regions where the rare token is a right rule."""
    settings = {"prompts": 16, "group_size": 16, "steps": 12, "levels": (1, 2, 3, 4, 5)}
    for name in REGIONS:
        yield vary(arm(name, bounded(name), **settings, **ONCE, **HABITS), lr=(1e-4, 2e-4))


def averages(**settings: Any) -> Iterator[Arm]:
    """The four ways to average tokens, at two learning rates."""
    for label, aggregation in AGGREGATIONS.items():
        method = replace(CENTRED, aggregation=aggregation)
        yield vary(arm(label, method, **settings), lr=(1.5e-4, 3e-4))


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


def on_policy(
    rates: tuple[float, ...], names: Iterable[str] = ON_POLICY, **settings: Any
) -> Iterator[Arm]:
    """RLOO, GRPO and MaxRL without a KL term, one update on 16 prompts × 16 answers."""
    settings |= {"prompts": 16, "group_size": 16, "minibatches": 1}
    for name in names:
        method = replace(METHODS[name], kl=None)
        yield vary(arm(ON_POLICY[name], method, **settings), lr=rates)


PRESSING = {
    "rare_opening": Experiment(
        "How many batches does a rare good opening need under each trust region?",
        tuple(rare()),
        chosen_by=None,
        world=rare_opening,
        watch=rare_decision,
        evaluation=FEW,
    ),
    "lost_answers": Experiment(
        "How long do lost answers grow under each aggregation?",
        tuple(averages(levels=(2, 3), steps=20)),
        chosen_by=None,
        seeds=tuple(range(5)),
        world=lost_answers,
        watch=lost_half,
        evaluation=FEW,
    ),
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
    "habits": Experiment(
        "Does RL change the mode of a base whose greedy answer is wrong, and how soon?",
        tuple(on_policy((3e-4, 6e-4), steps=40, **HABITS)),
        tuning_seeds=(100, 101),
        measure=rules_by_family,
        watch=families,
        evaluation={"prompts": 96, "n": 16, "ks": (1, 4, 8, 16)},
    ),
    "habits_rates": Experiment(
        "Is MaxRL's lead on rare rules its weight, or its learning rate?",
        tuple(on_policy((3e-4, 6e-4), ("rloo", "maxrl"), steps=40, **HABITS)),
        chosen_by=None,
        measure=rules_by_family,
        watch=families,
        evaluation=FEW,
    ),
    "shared_choice": Experiment(
        "Which opening is elected when short and long sums must share one?",
        tuple(on_policy((0.03, 0.1), steps=30, levels=(3, 6, 7), max_new_tokens=28)),
        chosen_by=None,
        seeds=tuple(range(6)),
        world=one_choice,
        measure=no_columns,
        evaluation={"prompts": 48, "n": 128, "ks": (1, 4, 16, 64)},
    ),
    "rare_habits": Experiment(
        "Which trust region lets a rare right rule grow?",
        tuple(rare_habits()),
        chosen_by=None,
        seeds=tuple(range(5)),
        measure=rules_by_family,
        watch=families,
        evaluation=FEW,
    ),
}
