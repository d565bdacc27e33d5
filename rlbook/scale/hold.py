"""Weights held still: the orchestrator asks for it while it evaluates, the trainer keeps to it.

A file names the version that is held. It counts as long as it is renewed: whoever dies with a hold
in hand, or leaves one behind, delays new weights and never stops them.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlbook.scale.layout import read_json, write_json
from rlbook.scale.process import PULSE_SECONDS

LAPSE_SECONDS = 120.0  # without renewal; an orchestrator that hangs is ended before


class Hold:
    """The orchestrator's side. A new one begins with nothing held."""

    def __init__(self, path: Path):
        self.path, self.due = path, 0.0
        self.release()

    def take(self, version: int) -> None:
        """From now on, generators that have weights are to keep what they have."""
        write_json(self.path, version)

    def renew(self) -> None:
        """Cheap enough for every turn of a loop; nothing if nothing is held."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + PULSE_SECONDS
        with suppress(OSError):
            os.utime(self.path)

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


class Held:
    """The trainer's side: called, the version that is held, or None.

    Only changes of the file's time are looked at, never the time itself: machines' clocks differ.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic):
        self.path, self.clock = path, clock
        self.renewed, self.since = 0, 0.0

    def __call__(self) -> int | None:
        try:
            renewed = self.path.stat().st_mtime_ns
        except OSError:
            return None
        if renewed != self.renewed:
            self.renewed, self.since = renewed, self.clock()
        return read_json(self.path) if self.clock() - self.since <= LAPSE_SECONDS else None
