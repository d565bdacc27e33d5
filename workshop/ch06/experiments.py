"""Chapter 06: its experiments."""

from collections.abc import Iterator
from dataclasses import replace

from rlbook.objectives import METHODS
from workshop.shared.design import Arm, Experiment, arm, vary


def group_sizes() -> Iterator[Arm]:
    """RLOO with 128 answers a batch, in groups of two, four, eight and sixteen."""
    method = replace(METHODS["rloo"], kl=None)
    for size in (2, 4, 8, 16):
        settings = {"prompts": 128 // size, "group_size": size, "minibatches": 1, "steps": 15}
        yield vary(arm(f"k = {size}", method, **settings), lr=(2e-4, 4e-4, 8e-4))


EXPERIMENTS: dict[str, Experiment] = {
    "group_sizes": Experiment(
        "Which group size uses a budget of answers best?",
        tuple(group_sizes()),
        tuning_seeds=(100, 101),
    ),
}
