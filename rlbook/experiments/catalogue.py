"""The questions the book asks of the small world, and the runs that answer them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from rlbook.experiments.design import Arm, Experiment, arm, over
from rlbook.experiments.pressing import PRESSING
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

ON_POLICY = {"minibatches": 1, "lr": 4e-4, "steps": 40}
FEW_UPDATES = {"minibatches": 4, "lr": 1.5e-4, "steps": 30}
REUSE = {"minibatches": 4, "epochs": 4, "lr": 1e-4, "steps": 16}

GRPO = replace(METHODS["grpo"], kl=None)
BATCH_MEAN_PPO = replace(METHODS["ppo"], advantage=batch_mean_baseline)
OVERLONG = {"reward_shaping": "overlong", "reward_values": (-1.0, 1.0)}


def shifted_rewards(label: str, method: str) -> tuple[Arm, ...]:
    """One arm per pair of (wrong, right) rewards: the same preferences, another zero."""
    return tuple(
        arm(f"{label}, {w}/{r}", rewarded(method, w, r), **ON_POLICY)
        for w, r in ((0, 1), (1, 2), (-1, 1))
    )


def rewarded(method: str, wrong: float, right: float) -> Method:
    """A row with other rewards for a wrong and a right answer."""
    return replace(METHODS[method], reward_values=(float(wrong), float(right)))


def clipped(width: float, **settings) -> Arm:
    """PPO's clip of ±`width` on batch-mean advantages; no trust region for width 0."""
    region = RatioClip(width, width) if width else NoTrustRegion()
    label = f"clip {width:g}" if width else "no trust region"
    return arm(label, replace(BATCH_MEAN_PPO, trust_region=region), **REUSE | settings)


def reuse() -> Iterator[Arm]:
    """Sixteen updates on a batch, in one pass or in four, with and without a clip, and one."""
    batches = {"steps": 12}
    one = clipped(0, minibatches=1, epochs=1, **batches)
    yield over(replace(one, label="one update"), lr=(1e-4, 2e-4, 4e-4, 8e-4))
    for words, use in (
        ("16 minibatches", {"minibatches": 16, "epochs": 1}),
        ("4 passes of 4", {"minibatches": 4, "epochs": 4}),
    ):
        for width in (0, 0.2):
            many = clipped(width, **use, **batches)
            label = f"{words}, {many.label}"
            yield over(replace(many, label=label), lr=(2.5e-5, 5e-5, 1e-4, 2e-4))


MANY_UPDATES = REUSE | {"prompts": 8, "steps": 20}
AS_PUBLISHED = {
    "reinforce": ON_POLICY,
    "reinforce_batch_mean": ON_POLICY,
    "reinforce_ema": ON_POLICY,
    "ppo": MANY_UPDATES | {"lam": 0.95},
    "grpo": FEW_UPDATES,
    "rloo": ON_POLICY,
    "remax": ON_POLICY,
    "reinforce_plus_plus": FEW_UPDATES | {"prompts": 128, "group_size": 1},
    "opo": ON_POLICY,
    "dr_grpo": FEW_UPDATES,
    "dapo": MANY_UPDATES,
    "cispo": MANY_UPDATES,
    "gspo": FEW_UPDATES,
    "maxrl": ON_POLICY,
    "dppo": MANY_UPDATES,
    "dppo_kl": MANY_UPDATES,
    "scalerl": MANY_UPDATES,
    "lite_ppo": FEW_UPDATES,
    "gpg": ON_POLICY,
}


def shared_setting() -> Iterator[Arm]:
    """Every row without its KL term, all at one learning rate and number of updates."""
    for name in AS_PUBLISHED:
        yield arm(name, replace(METHODS[name], kl=None), **FEW_UPDATES | {"lam": 0.95})


def own_settings() -> Iterator[Arm]:
    """Every row as published, with the updates per batch its paper has in mind."""
    for name, settings in AS_PUBLISHED.items():
        yield arm(name, name, **settings)


TRUST_REGIONS = {
    "none": {"trust_region": NoTrustRegion()},
    "clip": {"trust_region": RatioClip(0.2, 0.2)},
    "CISPO": {"trust_region": WeightClip(max=5.0)},
    "GSPO": {"trust_region": RatioClip(3e-4, 4e-4), "ratio": "sequence"},
    "DPPO": {"trust_region": DivergenceMask("tv", 0.15, 0.15)},
}


def stability() -> Iterator[Arm]:
    """Trust regions alone, over updates per batch, age of the sampler's weights, learning rate."""
    base = replace(METHODS["grpo"], kl=None, advantage=group_center, aggregation="token_mean")
    for (name, region), epochs, refresh, lr in product(
        TRUST_REGIONS.items(), (1, 4), (1, 4), (1e-4, 3e-4)
    ):
        yield arm(
            f"{name}, {4 * epochs} updates, refresh {refresh}, lr {lr:g}",
            replace(base, **region),
            prompts=8,
            steps=12,
            epochs=epochs,
            sync_every=refresh,
            lr=lr,
        )


def dapo_parts() -> Iterator[Arm]:
    """GRPO, each of DAPO's parts added alone, and all together."""
    parts = {
        "GRPO": {},
        "+ clip-higher": {"trust_region": RatioClip(0.2, 0.28)},
        "+ token mean": {"aggregation": "token_mean"},
        "+ overlong ramp": OVERLONG,
        "+ overlong filter": {"reward_shaping": "overlong_filter"},
        "+ dynamic sampling": {"prompt_filter": "resample_zero_variance"},
    }
    settings = {"prompts": 8, "minibatches": 4, "epochs": 4, "lr": 1e-4, "steps": 20}
    for label, change in parts.items():
        yield arm(label, replace(GRPO, **change), **settings)
    yield arm("DAPO", "dapo", **settings)


# Where solved prompts retire, the accuracy of the training prompts says little.
HELD_OUT = {"every": 5, "prompts": 96, "samples": 4}


def leave_one_out() -> Iterator[Arm]:
    """ScaleRL's recipe, and the recipe with one component exchanged for what was there before."""
    recipe = METHODS["scalerl"]
    settings = {"prompts": 8, "minibatches": 1, "steps": 80, "lr": 4e-4}
    settings |= {"pool": 256, "retire_at": 0.9, "sync_every": 2, "evaluation": HELD_OUT}
    yield arm("ScaleRL", recipe, **settings)
    exchanged = {
        "DAPO's clip": {"trust_region": RatioClip(0.2, 0.26)},
        "σ per prompt": {"advantage": METHODS["grpo"].advantage},
        "mean per answer": {"aggregation": "sequence_mean"},
        "all prompts": {"prompt_filter": "none"},
        "overlong ramp": {"reward_shaping": "overlong"},
    }
    for label, change in exchanged.items():
        yield arm(label, replace(recipe, **change), **settings)
    yield arm("solved prompts again", recipe, **settings | {"retire_at": None})
    yield arm("fresh samples", recipe, **settings | {"sync_every": 1})
    yield arm("up to 7 old", recipe, **settings | {"sync_every": 8})


FIVE = (0, 1, 2, 3, 4)

CONTROL = {
    "baselines": Experiment(
        "Does REINFORCE need a baseline, and when?",
        (
            *shifted_rewards("none", "reinforce"),
            arm("batch mean", "reinforce_batch_mean", **ON_POLICY),
            arm("EMA, 1/2", rewarded("reinforce_ema", 1, 2), **ON_POLICY),
        ),
        seeds=FIVE,
    ),
    "reuse": Experiment(
        "What do sixteen updates on a batch buy, in one pass or in four, with and without a clip?",
        tuple(reuse()),
        tuning_seeds=(100, 101),
    ),
    "critic": Experiment(
        "Does a critic with GAE beat the mean reward of the batch?",
        (
            arm("batch mean", BATCH_MEAN_PPO, **FEW_UPDATES),
            arm("critic, λ = 1", "ppo", lam=1.0, **FEW_UPDATES),
            arm("critic, λ = 0.95", "ppo", lam=0.95, **FEW_UPDATES),
        ),
        seeds=FIVE,
    ),
    "groups": Experiment(
        "What do a baseline per group, its σ and a KL penalty change?",
        (
            arm("batch mean", replace(GRPO, advantage=batch_mean_baseline), **FEW_UPDATES),
            arm("group mean", replace(GRPO, advantage=group_center), **FEW_UPDATES),
            arm("GRPO (÷ σ)", GRPO, **FEW_UPDATES),
            arm("GRPO + KL", "grpo", **FEW_UPDATES),
        ),
        seeds=FIVE,
    ),
    "length": Experiment(
        "What does dividing by a completion's own length teach?",
        (
            arm("mean over each answer", GRPO, lr=2e-4, steps=20),
            arm("constant", replace(GRPO, aggregation="constant", constant=80), lr=2e-4, steps=20),
        ),
        seeds=FIVE,
    ),
    "dapo": Experiment("What does each part of DAPO change?", tuple(dapo_parts()), seeds=FIVE),
    "methods": Experiment(
        "Which methods differ when everything else is equal?", tuple(shared_setting()), seeds=FIVE
    ),
    "methods_own": Experiment(
        "Which methods differ when each runs as published?", tuple(own_settings()), seeds=FIVE
    ),
    "scalerl": Experiment(
        "Which part of ScaleRL's recipe carries it?",
        tuple(leave_one_out()),
        seeds=(0, 1, 2),
    ),
    "stability": Experiment(
        "When does a trust region matter, and which?", tuple(stability()), seeds=(0, 1, 2)
    ),
}

EXPERIMENTS: dict[str, Experiment] = CONTROL | PRESSING
