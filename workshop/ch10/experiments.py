"""Chapter 10: its experiments."""

from rlbook.policy import load_policy
from rlbook.training import RunConfig, Trainer
from workshop.shared.design import Experiment, no_columns
from workshop.shared.experiments import FEW, on_policy
from workshop.shared.levels import families, rules_by_family
from workshop.shared.settings import HABITS
from workshop.shared.worlds.shared_choice import OpeningTask, shared_choice


def one_choice(config: RunConfig) -> Trainer:
    """All prompts share one opening, and nothing else can be trained."""
    return Trainer(config, shared_choice(load_policy(config.model.policy)), task=OpeningTask())


EXPERIMENTS: dict[str, Experiment] = {
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
}
