"""The processes of a run, by what they do (Linux)."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rlbook.durable import read_json
from rlbook.scale.layout import Layout
from rlbook.scale.process import LAUNCHER, state_and_parent

ENGINE = b"EngineCore"  # in the title of the process that computes for vLLM's server


def pids_of(kind: str, layout: Layout, launcher: int) -> list[int]:
    """Process ids of this kind that descend from the launcher: a run's file may name others."""
    if kind == "launcher":
        return [launcher]
    own = set(children(launcher))
    found = {name: pid for name, pid in read_json(layout.processes, {}).items() if pid in own}
    generators = [pid for name, pid in found.items() if name.startswith("generator")]
    orchestrator = [found[name] for name in ("orchestrator",) if name in found]
    return {
        "generator": generators,
        "engine": [child for pid in generators for child in children(pid) if is_engine(child)],
        "orchestrator": orchestrator,
        "verifier": [child for pid in orchestrator for child in children(pid)],
        "rank": [pid for name, pid in found.items() if name.startswith("trainer")],
    }[kind]


def children(pid: int) -> list[int]:
    """Process ids of the processes that `pid` has started."""
    found = []
    for other in processes():
        with suppress(OSError):
            state, parent = state_and_parent(other)
            if parent == pid and state != "Z":
                found.append(other)
    return found


def is_engine(pid: int) -> bool:
    """Whether this is the engine of a vLLM server: its other children only help it to start.

    A server has none while it loads its libraries, and never one if it is the book's own.
    """
    with suppress(OSError):
        return ENGINE in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def survivors(folder: Path, launchers: Iterable[int] = ()) -> list[int]:
    """Other processes with this folder on their command line, or started by one of the launchers.

    Whom a launcher starts inherits its process id in the environment, and so do its children.
    """
    marks = {f"{LAUNCHER}={pid}".encode() for pid in launchers}
    found = []
    for other in processes():
        if other != os.getpid():
            with suppress(OSError):
                files = Path(f"/proc/{other}")
                named = os.fsencode(folder) in (files / "cmdline").read_bytes()
                if named or marks & {*(files / "environ").read_bytes().split(b"\0")}:
                    found.append(other)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process exists and is stopped by a signal."""
    with suppress(OSError):
        return state_and_parent(pid)[0] == "T"
    return False


def processes() -> Iterator[int]:
    """Ids of all processes of this machine."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
