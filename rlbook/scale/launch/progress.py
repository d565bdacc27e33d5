"""Where a run is and when it will be done: the launcher's line, and its metrics as they come."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget_table import duration
from rlbook.training import read_jsonl

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 30.0  # between lines


class ProgressLine:
    """Called after every look of the supervisor; rewrites a terminal's line, else prints lines."""

    def __init__(self, layout: Layout, steps: int, out=sys.stderr):
        self.layout, self.steps, self.out = layout, steps, out
        self.first: tuple[float, int] | None = None  # time and step of the first row seen
        self.due = 0.0

    def __call__(self, supervisor: Supervisor) -> None:
        if time.monotonic() < self.due:
            return
        live = self.out.isatty()
        self.due = time.monotonic() + (TERMINAL_SECONDS if live else FILE_SECONDS)
        row = self.newest()
        line = describe(row, self.steps, supervisor.deaths, self.seconds_left(row))
        if row and row["step"] >= self.steps:
            line += f" · {' and '.join(supervisor.finishing())} finishing"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", file=self.out)
        self.out.flush()

    def newest(self) -> dict | None:
        """What the last update reported, and what was sampled for the last batch."""
        trained = last_row(self.layout.log("metrics"))
        return trained and {**(last_row(self.layout.log("rollouts")) or {}), **trained}

    def seconds_left(self, row: dict | None) -> float | None:
        """Extrapolated from the updates made since this launcher started."""
        if row is None:
            return None
        now = time.monotonic()
        self.first = self.first or (now, row["step"])
        since, start = self.first
        made = row["step"] - start
        return (now - since) / made * (self.steps - row["step"]) if made > 0 else None

    def end(self) -> None:
        """Leave the line."""
        if self.out.isatty():
            print(file=self.out)


def describe(row: dict | None, steps: int, deaths: int, seconds_left: float | None) -> str:
    """`update 12/40 · accuracy 0.41 · staleness 1.8 · 950 tokens/s · 1 death · 2 min left`."""
    if row is None:
        parts = ["waiting for the first update"]
    else:
        formats = {
            "accuracy": "accuracy {:.3f}",
            "staleness_mean": "staleness {:.1f}",
            "tokens_per_second": "{:,.0f} tokens/s",
        }
        shown = [text.format(row[name]) for name, text in formats.items() if name in row]
        parts = [f"update {row['step']}/{steps}", *shown]
    if deaths:
        parts.append(f"{deaths} death{'s' * (deaths > 1)}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


def last_row(path: Path) -> dict | None:
    """The last complete row of a JSONL file; None if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def follow(
    layout: Layout, running: Callable[[], bool], seconds: float = 0.2
) -> Iterator[dict[str, float]]:
    """A row per update as it is made, the orchestrator's metrics and the trainer's together.

    An update that a restarted trainer makes again comes again. Looks every `seconds`, and a last
    time when `running()` has become false. Chapter 17.
    """
    seen: list[str] = []
    while True:
        last = not running()
        lines = complete_lines(layout.log("metrics"))
        known = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(seen, lines, strict=False))
        )
        sampled = {row["step"]: row for row in read_jsonl(layout.log("rollouts"))}
        for line in lines[known:]:
            row = json.loads(line)
            yield {**sampled.get(row["step"], {}), **row}
        if last:
            return
        seen = lines
        time.sleep(seconds)


def complete_lines(path: Path) -> list[str]:
    """Lines of a file that may still be written to, or not exist yet."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()
