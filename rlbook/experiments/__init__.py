"""The reference experiments: several seeds of every arm, one process per core, resumable."""

from rlbook.experiments.catalogue import EXPERIMENTS
from rlbook.experiments.design import Arm, Experiment
from rlbook.experiments.run import run_experiment

__all__ = ["EXPERIMENTS", "Arm", "Experiment", "run_experiment"]
