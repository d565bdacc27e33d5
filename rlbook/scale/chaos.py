"""Kills random processes of a real run at random moments and looks whether anything is lost.

`python -m rlbook.scale.chaos --seed 0 --minutes 10 configs/cpu-tiny.yaml`. What must hold is in
`broken_promises`. The seed decides who is killed after how long; what the machine makes of that
differs from time to time.
"""

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.layout import Layout, read_json
from rlbook.scale.process import die_with_parent, state_and_parent
from rlbook.scale.spool import published, read_batch
from rlbook.training.runlog import read_jsonl

VICTIMS = {  # and how often each is chosen
    "generator": 3,
    "orchestrator": 3,
    "rank": 3,
    "torchrun": 1,
    "verifier": 1,
    "launcher": 1,
}
MERCILESS = 0.25  # share of kills that do not wait until the run has recovered from the one before
PATIENT = ("launch.max_deaths=100000", "launch.window=10", "generate.port=0")
POLL_SECONDS = 0.01  # a batch that a checkpoint makes superfluous may live for 50 ms
STATE = "state.json"


class Chaos:
    """One run under fire. `kept` is a folder for copies of its batches, which the run prunes."""

    def __init__(self, config: Path, run: Path, seed: int, overrides: Sequence[str] = ()):
        self.path, self.overrides = config, (*overrides, *PATIENT, f"run={run}")
        self.config = load_config(config, self.overrides)
        self.layout, self.kept = Layout(run), Layout(run / "kept")
        self.random = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.replaced: set[int] = set()  # batches that were written twice
        self.launcher: subprocess.Popen | None = None
        self.struck_at, self.struck_version, self.merciless = 0.0, None, False

    def run(
        self,
        seconds: float,
        pause: tuple[float, float] = (2.0, 20.0),
        patience: float = 1200.0,
        kills: float = math.inf,
    ) -> list[str]:
        """Kill for `seconds`, at most `kills` times; then the run has `patience` seconds to end.

        Between two kills are at least `pause` seconds and, as a rule, an update. Returns the
        promises that were broken. Nothing is left running.
        """
        begin = self.struck_at = time.monotonic()
        self.pause = self.random.uniform(*pause)
        try:
            while not self.ended():
                now = time.monotonic()
                if now > begin + seconds + patience:
                    return [f"the run has not ended {patience:g} s after the last kill"]
                if now < begin + seconds and self.killed.total() < kills and self.due(now):
                    self.strike(now)
                    self.pause = self.random.uniform(*pause)
                self.keep_batches()
                time.sleep(POLL_SECONDS)
        finally:
            self.launcher.send_signal(signal.SIGTERM)
            self.launcher.wait()
        replaced = [f"batch {step} was written twice" for step in sorted(self.replaced)]
        left = [f"process {pid} still runs" for pid in survivors(self.layout.root)]
        return [*replaced, *left, *broken_promises(self.layout, self.kept, self.config)]

    def due(self, now: float) -> bool:
        """Whether it is time for the next kill."""
        recovered = self.merciless or self.version != self.struck_version
        return recovered and now > self.struck_at + self.pause

    @property
    def version(self) -> int | None:
        return read_json(self.layout.status, {}).get("version")

    def ended(self) -> bool:
        """Start the launcher if it was killed; whether it has ended by itself."""
        if self.launcher is None or self.launcher.poll() == -signal.SIGKILL:
            self.start()
        return self.launcher.poll() is not None

    def start(self) -> None:
        going_on = self.layout.config.exists()
        config = self.layout.config if going_on else self.path
        settings = [] if going_on else ["--set", *self.overrides]
        argv = [sys.executable, "-m", "rlbook", "scale", str(config), *settings]
        going_on = ["--resume"] if going_on else []
        self.launcher = subprocess.Popen([*argv, *going_on], preexec_fn=die_with_parent)

    def strike(self, now: float) -> None:
        """Kill somebody, if there is anybody."""
        victim = self.random.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if not (pids := self.pids(victim)):
            return
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(pids), signal.SIGKILL)
            self.killed[victim] += 1
            say(f"killed: {victim}, at version {self.version}")
        self.struck_at, self.struck_version = now, self.version
        self.merciless = self.random.random() < MERCILESS

    def pids(self, victim: str) -> list[int]:
        """Process ids of this kind that descend from our launcher: a file may name others."""
        if victim == "launcher":
            return [self.launcher.pid]
        own = set(children(self.launcher.pid))
        named = read_json(self.layout.processes, {})
        found = {name: pid for name, pid in named.items() if pid in own}
        alone = self.config.train.ranks == 1  # without torchrun
        match victim:
            case "generator":
                return [pid for name, pid in found.items() if name.startswith("generator")]
            case "verifier":
                return children(found.get("orchestrator"))
            case "rank" if not alone:
                return children(found.get("trainer"))
            case "torchrun" if alone:
                return []
            case _:
                pid = found.get("trainer" if victim in ("torchrun", "rank") else victim)
                return [] if pid is None else [pid]

    def keep_batches(self) -> None:
        """Link the files of new batches, so that they outlive the run's pruning."""
        for step in published(self.layout):
            source, copy = self.layout.batch(step), self.kept.batch(step)
            with suppress(FileNotFoundError):  # pruned at this moment
                if not copy.exists():
                    partial = copy.with_suffix(".partial")
                    shutil.copytree(source, partial, copy_function=os.link, dirs_exist_ok=True)
                    partial.rename(copy)
                elif not (source / STATE).samefile(copy / STATE):
                    self.replaced.add(step)


def children(pid: int | None) -> list[int]:
    """Process ids of the processes that `pid` has started (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state, parent = state_and_parent(entry.name)
                if parent == pid and state != "Z":
                    found.append(int(entry.name))
    return found


def survivors(folder: Path) -> list[int]:
    """Process ids of other processes with this folder on their command line (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def broken_promises(layout: Layout, kept: Layout, config: ScaleConfig) -> Iterator[str]:
    """What a finished run must not show, whoever was killed; nothing if all is well.

    Every update is logged once and in order, so is every batch; no ticket is in two batches; no
    token is older than the bound; the run ends at the last step; all weights are finite.
    """
    steps = list(range(1, config.updates + 1))
    status = read_json(layout.status, {})
    if not status.get("done") or status["version"] != config.updates:
        yield f"the run ends with status {status}"
    for name in ("metrics", "rollouts"):
        found = [row["step"] for row in read_jsonl(layout.log(name))]
        if found != steps:
            yield f"{name}.jsonl has the steps {found}"
    for row in read_jsonl(layout.log("metrics")):
        if row["staleness_max"] > config.generate.max_staleness:
            yield f"update {row['step']} trained tokens of staleness {row['staleness_max']}"
    yield from double_tickets(kept, steps)
    yield from bad_weights(layout, config)


def double_tickets(kept: Layout, steps: list[int]) -> Iterator[str]:
    """Batches that nobody saw, and tickets that are in two."""
    if missing := [step - 1 for step in steps if step - 1 not in published(kept)]:
        yield f"batches {missing} were never seen"
    batch_of: dict[int, int] = {}
    for step in published(kept):
        for ticket in {rollout.group for rollout in read_batch(kept, step)[0]}:
            if ticket in batch_of:
                yield f"ticket {ticket} is in batches {batch_of[ticket]} and {step}"
            batch_of[ticket] = step


def bad_weights(layout: Layout, config: ScaleConfig) -> Iterator[str]:
    """Tensors of the last checkpoint that are not finite; a checkpoint that is not there."""
    files = list((layout.checkpoints / f"step_{config.updates:06d}").glob("*.safetensors"))
    if not files:
        yield f"no checkpoint of step {config.updates}"
    for file in files:
        for name, tensor in load_file(file).items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                yield f"{file.name}: {name} is not finite"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} chaos: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlbook.scale.chaos", description=__doc__)
    parser.add_argument("config", type=Path, nargs="?", default=Path("configs/cpu-tiny.yaml"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of killing")
    parser.add_argument("--pause", type=float, nargs=2, default=(2.0, 20.0), help="seconds")
    parser.add_argument("--patience", type=float, default=20.0, help="minutes to end after that")
    parser.add_argument("--set", nargs="*", default=[], metavar="section.field=value")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        chaos = Chaos(asked.config, Path(folder) / "run", asked.seed, asked.set)
        broken = chaos.run(60 * asked.minutes, tuple(asked.pause), 60 * asked.patience)
        restarts = [r for r in read_jsonl(chaos.layout.log("events")) if r["event"] == "death"]
    say(f"killed {dict(chaos.killed)}; {len(restarts)} deaths seen by the launcher")
    for promise in broken:
        say(f"BROKEN: {promise}")
    say("all promises kept" if not broken else f"{len(broken)} promises broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
