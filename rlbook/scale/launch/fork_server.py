"""What the process that others are forked from imports first: it ends at once with its launcher."""

import sys

from rlbook.scale.process import die_with_parent

if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    die_with_parent()
