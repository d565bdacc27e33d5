"""pass@k, intervals and paired differences: what a sample says."""

from rlbook.stats.intervals import *
from rlbook.stats.pass_at_k import *
