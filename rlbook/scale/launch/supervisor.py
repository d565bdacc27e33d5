"""Keeps processes running: whoever exits before the run is done is started again."""

import json
import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlbook.scale.config import LaunchConfig
from rlbook.scale.layout import Layout, write_json
from rlbook.scale.process import LAUNCHER, die_with_parent, silent_too_long

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds before a restart: doubled by every recent death
POLL_SECONDS = 0.2
TAIL_LINES, SEARCHED_LINES = 15, 400
ERROR_LINE = re.compile(r"(\[rank\d+\]: )?[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: |$)")
TORCHRUN_ERROR = re.compile(r"ChildFailedError|SignalException")


class TooManyDeaths(RuntimeError):
    """A process died so often that starting it again will not help. Names it and its log."""


@dataclass(frozen=True)
class Command:
    """What to start: its name in logs and messages, arguments, additions to the environment.

    One that `finishes` has something left to do once the run is done, and then exits with 0. What
    a `spare` one does the other spare ones can do as well. Whether it lives is seen by `witness`,
    another process; by itself if there is none.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    finishes: bool = False
    spare: bool = False
    witness: str | None = None


class Watched:
    """One command, started again whenever it exits. Its process leads a process group."""

    def __init__(self, command: Command, log: Path, limits: LaunchConfig):
        self.command, self.log, self.limits = command, log, limits
        self.process: subprocess.Popen | None = None
        self.deaths: list[float] = []  # times, on the monotonic clock
        self.start_at = self.started = 0.0
        self.finished = False

    @property
    def name(self) -> str:
        return self.command.name

    def start(self) -> int:
        """Start the command; its output goes to the end of its log. Returns the process id."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} start {len(self.deaths) + 1}\n")
            log.flush()
            self.started = time.time()
            self.process = subprocess.Popen(
                self.command.argv,
                env={**os.environ, LAUNCHER: str(os.getpid()), **self.command.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent,
            )
        return self.process.pid

    def due(self, now: float) -> bool:
        """Whether it is time to start the command."""
        return self.process is None and not self.finished and self.start_at <= now

    def exited(self) -> int | None:
        """The exit code of a process that has ended since the last call, otherwise None."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self.signal(signal.SIGKILL)  # what it may have left behind in its group
        self.process = None
        return code

    def plan_restart(self, now: float) -> None:
        """Note a death and when to start again; `TooManyDeaths` if it is one too many."""
        self.deaths.append(now)
        recent = sum(now - death <= self.limits.window for death in self.deaths)
        if recent > self.limits.max_deaths:
            raise TooManyDeaths(
                f"{self.name} died {recent} times within {self.limits.window:g} s; "
                f"the end of {self.log}:\n{last_error(self.log)}"
            )
        self.start_at = now + min(FIRST_DELAY * 2 ** (recent - 1), LONGEST_DELAY)

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group, if there still is one."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Supervisor:
    """Runs commands until they are no longer needed; leaving the `with` block stops them all.

    Every exit before the run is done is a death, exit code 0 too: that is how vLLM's server exits
    when its engine dies. Who shows no sign of life is killed, which is a death as well.
    `events.jsonl` records starts and deaths and who was left out, `processes.json` the current
    process ids.
    """

    def __init__(self, commands: Iterable[Command], layout: Layout, limits: LaunchConfig):
        self.layout, self.limits = layout, limits
        self.watched = [Watched(c, layout.logs / f"{c.name}.log", limits) for c in commands]

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    @property
    def deaths(self) -> int:
        return sum(len(one.deaths) for one in self.watched)

    def watch(
        self,
        done: Callable[[], bool],
        tick: Callable[["Supervisor"], None] = lambda supervisor: None,
        seconds: float = POLL_SECONDS,
    ) -> None:
        """Start everybody and look after them every `seconds`, calling `tick` each time.

        Returns once the run is done and those who finish by themselves have. Raises
        `TooManyDeaths`.
        """
        while not (self.look(done()) and not self.finishing()):
            tick(self)
            time.sleep(seconds)

    def look(self, done: bool) -> bool:
        """One round: end who hangs, note who exited, start whoever is due. Returns `done`."""
        for one in self.watched:
            if one.process and (silence := self.silence(one)):
                self.record(one.name, "hung", reason=f"no sign of life for {silence:.0f} s")
                one.signal(signal.SIGKILL)
                one.process.wait()
        for one in self.watched:
            if (code := one.exited()) is None:
                continue
            if done and (code == 0 or not one.command.finishes):
                one.finished = True
                self.record(one.name, "end", code=code)
            else:
                self.record(one.name, "death", code=code, reason=describe_exit(code))
                self.restart_or_leave_out(one)
        for one in self.watched:
            if one.due(time.monotonic()) and (one.command.finishes or not done):
                self.record(one.name, "start", pid=one.start())
                write_json(self.layout.processes, self.process_ids())
        return done

    def silence(self, one: Watched) -> float | None:
        """Seconds without a sign of life, if those are too many."""
        now, witness = time.time(), one.command.witness
        with suppress(OSError):
            now = self.layout.alive(witness).stat().st_mtime if witness else now
        return silent_too_long(self.layout.alive(one.name), one.started, now)

    def restart_or_leave_out(self, one: Watched) -> None:
        """Plan its restart. One death too many ends the run, unless others can do its work."""
        try:
            one.plan_restart(time.monotonic())
        except TooManyDeaths as error:
            others = [other for other in self.watched if other is not one and not other.finished]
            if not (one.command.spare and any(other.command.spare for other in others)):
                raise
            one.finished = True
            gpus = one.command.env.get("CUDA_VISIBLE_DEVICES")
            where = f" on GPU {gpus}" if gpus else ""
            self.record(one.name, "left out", reason=f"too many deaths{where}")
            warnings.warn(
                f"the run goes on without {one.name}{where}: {error}", RuntimeWarning, stacklevel=2
            )

    def finishing(self) -> list[str]:
        """Names of those who still have to finish by themselves."""
        return [one.name for one in self.watched if one.command.finishes and not one.finished]

    def process_ids(self) -> dict[str, int]:
        return {one.name: one.process.pid for one in self.watched if one.process}

    def stop(self) -> None:
        """End everybody: a request to stop, `grace` seconds later an order."""
        alive = [one for one in self.watched if one.process]
        for one in alive:
            one.signal(signal.SIGTERM)
        deadline = time.monotonic() + self.limits.grace
        with suppress(subprocess.TimeoutExpired):
            for one in alive:
                one.process.wait(max(0.0, deadline - time.monotonic()))
        for one in alive:
            one.signal(signal.SIGKILL)
            self.record(one.name, "stop", code=one.process.wait())
            one.process = None

    def record(self, name: str, event: str, **facts) -> None:
        """Append a row to the list of events."""
        row = {"time": time.time(), "process": name, "event": event, **facts}
        self.layout.root.mkdir(parents=True, exist_ok=True)
        with self.layout.log("events").open("a") as file:
            file.write(json.dumps(row) + "\n")


def describe_exit(code: int) -> str:
    """Why a process ended, in words: "exit code 1", "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def last_error(path: Path) -> str:
    """The end of a log; of the last traceback in it, if it has one that is not torchrun's own.

    `torchrun` prints a page of its own after the error of a rank that died.
    """
    lines = tail(path, SEARCHED_LINES)
    ends = [
        number
        for number, line in enumerate(lines)
        if ERROR_LINE.match(line) and not TORCHRUN_ERROR.search(line)
    ]
    last = ends[-1] + 1 if ends else len(lines)
    return "\n".join(lines[max(0, last - TAIL_LINES) : last])


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a text file, read from its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200 * lines))
        return file.read().decode(errors="replace").splitlines()[-lines:]
