"""The processes of a run on this machine. Light to import: every machine of a cluster does."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import forkserver, get_context
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from unittest.mock import patch

from rlbook.scale.process import (
    HOST_VARIABLE,
    LAUNCHER,
    LIBC,
    LOCALHOST,
    die_with_parent,
    free_port,
)

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LOST = -255  # in place of an exit code: nobody was left to tell it
FORKED = [  # modules whose `main` a forked process runs; they take seconds to import
    "rlbook.scale.train.trainer",
    "rlbook.scale.rollout.orchestrator",
    "rlbook.scale.generate.builtin_server",
]
VISIT_SECONDS = 600.0  # for a report, on a machine that is slow to import
FORKS = get_context("forkserver")
PR_SET_NAME = 15  # from linux/prctl.h


@dataclass(frozen=True)
class Command:
    """What to start: its name in logs and messages, arguments, additions to the environment.

    It is `ranks` processes that find each other by `meeting`, and that live and die together, so
    many of them `beside` each other on one machine; each takes so many `gpus` and `cpus`. One that
    `finishes` has something left to do once the run is done, and then exits with 0. What a `spare`
    one does the other spare ones can do as well. Whether it lives is seen by `witness`, another
    process; by itself if there is none.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    finishes: bool = False
    spare: bool = False
    witness: str | None = None
    ranks: int = 1
    beside: int = 1
    gpus: int = 0
    cpus: int = 1

    @property
    def members(self) -> list[str]:
        """Names of its processes."""
        numbers = range(self.ranks) if self.ranks > 1 else [""]
        return [f"{self.name}{number}" for number in numbers]

    @property
    def forks(self) -> bool:
        """Whether it can be forked: a module of `FORKED`, and no GPU, for CUDA bears no fork."""
        return self.argv[:2] == [sys.executable, "-m"] and self.argv[2] in FORKED and not self.gpus


Process = Any  # a `LocalProcess`, or what has its five methods for a process of another machine
Start = Callable[[Command, Sequence[Path]], Sequence[Process]]  # with a log for each process


class Group:
    """A process on this machine that leads a group of its own."""

    pid: int
    poll: Callable[[], int | None]

    def begun(self) -> bool:
        """Whether it runs, or has run: one of another machine may wait for a place first."""
        return True

    def send_signal(self, number: int) -> None:
        """To the whole group, also if its leader has ended and left others behind."""
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                if self.poll() is None:  # just forked: it leads no group yet
                    os.kill(self.pid, number)


class LocalProcess(Group, subprocess.Popen):
    """A command line as a process that ends with this one; it writes to a log's end."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, machine: str = ""):
        with begun_log(log, machine) as out:
            super().__init__(
                argv,
                env={**os.environ, LAUNCHER: str(os.getpid()), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,
            )


class ForkedProcess(Group):
    """The same of a module of `FORKED`, from a process that has imported all of them before.

    So it is there at once. That process ends with this one, and what was forked from it, too.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path):
        self.argv, self.log = argv, log
        everything = {**os.environ, LAUNCHER: str(os.getpid()), **env}
        self.process = FORKS.Process(target=run_module, args=(argv, everything, log))
        preload()
        with no_main_module():
            self.process.start()
        self.pid = self.process.pid or 0

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that killed it; None while it lives."""
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code; raises `TimeoutExpired` if it still lives after `seconds`."""
        self.process.join(seconds)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.log), seconds or 0.0)
        return self.poll()


def preload() -> None:
    """Have the process that others are forked from import what they need; returns at once."""
    FORKS.set_forkserver_preload(["rlbook.scale.launch.fork_server", *FORKED])
    # Libraries would start threads as they are imported.
    with patch.dict(os.environ, ONE_THREAD | {LAUNCHER: str(os.getpid())}):
        forkserver.ensure_running()


@contextmanager
def no_main_module() -> Iterator[None]:
    """Inside, `multiprocessing` finds no main module that it would import in every process."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def run_module(argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Be the process that `argv` (python, -m, module, arguments) would have started."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_NAME, log.stem.encode())  # for `top`
    os.environ.clear()
    os.environ.update(env)
    with begun_log(log) as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    sys.argv = list(argv[2:])
    sys.path.insert(0, os.getcwd())
    import_module(argv[2]).main()


@contextmanager
def begun_log(path: Path, machine: str = "") -> Iterator[BinaryIO]:
    """A log to append to, with a line on when and where a process starts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when, where = time.strftime("%Y-%m-%d %H:%M:%S"), machine or socket.gethostname()
    with path.open("ab", buffering=0) as out:
        with suppress(OSError):  # on a full disk a log may lack a line
            out.write(f"--- {when} start on {where}\n".encode())
        yield out


def start_here(command: Command, logs: Sequence[Path]) -> Sequence[Process]:
    """Start a command on this machine, with a log for each of its processes."""
    port, ranks = free_port(LOCALHOST), command.ranks
    envs = [command.env | meeting(rank, ranks, LOCALHOST, port, rank) for rank in range(ranks)]
    if command.forks:
        with suppress(EOFError, ConnectionError):  # what they are forked from has died just now
            return [ForkedProcess(command.argv, *own) for own in zip(envs, logs, strict=True)]
    return [LocalProcess(command.argv, *own) for own in zip(envs, logs, strict=True)]


@dataclass
class Report:
    """What a process finds on its node: by check a value, or what is wrong."""

    node: str
    values: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


def visit(argv: Sequence[str], folder: str, env: Mapping[str, str]) -> Report:
    """The report, as JSON, of a program that is started here as a process of a run would be."""
    host = env.get(HOST_VARIABLE, socket.gethostname())
    report = Report(f"{host} ({env.get('RANK', '0')})", {"folder": folder})
    if not Path(folder).is_dir():
        report.wrong["folder"] = f"there is no {folder}"
    elif not shutil.which(argv[0]):
        report.wrong["python"] = f"there is no {argv[0]}"
    else:
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                env={**os.environ, **ONE_THREAD, **env},
                capture_output=True,
                text=True,
                timeout=VISIT_SECONDS,
            )
            found = json.loads(done.stdout.splitlines()[-1])
            report.values |= found["values"]
            report.wrong |= found["wrong"]
        except subprocess.TimeoutExpired:
            report.wrong["all-reduce"] = f"no answer within {VISIT_SECONDS:g} s"
        except (IndexError, ValueError):  # it said nothing, or something else
            report.wrong["packages"] = (done.stderr.strip() or "no report").splitlines()[-1]
    return report


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
