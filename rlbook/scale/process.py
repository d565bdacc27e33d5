"""What every process of a run does for the others."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
LAUNCHER = "RLBOOK_LAUNCHER"  # environment variable: process id of the launcher
libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it is gone (Linux).

    Call it first thing: a parent that is gone already is noticed, one that goes later is too.
    """
    if libc is None:
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orphan = os.getppid() == 1 and os.environ.get(LAUNCHER) != "1"  # in a container it may be 1
    if orphan:
        os.kill(os.getpid(), signal.SIGKILL)
