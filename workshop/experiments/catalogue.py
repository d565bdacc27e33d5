"""The questions the book asks of the small world, and the runs that answer them."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import (
    METHODS,
    Method,
    NoTrustRegion,
    RatioClip,
    batch_mean_baseline,
    group_center,
)
from workshop.experiments.brevity import BREVITY
from workshop.experiments.credit import CREDIT
from workshop.experiments.design import Arm, Experiment, arm, vary, vary_methods
from workshop.experiments.efficiency import EFFICIENCY
from workshop.experiments.lacking import LACKING
from workshop.experiments.ladder import LADDER
from workshop.experiments.masks import MASK_AND_AGE
from workshop.experiments.pressing import GRPO, PRESSING, REGIONS, averages, bounded
from workshop.experiments.pupils import PUPILS
from workshop.experiments.real_model import REAL_MODEL
from workshop.experiments.reality import REALITY
from workshop.experiments.rivals import RIVALS
from workshop.experiments.rlhf import RLHF
from workshop.experiments.tricks import TRICKS

BATCH_MEAN_PPO = replace(METHODS["ppo"], advantage=batch_mean_baseline)


def baselines() -> Iterator[Arm]:
    """One arm per pair of (wrong, right) rewards: the same preferences, another zero."""
    settings = {"minibatches": 1, "steps": 20}
    arms = [
        *(
            arm(f"none, {w}/{r}", rewarded("reinforce", w, r), **settings)
            for w, r in ((0, 1), (1, 2), (-1, 1))
        ),
        arm("batch mean", "reinforce_batch_mean", **settings),
        arm("EMA, 1/2", rewarded("reinforce_ema", 1, 2), **settings),
    ]
    for one in arms:
        yield vary(one, lr=(1e-4, 2e-4, 4e-4, 8e-4))


def rewarded(method: str, wrong: float, right: float) -> Method:
    """A row with other rewards for a wrong and a right answer."""
    return replace(METHODS[method], reward_values=(float(wrong), float(right)))


def clipped(width: float, **settings) -> Arm:
    """PPO's clip of ±`width` on batch-mean advantages; no trust region for width 0."""
    region = RatioClip(width, width) if width else NoTrustRegion()
    label = f"clip {width:g}" if width else "no trust region"
    return arm(label, replace(BATCH_MEAN_PPO, trust_region=region), **settings)


def reuse() -> Iterator[Arm]:
    """Sixteen updates on a batch, in one pass or in four, with and without a clip, and one."""
    batches = {"steps": 12}
    one = clipped(0, minibatches=1, epochs=1, **batches)
    yield vary(replace(one, label="one update"), lr=(1e-4, 2e-4, 4e-4, 8e-4))
    for words, use in (
        ("16 minibatches", {"minibatches": 16, "epochs": 1}),
        ("4 passes of 4", {"minibatches": 4, "epochs": 4}),
    ):
        for width in (0, 0.2):
            many = clipped(width, **use, **batches)
            label = f"{words}, {many.label}"
            yield vary(replace(many, label=label), lr=(2.5e-5, 5e-5, 1e-4, 2e-4))


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


def group_sizes() -> Iterator[Arm]:
    """RLOO with 128 answers a batch, in groups of two, four, eight and sixteen."""
    method = replace(METHODS["rloo"], kl=None)
    for size in (2, 4, 8, 16):
        settings = {"prompts": 128 // size, "group_size": size, "minibatches": 1, "steps": 15}
        yield vary(arm(f"k = {size}", method, **settings), lr=(2e-4, 4e-4, 8e-4))


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

CONTROL = {
    "baselines": Experiment(
        "Does REINFORCE need a baseline, and when?",
        tuple(baselines()),
        seeds=FIVE,
        tuning_seeds=(100, 101),
    ),
    "reuse": Experiment(
        "What do sixteen updates on a batch buy, in one pass or in four, with and without a clip?",
        tuple(reuse()),
        tuning_seeds=(100, 101),
    ),
    "siblings": Experiment(
        "Do the siblings of an answer replace the critic, and what do 1/|o|, σ and KL change?",
        tuple(siblings()),
        tuning_seeds=(100, 101),
    ),
    "group_sizes": Experiment(
        "Which group size uses a budget of answers best?",
        tuple(group_sizes()),
        tuning_seeds=(100, 101),
    ),
    "lost_answers_control": Experiment(
        "What do the four ways to average tokens teach where no answer starts lost?",
        tuple(averages(minibatches=4, steps=15)),
        seeds=FIVE,
        chosen_by=None,
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
}

EXPERIMENTS: dict[str, Experiment] = (
    CONTROL
    | PRESSING
    | RLHF
    | TRICKS
    | REALITY
    | EFFICIENCY
    | REAL_MODEL
    | CREDIT
    | MASK_AND_AGE
    | LADDER
    | LACKING
    | BREVITY
    | PUPILS
    | RIVALS
)
