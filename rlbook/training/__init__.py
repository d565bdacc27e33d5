"""The loop, the trainer around it, one training step, the critic, checkpoints and metrics."""

from rlbook.training.batch import *
from rlbook.training.checkpoint import *
from rlbook.training.config import *
from rlbook.training.critic import *
from rlbook.training.engine import *
from rlbook.training.filter import *
from rlbook.training.learner import *
from rlbook.training.loop import *
from rlbook.training.pool import *
from rlbook.training.prepare import *
from rlbook.training.rewards import *
from rlbook.training.rollouts import *
from rlbook.training.runlog import *
from rlbook.training.runs import *
from rlbook.training.step import *
from rlbook.training.trainer import *
