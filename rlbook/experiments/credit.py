"""Chapter 15: what a step is worth."""

from rlbook.experiments.design import Experiment

CREDIT: dict[str, Experiment] = {}
