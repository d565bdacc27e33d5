"""Chapter 04: a reward model in the verifier's place."""

from rlbook.experiments.design import Experiment

RLHF: dict[str, Experiment] = {}
