"""The processes of a run, by what they do (Linux)."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from rlbook.durable import read_json
from rlbook.scale.layout import Layout
from rlbook.scale.process import LAUNCHER

ENGINE = b"EngineCore"  # in the title of the process that computes for vLLM's server
FORK_SERVER = b"multiprocessing.forkserver"  # of the one that the launcher's others are forked from


def pids_of(kind: str, layout: Layout, launcher: int) -> list[int]:
    """Process ids of this kind that descend from the launcher: a run's file may name others."""
    if kind == "launcher":
        return [launcher]
    own = set(children(launcher, recursive=True))  # most are forked from a process of its own
    found = {name: pid for name, pid in read_json(layout.processes, {}).items() if pid in own}
    generators = [pid for name, pid in found.items() if name.startswith("generator")]
    orchestrator = [found[name] for name in ("orchestrator",) if name in found]
    return {
        "generator": generators,
        "engine": [c for pid in generators for c in children(pid) if runs(ENGINE, c)],
        "fork server": [c for c in children(launcher) if runs(FORK_SERVER, c)],
        "orchestrator": orchestrator,
        "verifier": [child for pid in orchestrator for child in children(pid)],
        "rank": [pid for name, pid in found.items() if name.startswith("trainer")],
    }[kind]


def children(pid: int, recursive: bool = False) -> list[int]:
    """Process ids of the processes that `pid` has started; if `recursive`, of theirs as well."""
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid).children(recursive)
        return [child.pid for child in started if status_of(child.pid) != psutil.STATUS_ZOMBIE]
    return []


def runs(program: bytes, pid: int) -> bool:
    """Whether a process has this on its command line.

    Of a vLLM server's children only one is its engine, the others help it to start. It has none
    while it loads its libraries, and never one if it is the book's own.
    """
    with suppress(OSError):
        return program in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def survivors(folder: Path, launchers: Iterable[int] = ()) -> list[int]:
    """Other processes with this folder on their command line, or started by one of the launchers.

    Whom a launcher starts inherits its process id in the environment, and so do its children.
    """
    marks = {f"{LAUNCHER}={pid}".encode() for pid in launchers}
    found = []
    for other in psutil.pids():
        if other != os.getpid():
            with suppress(OSError):
                files = Path(f"/proc/{other}")
                named = os.fsencode(folder) in (files / "cmdline").read_bytes()
                environment = (files / "environ").read_bytes().split(b"\0")
                if named or marks & set(environment):
                    found.append(other)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process exists and is stopped by a signal."""
    return status_of(pid) == psutil.STATUS_STOPPED


def status_of(pid: int) -> str | None:
    """What a process is doing, in psutil's words; None without such a process."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status()
    return None
