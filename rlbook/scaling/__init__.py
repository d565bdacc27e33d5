"""Compute curves, the asynchronous pipeline and memory: what a run costs and where it ends."""

from rlbook.extras import require

require("stats", "scipy")

from rlbook.scaling.compute_curves import *
from rlbook.scaling.seeds import *
from rlbook.scaling.simulator import *
