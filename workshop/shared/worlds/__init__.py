"""Worlds of several chapters, and those in which one trouble is pressing.

A method is tested where its trouble is pressing, and then on plain sums as the control. Each world
is an object for a seam of `Trainer`: a task, an engine or a policy; the trainer stays as it is.
"""

from workshop.shared.worlds.engines import *
from workshop.shared.worlds.tasks import *
