"""Small worlds in which one trouble is pressing: overrides of prompt, verdict or sampler.

A method is tested where its trouble is pressing, and then on plain sums as the control. Each world
is an object for a seam of `Trainer`: a task, an engine or a policy; the trainer stays as it is.
"""

from rlbook.troubles.engines import RoughSampler, StartsLost, rounded
from rlbook.troubles.shared_choice import OpeningTask, shared_choice
from rlbook.troubles.tasks import LostIsWrong, RareOpening, Unsolvable, tight_limit
from rlbook.troubles.tools import Calculator, Unmasked

__all__ = [
    "Calculator",
    "LostIsWrong",
    "OpeningTask",
    "RareOpening",
    "RoughSampler",
    "StartsLost",
    "Unmasked",
    "Unsolvable",
    "rounded",
    "shared_choice",
    "tight_limit",
]
