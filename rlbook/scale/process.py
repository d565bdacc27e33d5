"""What every process of a run does for the others."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
LAUNCHER = "RLBOOK_LAUNCHER"  # environment variable: process id of the launcher
libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int | None = None) -> None:
    """Have the system kill this process when the one that started it is gone (Linux).

    Call it first thing. A parent that is gone already is noticed: `parent` is its process id if
    that is known; otherwise orphans are the children of process 1, unless that is the launcher.
    """
    if libc is None:
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is None:
        orphan = os.getppid() == 1 and os.environ.get(LAUNCHER) != "1"
    else:
        orphan = os.getppid() != parent
    if orphan:
        os.kill(os.getpid(), signal.SIGKILL)
