"""Policies small enough to enumerate, and what can be computed exactly with them."""

from rlbook.exact.estimators import *
from rlbook.exact.four_completions import *
from rlbook.exact.policies import *
