"""Worlds of several chapters, and those in which one trouble is pressing.

A method is tested where its trouble is pressing, and then on plain sums as the control. Each world
is an object for a seam of `Trainer`: a task, an engine or a policy; the trainer stays as it is.
"""

from workshop.shared.worlds.baseline_cost import *
from workshop.shared.worlds.batch_reuse import *
from workshop.shared.worlds.divergence import *
from workshop.shared.worlds.engines import *
from workshop.shared.worlds.gae_walk import *
from workshop.shared.worlds.length_bias import *
from workshop.shared.worlds.shared_choice import *
from workshop.shared.worlds.strategy_mixture import *
from workshop.shared.worlds.tasks import *
from workshop.shared.worlds.trained import *
