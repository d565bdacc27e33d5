"""The processes of a run on this machine. Light to import: every machine of a cluster does."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbook.scale.generate.registry import LOCALHOST, free_port
from rlbook.scale.process import LAUNCHER, die_with_parent

LOST = -255  # in place of an exit code: nobody was left to tell it


@dataclass(frozen=True)
class Command:
    """What to start: its name in logs and messages, arguments, additions to the environment.

    It is `ranks` processes that find each other by `meeting`, and that live and die together; each
    takes so many `gpus` and `cpus`. One that `finishes` has something left to do once the run is
    done, and then exits with 0. What a `spare` one does the other spare ones can do as well.
    Whether it lives is seen by `witness`, another process; by itself if there is none.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    finishes: bool = False
    spare: bool = False
    witness: str | None = None
    ranks: int = 1
    gpus: int = 0
    cpus: int = 1

    @property
    def members(self) -> list[str]:
        """Names of its processes."""
        numbers = range(self.ranks) if self.ranks > 1 else [""]
        return [f"{self.name}{number}" for number in numbers]


Process = Any  # a `LocalProcess`, or what has its five methods for a process of another machine
Start = Callable[[Command, Sequence[Path]], Sequence[Process]]  # with a log for each process


class LocalProcess(subprocess.Popen):
    """A process that leads a group of its own and ends with this one; it writes to a log's end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, machine: str = ""):
        machine = machine or socket.gethostname()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as out:
            with suppress(OSError):  # on a full disk a log may lack a line
                out.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} start on {machine}\n".encode())
            super().__init__(
                argv,
                env={**os.environ, LAUNCHER: str(os.getpid()), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,
            )

    def begun(self) -> bool:
        """Whether it runs, or has run: one of another machine may wait for a place first."""
        return True

    def send_signal(self, number: int) -> None:
        """To the whole group, also if its leader has ended and left others behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start_here(command: Command, logs: Sequence[Path]) -> list[LocalProcess]:
    """Start a command on this machine, with a log for each of its processes."""
    port, ranks = free_port(LOCALHOST), command.ranks
    return [
        LocalProcess(
            command.argv,
            command.env | meeting(rank, ranks, LOCALHOST, port, local_rank=rank),
            log,
        )
        for rank, log in zip(range(ranks), logs, strict=True)
    ]


def meeting(rank: int, ranks: int, host: str, port: int, local_rank: int) -> dict[str, str]:
    """The environment in which `torch.distributed` finds the other ranks; empty for one alone."""
    if ranks == 1:
        return {}
    where = {"MASTER_ADDR": host, "MASTER_PORT": port}
    who = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": ranks}
    return {name: str(value) for name, value in (where | who).items()}


def describe_exit(code: int) -> str:
    """Why a process ended, in words: "exit code 1", "killed by SIGKILL"."""
    if code == LOST:
        return "lost, perhaps with its machine"
    if code >= 0:
        return f"exit code {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"
