"""Small worlds in which one trouble is pressing: overrides of prompt, verdict or sampler.

A method is tested where its trouble is pressing, and then on plain sums as the control. Each world
is an object for a seam of `Trainer`: a task, an engine or a policy; the trainer stays as it is.
"""

from workshop.worlds.troubles.engines import *
from workshop.worlds.troubles.tasks import *
from workshop.worlds.troubles.tools import *
