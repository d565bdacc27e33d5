"""The questions the book asks of the small world, and the runs that answer them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

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
from rlbook.training import TrainConfig


@dataclass(frozen=True)
class Arm:
    """One line of a figure: a label and what it trains."""

    label: str
    config: TrainConfig
    method: Method


@dataclass(frozen=True)
class Experiment:
    """A question, the arms that answer it, and the seeds each arm is run with.

    With `eval_every`, held-out accuracy joins the log every that many steps: the accuracy of the
    training prompts says little where solved ones retire.
    """

    question: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    eval_every: int | None = None


def arm(label: str, method: str | Method, **settings) -> Arm:
    row = METHODS[method] if isinstance(method, str) else method
    return Arm(label, TrainConfig(method=row.name, **settings), row)


ON_POLICY = {"minibatches": 1, "lr": 4e-4, "steps": 40}
FEW_UPDATES = {"minibatches": 4, "lr": 1.5e-4, "steps": 30}
REUSE = {"minibatches": 4, "epochs": 4, "lr": 1e-4, "steps": 16}

GRPO = replace(METHODS["grpo"], kl=None)
BATCH_MEAN_PPO = replace(METHODS["ppo"], advantage=batch_mean_baseline)
OVERLONG = {"reward_shaping": "overlong", "reward_values": (-1.0, 1.0)}


def shifted_rewards(label: str, method: str) -> tuple[Arm, ...]:
    """One arm per pair of (wrong, right) rewards: the same preferences, another zero."""
    return tuple(
        arm(f"{label}, {w}/{r}", method, reward_wrong=w, reward_right=r, **ON_POLICY)
        for w, r in ((0, 1), (1, 2), (-1, 1))
    )


def clipped(width: float, **settings) -> Arm:
    """PPO's clip of ±`width` on batch-mean advantages; no trust region for width 0."""
    region = RatioClip(width, width) if width else NoTrustRegion()
    label = f"clip {width:g}" if width else "no trust region"
    return arm(label, replace(BATCH_MEAN_PPO, trust_region=region), **REUSE | settings)


def shared_setting() -> Iterator[Arm]:
    """Every row without its KL term, all at one learning rate and number of updates."""
    for name, method in METHODS.items():
        yield arm(name, replace(method, kl=None), **FEW_UPDATES | {"lam": 0.95})


def own_settings() -> Iterator[Arm]:
    """Every row as published, with the updates per batch its paper has in mind."""
    on_policy = ("reinforce", "reinforce_batch_mean", "reinforce_ema", "rloo", "remax", "opo")
    on_policy += ("maxrl", "gpg")
    few = ("grpo", "dr_grpo", "gspo", "lite_ppo", "reinforce_plus_plus")
    many = REUSE | {"prompts": 8, "steps": 20}
    special = {"ppo": {"lam": 0.95}, "reinforce_plus_plus": {"prompts": 128, "group_size": 1}}
    for name in METHODS:
        settings = ON_POLICY if name in on_policy else FEW_UPDATES if name in few else many
        yield arm(name, name, **settings | special.get(name, {}))


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
            sampler_refresh=refresh,
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


def leave_one_out() -> Iterator[Arm]:
    """ScaleRL's recipe, and the recipe with one component exchanged for what was there before."""
    recipe = METHODS["scalerl"]
    settings = {"prompts": 8, "minibatches": 1, "steps": 80, "lr": 4e-4}
    settings |= {"pool": 256, "retire_at": 0.9, "sampler_refresh": 2}
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
    yield arm("fresh samples", recipe, **settings | {"sampler_refresh": 1})
    yield arm("up to 7 old", recipe, **settings | {"sampler_refresh": 8})


EXPERIMENTS = {
    "baselines": Experiment(
        "Does REINFORCE need a baseline, and when?",
        (
            *shifted_rewards("none", "reinforce"),
            arm("batch mean", "reinforce_batch_mean", **ON_POLICY),
            arm("EMA, 1/2", "reinforce_ema", reward_wrong=1, reward_right=2, **ON_POLICY),
        ),
    ),
    "reuse": Experiment(
        "What happens when every batch of rollouts is used for 16 updates?",
        (
            replace(clipped(0.2, minibatches=1, epochs=1), label="one update per batch"),
            *(clipped(width) for width in (0, 0.2, 0.4)),
        ),
    ),
    "critic": Experiment(
        "Does a critic with GAE beat the mean reward of the batch?",
        (
            arm("batch mean", BATCH_MEAN_PPO, **FEW_UPDATES),
            arm("critic, λ = 1", "ppo", lam=1.0, **FEW_UPDATES),
            arm("critic, λ = 0.95", "ppo", lam=0.95, **FEW_UPDATES),
        ),
    ),
    "groups": Experiment(
        "What do a baseline per group, its σ and a KL penalty change?",
        (
            arm("batch mean", replace(GRPO, advantage=batch_mean_baseline), **FEW_UPDATES),
            arm("group mean", replace(GRPO, advantage=group_center), **FEW_UPDATES),
            arm("GRPO (÷ σ)", GRPO, **FEW_UPDATES),
            arm("GRPO + KL", "grpo", **FEW_UPDATES),
        ),
    ),
    "length": Experiment(
        "What does dividing by a completion's own length teach?",
        (
            arm("mean over each answer", GRPO, lr=2e-4, steps=20),
            arm("constant", replace(GRPO, aggregation="constant", constant=80), lr=2e-4, steps=20),
        ),
    ),
    "dapo": Experiment("What does each part of DAPO change?", tuple(dapo_parts())),
    "methods": Experiment(
        "Which methods differ when everything else is equal?", tuple(shared_setting())
    ),
    "methods_own": Experiment(
        "Which methods differ when each runs as published?", tuple(own_settings())
    ),
    "scalerl": Experiment(
        "Which part of ScaleRL's recipe carries it?",
        tuple(leave_one_out()),
        seeds=(0, 1, 2),
        eval_every=5,
    ),
    "stability": Experiment(
        "When does a trust region matter, and which?", tuple(stability()), seeds=(0, 1, 2)
    ),
}
