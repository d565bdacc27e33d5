"""The reference experiments: several seeds of every arm, one process per core, resumable."""

from workshop.experiments.catalogue import EXPERIMENTS
from workshop.experiments.run import run_experiment
from workshop.shared.design import Arm, Experiment

__all__ = ["EXPERIMENTS", "Arm", "Experiment", "run_experiment"]
