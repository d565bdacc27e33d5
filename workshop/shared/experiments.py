"""Experiments whose tables several chapters read, and the rows and arms that they share."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    Method,
    NoTrustRegion,
    RatioClip,
    WeightClip,
    batch_mean_baseline,
    group_center,
)
from workshop.shared.design import Arm, Experiment, arm, vary, vary_methods
from workshop.shared.evidence import families, rules_by_family
from workshop.shared.worlds import HABITS, rare_decision, rare_opening

BATCH_MEAN_PPO = replace(METHODS["ppo"], advantage=batch_mean_baseline)


def siblings() -> Iterator[Arm]:
    """From PPO to GRPO: critic, siblings, how tokens are averaged, σ, KL."""
    settings = {"minibatches": 4, "steps": 16}
    token_mean = replace(GRPO, aggregation="token_mean")
    arms = (
        arm("batch mean", BATCH_MEAN_PPO, **settings),
        arm("PPO, critic, λ = 1", "ppo", lam=1.0, **settings),
        arm("PPO, critic, λ = 0.95", "ppo", lam=0.95, **settings),
        arm("PPO's loss, siblings", token_mean, **settings),
        arm("GRPO", GRPO, **settings),
        arm("GRPO, no σ", replace(GRPO, advantage=group_center), **settings),
        arm("GRPO + KL", "grpo", **settings),
    )
    for one in arms:
        yield vary(one, lr=(1e-4, 2e-4, 4e-4))


ONE_UPDATE = {"minibatches": 1}, (2e-4, 4e-4, 8e-4)
FOUR_UPDATES = {"minibatches": 4}, (1e-4, 2e-4, 4e-4)
SIXTEEN_UPDATES = {"minibatches": 16}, (5e-5, 1e-4, 2e-4)
AS_PUBLISHED = {
    "reinforce": ONE_UPDATE,
    "reinforce_batch_mean": ONE_UPDATE,
    "reinforce_ema": ONE_UPDATE,
    "ppo": ({"lam": 0.95} | SIXTEEN_UPDATES[0], SIXTEEN_UPDATES[1]),
    "grpo": FOUR_UPDATES,
    "rloo": ONE_UPDATE,
    "remax": ONE_UPDATE,
    "reinforce_plus_plus": (
        {"minibatches": 4, "prompts": 128, "group_size": 1},
        (1e-4, 2e-4, 4e-4),
    ),
    "opo": ONE_UPDATE,
    "dr_grpo": FOUR_UPDATES,
    "dapo": SIXTEEN_UPDATES,
    "cispo": SIXTEEN_UPDATES,
    "gspo": SIXTEEN_UPDATES,
    "maxrl": ONE_UPDATE,
    "dppo": SIXTEEN_UPDATES,
    "dppo_kl": SIXTEEN_UPDATES,
    "scalerl": ({"minibatches": 1, "sync_every": 4}, (2e-4, 4e-4, 8e-4)),
    "lite_ppo": FOUR_UPDATES,
    "gpg": ONE_UPDATE,
}


def methods() -> Iterator[Arm]:
    """Rows without their KL term, with the updates per batch that each paper has in mind."""
    for name, (settings, rates) in AS_PUBLISHED.items():
        one = arm(name, replace(METHODS[name], kl=None), steps=12, **settings)
        if name == "gspo":
            one = vary_methods(one, "width", of_widths(one.config.method, 3e-4, 0.03))
        yield vary(one, lr=rates)


def of_widths(method: Method, *widths: float) -> dict[float, Method]:
    """The method with a clip of each width: a copied window is not a setting."""
    return {width: replace(method, trust_region=RatioClip(width, width)) for width in widths}


USES = {
    "16 minibatches": {"minibatches": 16, "steps": 8},
    "4 batches old": {"minibatches": 4, "sync_every": 4, "steps": 12},
}


def regions(use: str) -> Iterator[Arm]:
    """Trust regions alone, each at its own learning rate and GSPO's at its own width as well."""
    settings = {"prompts": 16, "group_size": 4} | USES[use]
    rates = (5e-5, 1e-4, 2e-4)
    for name in REGIONS:
        yield vary(arm(name, bounded(name), **settings), lr=rates)
    gspo = replace(bounded("clip 0.2"), ratio="sequence")
    by_width = of_widths(gspo, 3e-4, 0.01, 0.03, 0.08)
    yield vary(vary_methods(arm("GSPO", gspo, **settings), "width", by_width), lr=rates)


FIVE = (0, 1, 2, 3, 4)

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


def on_policy(
    rates: tuple[float, ...], names: Iterable[str] = ON_POLICY, **settings: Any
) -> Iterator[Arm]:
    """RLOO, GRPO and MaxRL without a KL term, one update on 16 prompts × 16 answers."""
    settings |= {"prompts": 16, "group_size": 16, "minibatches": 1}
    for name in names:
        method = replace(METHODS[name], kl=None)
        yield vary(arm(ON_POLICY[name], method, **settings), lr=rates)


STEPS = ("accuracy", "completions", "entropy", "grad_norm")  # what their tables of steps keep


def habits_sigma() -> Iterator[Arm]:
    """σ alone, and MaxRL's weight alone: one aggregation for each pair."""
    settings: dict[str, Any] = HABITS | {"prompts": 16, "group_size": 16, "minibatches": 1}
    token_mean = {"aggregation": "token_mean"}
    rows = {
        "GRPO": GRPO,
        "GRPO, no σ": replace(GRPO, advantage=group_center),
        "RLOO, mean over tokens": replace(RLOO, **token_mean),
        "MaxRL, mean over tokens": replace(METHODS["maxrl"], kl=None, **token_mean),
    }
    for label, method in rows.items():
        yield vary(arm(label, method, steps=40, **settings), lr=(3e-4, 6e-4, 1.2e-3))


EXPERIMENTS: dict[str, Experiment] = {
    "siblings": Experiment(
        "Do the siblings of an answer replace the critic, and what do 1/|o|, σ and KL change?",
        tuple(siblings()),
        tuning_seeds=(100, 101),
    ),
    "methods": Experiment(
        "Which methods differ when each has its own learning rate?",
        tuple(methods()),
        seeds=FIVE,
        tuning_seeds=(100, 101),
    ),
    **{
        name: Experiment(
            f"Which trust region, and how wide: {use}?",
            tuple(regions(use)),
            seeds=FIVE,
            tuning_seeds=(100, 101),
            evaluation={"prompts": 96, "n": 4, "ks": (1, 4)},
        )
        for name, use in (
            ("regions_minibatches", "16 minibatches"),
            ("regions_stale", "4 batches old"),
        )
    },
    "rare_opening": Experiment(
        "How many batches does a rare good opening need under each trust region?",
        tuple(rare()),
        chosen_by=None,
        world=rare_opening,
        watch=rare_decision,
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
    "rare_habits": Experiment(
        "Which trust region lets a rare right rule grow?",
        tuple(rare_habits()),
        chosen_by=None,
        seeds=tuple(range(5)),
        measure=rules_by_family,
        watch=families,
        evaluation=FEW,
    ),
    "habits_sigma": Experiment(
        "σ and MaxRL's weight on habits, each without the aggregation that came with it?",
        tuple(habits_sigma()),
        columns=(
            "accuracy",
            "completions",
            "grad_norm",
            *(f"right_rule_level_{k}" for k in range(1, 7)),
        ),
        tuning_seeds=(100, 101),
        measure=rules_by_family,
        watch=families,
        evaluation={"prompts": 96, "n": 8, "ks": (1, 8)},
    ),
}
