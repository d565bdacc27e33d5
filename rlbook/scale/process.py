"""Processes that end with the one that started them, and say that they are alive, and where."""

import ctypes
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

from rlbook.durable import read_json, write_json

LAUNCHER = "RLBOOK_LAUNCHER"  # environment: process id of the launcher
ENTRY_VARIABLE = "RLBOOK_SERVER"  # environment: the file in which a server publishes its URL
HOST_VARIABLE = "RLBOOK_HOST"  # environment: the address it is to bind, if not this machine's own
TOKEN_VARIABLE = "RLBOOK_TOKEN"  # environment: the secret that requests have to carry
LOCALHOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
LIBC = ctypes.CDLL(None)
POLL_SECONDS = 0.5
LOOK_SECONDS = 0.05  # between two looks at what is waited for
HEARTBEAT_SECONDS = 1.0


def allow_open_files() -> None:
    """As many files and connections as this process may have; 1,024 is usual without asking."""
    import resource  # not on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Heartbeat:
    """Signs of life in a file: its time of change, and how many seconds of silence to allow."""

    def __init__(self, path: Path, silence: float):
        self.path, self.silence = path, silence
        self.due, self.written = 0.0, math.nan

    def __call__(self) -> None:
        """Show life; cheap enough for every turn of a loop."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + HEARTBEAT_SECONDS
        with suppress(OSError):  # a full disk must not end a process that could wait
            if self.silence != self.written:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(f"{self.silence:g}")
                self.written = self.silence
            os.utime(self.path)


class LifeSigns:
    """The launcher's view of a `Heartbeat`: when it was last heard, on the launcher's own clock.

    Only changes of the file's time are looked at, never the time itself: machines' clocks differ.
    """

    def __init__(self, path: Path):
        self.path, self.changed, self.heard = path, 0, -math.inf
        self.look(-math.inf)  # what is there already is a sign of an earlier life

    def look(self, now: float) -> float:
        """When the last change was seen."""
        with suppress(OSError):
            if (changed := self.path.stat().st_mtime_ns) != self.changed:
                self.changed, self.heard = changed, now
        return self.heard

    def silence(self, since: float, now: float, loading: float) -> float | None:
        """Seconds since the last sign of life, if they are more than was allowed; otherwise None.

        A process that has shown none `since` it was started may be loading for so many seconds.
        """
        last, allowed = since, loading
        with suppress(OSError, ValueError):  # being written: the next look will tell
            if self.heard > since:
                last, allowed = self.heard, math.inf
                allowed = float(self.path.read_text())
        return now - last if now - last > allowed else None


def say(text: str) -> None:
    """A line of this process's log, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def die_with_parent() -> None:
    """End this process when the thread that started it ends, however that ends. Chapter 18.

    Linux sees to it by itself, so there this also works between fork and exec (`preexec_fn`).
    Elsewhere a thread of this process looks for it. A process of a launcher that is gone before
    the call, while it was still importing, ends at once.
    """
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if launcher := os.environ.get(LAUNCHER):
            import psutil

            if int(launcher) not in [parent.pid for parent in psutil.Process().parents()]:
                os._exit(1)
    else:
        Thread(target=exit_when_orphaned, args=(os.getppid(),), daemon=True).start()


def exit_when_orphaned(parent: int) -> None:
    """Return never: exit once the parent process is no longer `parent`."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def waited(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes to hold within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return holds


def own_host() -> str:
    """The address that a server is to bind. `ValueError` if it would be open to other machines."""
    host = os.environ.get(HOST_VARIABLE, LOCALHOST)
    if host != LOCALHOST and not os.environ.get(TOKEN_VARIABLE):
        raise ValueError(f"{host} is reachable from other machines: set {TOKEN_VARIABLE}")
    return host


def publish(host: str, port: int) -> None:
    """Let the run know this server's address, if a run has started it."""
    if entry := os.environ.get(ENTRY_VARIABLE):
        write_json(Path(entry), {"url": f"http://{host}:{port}"})


def published(entry: Path) -> str | None:
    """The URL in a file of the registry; None if its server has not started yet."""
    return read_json(entry, {}).get("url")


def free_port(host: str) -> int:
    """For a server that cannot choose one itself; whoever is quicker may take it meanwhile."""
    with socket.create_server((host, 0)) as listening:
        return listening.getsockname()[1]
