"""What is asked, and how an answer is verified."""

from rlbook.tasks.base import *
from rlbook.tasks.environment import *
from rlbook.tasks.few_shot import *
from rlbook.tasks.registry import *
from rlbook.tasks.sums import *
