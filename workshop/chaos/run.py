"""A run under fire, from its start to its end."""

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

from rlbook.durable import read_json
from rlbook.scale.batch_log import published
from rlbook.scale.config import load_config
from rlbook.scale.layout import Layout
from rlbook.scale.process import die_with_parent
from workshop.chaos.faults import FAULTS, Scene, Strike
from workshop.chaos.victims import survivors

MERCILESS = 0.25
PATIENT = ("launch.max_deaths=100000", "launch.window=10", "launch.loading=300")
POLL_SECONDS = 0.01  # a batch that a checkpoint makes superfluous may live for 50 ms
LAST_SECONDS = 5.0  # for helpers of a launcher that has ended to be gone as well
STATE = "state.json"


@dataclass(frozen=True)
class Struck:
    """What was done, `seconds` after the start, when the run was at update `version`."""

    seconds: float
    fault: str
    version: int | None


class Chaos:
    """Strikes at one run. Copies of its batches, which the run prunes, are kept beside it.

    `disk` says that the folder above `run` is a file system of its own, which may be filled;
    `faults` are names of `FAULTS`, all of them if absent. `alone`: they come in turn, and an
    undisturbed update is between two of them, so that it can be told what each has cost.
    `merciless` is the share of strikes that do not wait until the run has recovered from the last.
    """

    def __init__(
        self,
        config: Path,
        run: Path,
        seed: int,
        overrides: Sequence[str] = (),
        disk: bool = False,
        faults: Sequence[str] = tuple(FAULTS),
        alone: bool = False,
        merciless: float = MERCILESS,
    ):
        self.path, self.overrides = config, (*overrides, *PATIENT, f"run={run}")
        self.config = load_config(config, self.overrides)
        self.layout, self.kept = Layout(run), Layout(run / "kept")
        self.random, self.disk, self.faults = random.Random(seed), disk, faults
        self.in_turn = cycle(faults) if alone else None
        self.struck: list[Struck] = []
        self.under_way: list[tuple[str, Strike]] = []
        self.broken: list[str] = []
        self.spoiled: set[int] = set()  # batches that are damaged now
        self.replaced: set[int] = set()  # batches that were written twice
        self.launcher: subprocess.Popen | None = None
        self.launchers: set[int] = set()
        self.full_at = self.launched_at = 0.0  # when the disk was full last, the launcher started
        self.struck_at, self.struck_version, self.merciless = 0.0, None, False
        self.share = merciless
        self.updates: list[float] = []  # when each was first logged, seconds after the start

    def run(
        self,
        seconds: float,
        pause: tuple[float, float] = (2.0, 20.0),
        patience: float = 1200.0,
        strikes: float = math.inf,
    ) -> list[str]:
        """Strike for `seconds`, at most `strikes` times; the run then has `patience` s to end.

        Between two strikes are at least `pause` seconds and, as a rule, an update. Returns what
        went wrong on the way; what is wrong with the result, `promises` says. Nothing is left
        running.
        """
        self.begin = self.struck_at = time.monotonic()
        self.pause = self.random.uniform(*pause)
        try:
            while not self.ended():
                self.note_updates()  # first: a strike that waits for an update comes after it
                now = time.monotonic()
                if now > self.begin + seconds + patience:
                    return [f"the run has not ended {patience:g} s after the last strike"]
                if now < self.begin + seconds and len(self.struck) < strikes and self.due(now):
                    self.strike(now)
                    self.pause = self.random.uniform(*pause)
                self.undo()
                self.keep_batches()
                time.sleep(POLL_SECONDS)
        finally:
            self.undo(everything=True)
            self.launcher.send_signal(signal.SIGTERM)
            self.launcher.wait()
        self.keep_batches()  # the last ones may have come since the last look
        replaced = [f"batch {step} was written twice" for step in sorted(self.replaced)]
        gone_by = time.monotonic() + LAST_SECONDS
        while (left := survivors(self.layout.root, self.launchers)) and time.monotonic() < gone_by:
            time.sleep(POLL_SECONDS)
        return [*self.broken, *replaced, *(f"process {pid} still runs" for pid in left)]

    @property
    def counts(self) -> dict[str, int]:
        """How often each fault came."""
        found = Counter(one.fault for one in self.struck)
        return {fault: found[fault] for fault in FAULTS if found[fault]}

    @property
    def rows(self) -> list[dict]:
        """Every strike, as the report's table wants it."""
        return [asdict(one) for one in self.struck]

    def due(self, now: float) -> bool:
        """Whether it is time for the next strike; none while the disk is full."""
        if self.in_turn:
            before = self.struck[-1].seconds if self.struck else 0.0
            recovered = self.updates[-2:-1] > [before]
        else:
            recovered = self.merciless or self.version != self.struck_version
        return recovered and not self.full and now > self.struck_at + self.pause

    @property
    def version(self) -> int | None:
        """The trainer's version; None before it has one."""
        return read_json(self.layout.status, {}).get("version")

    def ended(self) -> bool:
        """Start the launcher if it was killed, or found no room; whether it has ended by itself."""
        if self.full:
            self.full_at = time.monotonic()
        code = -signal.SIGKILL if self.launcher is None else self.launcher.poll()
        if code == -signal.SIGKILL or (code and self.full_at > self.launched_at):
            self.start()
        return self.launcher.poll() is not None

    @property
    def full(self) -> bool:
        """Whether the disk is."""
        return any(fault == "fill disk" for fault, _ in self.under_way)

    def start(self) -> None:
        """Start the run, or go on with it."""
        going_on = self.layout.config.exists()
        config = self.layout.config if going_on else self.path
        settings = ["--resume"] if going_on else self.overrides
        argv = [sys.executable, "-m", "rlbook", "scale", str(config), *settings]
        self.launched_at = time.monotonic()
        self.launcher = subprocess.Popen(argv, preexec_fn=die_with_parent)
        self.launchers.add(self.launcher.pid)

    def strike(self, now: float) -> None:
        """Do something bad, if it can be done now."""
        weights = [FAULTS[name][0] for name in self.faults]
        fault = next(self.in_turn or iter(self.random.choices(self.faults, weights)))
        version = self.version
        scene = Scene(
            self.layout,
            self.kept,
            self.launcher.pid,
            self.random,
            self.disk,
            self.spoiled,
        )
        if (strike := FAULTS[fault][1](scene)) is None:
            return
        self.under_way.append((fault, strike))
        self.struck.append(Struck(round(now - self.begin, 2), fault, version))
        say(f"{fault}, at version {version}")
        self.struck_at, self.struck_version = now, version
        self.merciless = self.random.random() < self.share

    def undo(self, everything: bool = False) -> None:
        """End the faults that have lasted long enough; on a full disk some have to wait."""
        for one in list(self.under_way):
            _, strike = one
            if strike.over() or everything:
                with suppress(OSError):
                    if problem := strike.undo():
                        self.broken.append(problem)
                    self.under_way.remove(one)

    def note_updates(self) -> None:
        """When an update is logged for the first time; what a restart logs again is none."""
        with suppress(OSError):
            logged = self.layout.log("metrics").read_bytes().count(b"\n")
            now = round(time.monotonic() - self.begin, 2)
            self.updates += [now] * (logged - len(self.updates))

    def keep_batches(self) -> None:
        """Link the files of new batches, so that they outlive the run's pruning."""
        for step in published(self.layout):
            if step in self.spoiled:
                continue
            source, copy = self.layout.batch(step), self.kept.batch(step)
            with suppress(OSError):  # pruned at this moment, or no room for the names
                if not copy.exists():
                    partial = copy.with_suffix(".partial")
                    shutil.rmtree(partial, ignore_errors=True)
                    shutil.copytree(source, partial, copy_function=os.link)
                    partial.rename(copy)
                elif not (source / STATE).samefile(copy / STATE):
                    self.replaced.add(step)


def say(text: str) -> None:
    """A line on standard output, with the time."""
    print(f"{time.strftime('%H:%M:%S')} chaos: {text}", flush=True)
