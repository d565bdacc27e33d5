"""The mathematics: advantages, ratios, trust regions, aggregation, KL, and methods as rows.

Each module says in its `__all__` what makes or uses a row, and that is what this package exports.
What a lesson needs besides stays in its module, such as `process.step_gains`.
"""

from rlbook.objectives.advantages import *
from rlbook.objectives.aggregation import *
from rlbook.objectives.divergences import *
from rlbook.objectives.estimators import *
from rlbook.objectives.field_rows import *
from rlbook.objectives.kl import *
from rlbook.objectives.loss import *
from rlbook.objectives.method import *
from rlbook.objectives.methods import *
from rlbook.objectives.prompts import *
from rlbook.objectives.ratios import *
from rlbook.objectives.selection import *
from rlbook.objectives.shaping import *
from rlbook.objectives.soft_regions import *
from rlbook.objectives.table import *
from rlbook.objectives.trust_regions import *
from rlbook.objectives.values import *
