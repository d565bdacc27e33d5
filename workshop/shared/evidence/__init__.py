"""The evidence of a page: recorded tables, differences, rates, the ladder, curves and colours."""

from workshop.shared.evidence.arms import *
from workshop.shared.evidence.levels import *
from workshop.shared.evidence.rates import *
from workshop.shared.evidence.rungs import *
from workshop.shared.evidence.tables import *
