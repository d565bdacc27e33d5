"""Chapter 02: its experiments."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import METHODS, Method
from workshop.shared.design import Arm, Experiment, arm, vary
from workshop.shared.experiments import FIVE


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


EXPERIMENTS: dict[str, Experiment] = {
    "baselines": Experiment(
        "Does REINFORCE need a baseline, and when?",
        tuple(baselines()),
        seeds=FIVE,
        tuning_seeds=(100, 101),
    ),
}
