"""Processes that end together with the one that started them."""

import ctypes
import os
import signal
import sys
import time
from threading import Thread

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
LIBC = ctypes.CDLL(None)
POLL_SECONDS = 0.5


def die_with_parent() -> None:
    """End this process when the thread that started it ends, however that ends. Chapter 17.

    Linux sees to it by itself, so there this also works between fork and exec (`preexec_fn`).
    Elsewhere a thread of this process looks for it.
    """
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        Thread(target=exit_when_orphaned, args=(os.getppid(),), daemon=True).start()


def exit_when_orphaned(parent: int) -> None:
    """Return never: exit once the parent process is no longer `parent`."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
