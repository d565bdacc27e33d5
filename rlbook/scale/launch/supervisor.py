"""Keeps processes running: whoever exits before the run is done is started again."""

import json
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from threading import current_thread, main_thread

from rlbook.durable import write_json
from rlbook.jsonl import last_row
from rlbook.scale.config import LaunchConfig
from rlbook.scale.launch.processes import LOST, Command, Process, Start, describe_exit, start_here
from rlbook.scale.layout import Layout
from rlbook.scale.process import LifeSigns

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds before a restart: doubled by every recent death
POLL_SECONDS = 0.2
LAST_SECONDS = 10.0  # for a process that was killed to be gone
TAIL_LINES, SEARCHED_LINES = 15, 400
WHO = r"(\[rank\d+\]: |\(\w+ pid=\d+\) (ERROR [\d-]+ [\d:]+ \[\S+\] )?)?"  # torch's and vLLM's
ERROR_LINE = re.compile(WHO + r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: |$)")
ELSEWHERE = "See root cause above"  # what vLLM says last of an error that another process has had


class TooManyDeaths(RuntimeError):
    """A process died so often that starting it again will not help. Names it and its log."""

    def __init__(self, text: str, name: str = ""):
        super().__init__(text)
        self.name = name


class Watched:
    """One command, started again whenever one of its processes exits."""

    def __init__(self, command: Command, layout: Layout, limits: LaunchConfig):
        self.command, self.name, self.limits = command, command.name, limits
        self.logs = [layout.logs / f"{name}.log" for name in command.members]
        self.processes: Sequence[Process] = []
        self.deaths: list[float] = []  # on the clock of its life, which stands while it hangs
        self.hung = 0.0  # seconds for which that clock has stood
        self.no_progress, self.update = 0, -1  # the last deaths at one update, and which it was
        self.failed: list[int] = []  # ranks that ended the command by themselves
        self.start_at = self.started = 0.0
        self.finished, self.life = False, LifeSigns(layout.alive(self.name))
        self.witness = LifeSigns(layout.alive(command.witness)) if command.witness else None

    def silence(self) -> float | None:
        """Seconds without a sign of life, if those are too many; none before all of it runs.

        They end where its witness was last heard: a dead one hears nobody.
        """
        now = time.monotonic()
        self.life.look(now)
        if not all(process.begun() for process in self.processes):
            self.started = now
        if self.witness:
            now = self.witness.look(now)
        return self.life.silence(self.started, now, self.limits.loading)

    def exited(self) -> tuple[int, str] | None:
        """Exit code and reason of a command that has ended since the last call, otherwise None.

        It ends with the first process that fails, or with the last. Nothing of it is left then.
        """
        codes = [process.poll() for process in self.processes]
        self.failed = [rank for rank, code in enumerate(codes) if code]
        if not codes or (None in codes and not self.failed):
            return None
        self.kill()
        if not self.failed:
            return 0, describe_exit(0)
        code, name = codes[self.failed[0]], self.command.members[self.failed[0]]
        assert code is not None
        who = f"{name}: " if self.command.ranks > 1 else ""
        return code, who + describe_exit(code)

    def plan_restart(self, now: float, update: int = 0, code: int = 1) -> str | None:
        """Note a death and when to start again; if it is one too many, what there is to say.

        Deaths count by the clock, and against progress: at one update, or before a sign of life.
        Who is lost with a machine could not help it, and counts by the clock alone.
        """
        self.deaths.append(now - self.hung)
        lived = self.life.look(now) > self.started
        if code != LOST:
            self.no_progress = 1 if lived and update != self.update else self.no_progress + 1
            self.update = update
        recent = sum(self.deaths[-1] - death <= self.limits.window for death in self.deaths)
        self.start_at = now + min(FIRST_DELAY * 2 ** (recent - 1), LONGEST_DELAY)
        if recent <= self.limits.max_deaths and self.no_progress < self.limits.max_deaths_at_update:
            return None
        ends = [f"{self.logs[rank]}:\n{last_error(self.logs[rank])}" for rank in self.failed]
        times = f"{recent} times within {self.limits.window:g} s"
        if self.no_progress >= self.limits.max_deaths_at_update:
            when = f"at update {update}" if lived else "before it showed a sign of life"
            times = f"{self.no_progress} times {when}"
        return f"{self.name} died {times}; the end of " + "\n".join(ends or map(str, self.logs))

    @property
    def last_words(self) -> str:
        """The last line of the log of whoever ended it; empty if there is none."""
        logs = [self.logs[rank] for rank in self.failed] or self.logs
        return next(iter(last_error(logs[0]).splitlines()[::-1]), "")

    def hang(self, seconds: float) -> None:
        """End it after so long a silence, in which no earlier death has become an old one."""
        self.hung += seconds
        self.signal(signal.SIGKILL)
        self.wait(LAST_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        for process in self.processes:
            process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Until all its processes have ended, at most so long."""
        deadline = time.monotonic() + seconds
        with suppress(TimeoutExpired):
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> int | None:
        """End what there is of it, also what an ended process has left behind; its exit code."""
        self.signal(signal.SIGKILL)
        self.wait(LAST_SECONDS)
        code = self.processes[0].poll()
        self.processes = []
        return code


class Supervisor:
    """All processes of a run, as `with Supervisor(commands, layout, limits) as supervisor`.

    On the way out every process is asked to stop, later forced to. `start` decides where processes
    run: on this machine, if nothing else is said. Chapter 18.
    """

    def __init__(
        self,
        commands: Iterable[Command],
        layout: Layout,
        limits: LaunchConfig,
        start: Start = start_here,
    ):
        self.layout, self.limits, self.start = layout, limits, start
        self.watched = [Watched(command, layout, limits) for command in commands]
        self.written_ids: dict[str, int] | None = None

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *error) -> None:
        """End everybody: a request to stop, `grace` seconds later an order."""
        alive = [one for one in self.watched if one.processes]
        deadline = time.monotonic() + self.limits.grace
        for one in alive:
            one.signal(signal.SIGTERM)
        for one in alive:
            one.wait(deadline - time.monotonic())
        for one in alive:
            self.record(one, "stop", code=one.kill())

    @property
    def deaths(self) -> int:
        """How often a process of the run has died."""
        return sum(len(one.deaths) for one in self.watched)

    def watch(
        self,
        done: Callable[[], bool],
        tick: Callable[["Supervisor"], object] = lambda supervisor: None,
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
            if one.processes and (silence := one.silence()):
                self.record(one, "hung", reason=f"no sign of life for {silence:.0f} s")
                one.hang(silence)
            if not (end := one.exited()):
                continue
            code, reason = end
            if done and (code == 0 or not one.command.finishes):
                one.finished = True
                self.record(one, "end", code=code)
            else:
                self.record(one, "death", code=code, reason=reason)
                say(f"{one.name} died ({reason}): {one.last_words}")
                self.restart_or_leave_out(one, code)
        for one in self.watched:
            due = not (one.processes or one.finished) and one.start_at <= time.monotonic()
            if due and (one.command.finishes or not done):
                with stop_signals_wait():
                    one.started, one.processes = time.monotonic(), self.start(one.command, one.logs)
                    self.record(one, "start", pid=one.processes[0].pid)
        if self.written_ids != (ids := self.process_ids()):
            with suppress(OSError):  # on a full disk later
                write_json(self.layout.processes, ids)
                self.written_ids = ids
        return done

    def restart_or_leave_out(self, one: Watched, code: int) -> None:
        """Plan its restart. One death too many ends the run, unless others can do its work."""
        if (error := one.plan_restart(time.monotonic(), self.update(), code)) is None:
            return
        others = [other for other in self.watched if other is not one and not other.finished]
        if not (one.command.spare and any(other.command.spare for other in others)):
            raise TooManyDeaths(error, one.name)
        one.finished = True
        gpus = one.command.env.get("CUDA_VISIBLE_DEVICES")
        where = f" on GPU {gpus}" if gpus else ""
        self.record(one, "left out", reason=f"too many deaths{where}")
        text = f"the run goes on without {one.name}{where}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def update(self) -> int:
        """The update that is being made: the one after the trainer's last row."""
        return 1 + int(last_row(self.layout.log("metrics")).get("step", 0))

    def finishing(self) -> list[str]:
        """Names of those who still have to finish by themselves."""
        return [one.name for one in self.watched if one.command.finishes and not one.finished]

    def process_ids(self) -> dict[str, int]:
        """Of this machine's processes, by their names."""
        return {
            name: process.pid
            for one in self.watched
            for name, process in zip(one.command.members, one.processes, strict=False)
            if process.pid
        }

    def record(self, one: Watched, event: str, **facts) -> None:
        """Append a row to the list of events, unless the disk is full: the run comes first."""
        row = {"time": time.time(), "process": one.name, "event": event, **facts}
        with suppress(OSError):
            self.layout.root.mkdir(parents=True, exist_ok=True)
            with self.layout.log("events").open("a") as file:
                file.write(json.dumps(row) + "\n")


def last_error(path: Path) -> str:
    """The end of a log; of the last traceback in it, if it has one."""
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()[-SEARCHED_LINES:]
    errors = [(n, line) for n, line in enumerate(lines, 1) if ERROR_LINE.match(line)]
    ends = [n for n, line in errors if ELSEWHERE not in line]
    last = ends[-1] if ends else len(lines)
    return "\n".join(lines[max(0, last - TAIL_LINES) : last])


def say(text: str) -> None:
    """A line to stderr, below a line of progress if there may be one."""
    print(f"\n{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


@contextmanager
def stop_signals_wait() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM wait: a child that nobody knows yet would be left behind.

    Where signals are not handled, outside the main thread, they do not reach the block anyway.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    numbers = signal.SIGINT, signal.SIGTERM
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)
