"""Chapter 13: rewards without labels, and base against RL at large k."""

from rlbook.experiments.design import Experiment

REALITY: dict[str, Experiment] = {}
