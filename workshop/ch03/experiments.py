"""Chapter 03: its experiments."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import NoTrustRegion, RatioClip
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.experiments import BATCH_MEAN_PPO


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


EXPERIMENTS: dict[str, Experiment] = {
    "reuse": Experiment(
        "What do sixteen updates on a batch buy, in one pass or in four, with and without a clip?",
        tuple(reuse()),
        tuning_seeds=(100, 101),
    ),
}
