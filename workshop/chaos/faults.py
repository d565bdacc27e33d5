"""What is done to a run: processes killed, stopped and hung, its disk filled, its files damaged."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, run

from rlbook.durable import CHECKSUMS, damage
from rlbook.scale.batch_log import published
from rlbook.scale.layout import Layout
from rlbook.training.checkpoint import step_folders
from workshop.chaos.victims import children, is_stopped, pids_of

PAUSE = (1.0, 10.0)  # seconds for which a process is stopped
HELD = (2.0, 6.0)  # seconds for which a disk is full, or a batch damaged
HANG_SECONDS = 450.0  # in which whoever watches has to end a process that is stopped for good
BLOCK = bytes(2**16)


@dataclass(frozen=True)
class Scene:
    """A run under fire: its folder, the copies of its batches, its launcher's process id.

    `disk` says whether the folder has a file system of its own, `spoiled` which batches are damaged
    at the moment.
    """

    layout: Layout
    kept: Layout
    launcher: int
    random: random.Random
    disk: bool = False
    spoiled: set[int] = field(default_factory=set)

    def one(self, kind: str) -> int | None:
        """A process of this kind; None if there is none.

        None that hangs, nor the server of an engine that does: that is for the launcher to end.
        """
        pids = [pid for pid in pids_of(kind, self.layout, self.launcher) if not hangs(kind, pid)]
        return self.random.choice(pids) if pids else None


def hangs(kind: str, pid: int) -> bool:
    """Whether a process is stopped, or a generator's engine."""
    return is_stopped(pid) or (kind == "generator" and any(map(is_stopped, children(pid))))


@dataclass
class Strike:
    """A fault that lasts `seconds`; `undo` ends it and says what should have ended it before."""

    seconds: float = 0.0
    undo: Callable[[], str | None] = lambda: None
    began: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Whether its time is up."""
        return time.monotonic() > self.began + self.seconds


def kill(kind: str, scene: Scene) -> Strike | None:
    """SIGKILL."""
    if (pid := scene.one(kind)) is None:
        return None
    signalled(pid, signal.SIGKILL)
    return Strike()


def pause(kind: str, scene: Scene) -> Strike | None:
    """SIGSTOP, and SIGCONT some seconds later."""
    if (pid := scene.one(kind)) is None:
        return None
    signalled(pid, signal.SIGSTOP)
    return Strike(scene.random.uniform(*PAUSE), partial(signalled, pid, signal.SIGCONT))


def hang(kind: str, scene: Scene) -> Strike | None:
    """SIGSTOP for good, also while it loads: the launcher has to miss its signs of life."""
    if (pid := scene.one(kind)) is None:
        return None
    signalled(pid, signal.SIGSTOP)

    def still_there() -> str | None:
        if is_stopped(pid):
            signalled(pid, signal.SIGKILL)
            return f"a {kind} that hung for {HANG_SECONDS:g} s was not ended"
        return None

    return Strike(HANG_SECONDS, still_there)


def fill_disk(scene: Scene) -> Strike | None:
    """No room for any byte more, for some seconds."""
    if not scene.disk:
        return None
    ballast = scene.layout.root.parent / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(BLOCK):
            pass
    return Strike(scene.random.uniform(*HELD), partial(ballast.unlink, missing_ok=True))


def damage_checkpoint(scene: Scene) -> Strike | None:
    """A file of the newest checkpoint, with an intact one before it; then a trainer has to start.

    It must fall back to the one before.
    """
    folders = step_folders(scene.layout.checkpoints)
    if len(folders) < 2 or any(damage(folder) for folder in folders[-2:]):
        return None
    with suppress(FileNotFoundError):
        names = [p.name for p in folders[-1].iterdir() if p.is_file() and p.stat().st_size]
        spoil(folders[-1] / scene.random.choice(sorted(names)), scene.random)
    return kill("rank", scene)


def damage_batch(scene: Scene) -> Strike | None:
    """A file of the newest batch, restored some seconds later; then a reader has to start.

    It must refuse to read the batch as long as it is damaged.
    """
    step = max(published(scene.layout), default=None)
    if step is None or step in scene.spoiled or not scene.kept.batch(step).is_dir():
        return None
    names = [p.name for p in scene.kept.batch(step).iterdir() if p.name != CHECKSUMS]
    name = scene.random.choice(sorted(names))
    file, original = scene.layout.batch(step) / name, scene.kept.batch(step) / name
    scene.spoiled.add(step)
    with suppress(FileNotFoundError):  # pruned at this moment
        spoil(file, scene.random)

    def restore() -> None:
        aside = scene.kept.root / "restored"
        os.link(original, aside)
        with suppress(FileNotFoundError):  # its folder is pruned
            aside.replace(file)
        aside.unlink(missing_ok=True)
        scene.spoiled.discard(step)

    kill(scene.random.choice(("rank", "orchestrator")), scene)
    return Strike(scene.random.uniform(*HELD), restore)


def damage_status(scene: Scene) -> Strike | None:
    """The trainer's word on how far it is."""
    with suppress(FileNotFoundError):
        spoil(scene.layout.status, scene.random)
        return Strike()
    return None


def spoil(path: Path, rng: random.Random) -> None:
    """Cut a file short or flip one bit of it; other links to it keep what they have."""
    content = bytearray(path.read_bytes() or b"\0")
    if rng.random() < 0.5:
        del content[rng.randrange(len(content)) :]
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    spoiled = path.with_name(f".{path.name}.spoiled")
    spoiled.write_bytes(content)
    spoiled.replace(path)


def signalled(pid: int, number: int) -> None:
    """Send a signal to a process that may have gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# What can be done, and how often each is chosen. A trainer may be silent for ten minutes before it
# counts as hung, longer than a run under fire should wait: it is stopped for seconds only.
FAULTS: dict[str, tuple[float, Callable[[Scene], Strike | None]]] = {
    "kill generator": (3, partial(kill, "generator")),
    "kill engine": (2, partial(kill, "engine")),
    "kill orchestrator": (3, partial(kill, "orchestrator")),
    "kill verifier": (2, partial(kill, "verifier")),
    "kill rank": (3, partial(kill, "rank")),
    "kill fork server": (1, partial(kill, "fork server")),
    "kill launcher": (1, partial(kill, "launcher")),
    "stop generator": (0.5, partial(pause, "generator")),
    "stop orchestrator": (0.5, partial(pause, "orchestrator")),
    "stop verifier": (0.5, partial(pause, "verifier")),
    "stop rank": (0.5, partial(pause, "rank")),
    "hang generator": (0.2, partial(hang, "generator")),
    "hang engine": (0.2, partial(hang, "engine")),
    "hang orchestrator": (0.2, partial(hang, "orchestrator")),
    "fill disk": (0.5, fill_disk),
    "damage checkpoint": (0.7, damage_checkpoint),
    "damage batch": (0.7, damage_batch),
    "damage status": (0.7, damage_status),
}


@contextmanager
def disk_of_its_own(folder: Path, megabytes: int = 512) -> Iterator[str | None]:
    """A small file system in memory at `folder`; yields why there is none, where that is so."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    try:
        made = run(["mount", *options], stdout=DEVNULL, stderr=DEVNULL).returncode == 0
    except FileNotFoundError:
        made = False
    try:
        yield None if made else "no permission to mount a small file system"
    finally:
        if made:
            run(["umount", "-l", str(folder)], check=True)
