"""Chapter 14: length, data, the pipeline, distillation."""

from rlbook.experiments.design import Experiment

EFFICIENCY: dict[str, Experiment] = {}
