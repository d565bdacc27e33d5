"""Where a run is and when it will be done: the launcher's line, and its metrics as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from rlbook.jsonl import parse_rows, read_jsonl, read_lines
from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout
from rlbook.scale.plan.table import duration

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
        trained = last_row(self.layout.log("metrics"))
        row = trained and last_row(self.layout.log("rollouts")) | trained
        line = describe(row, self.steps, supervisor.deaths, self.seconds_left(row))
        if row.get("step", 0) >= self.steps:
            line += f" · {' and '.join(supervisor.finishing())} finishing"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", file=self.out)
        self.out.flush()

    def seconds_left(self, row: dict) -> float | None:
        """Extrapolated from the updates made since this launcher started."""
        if not row:
            return None
        now, step = time.monotonic(), row["step"]
        self.first = self.first or (now, step)
        since, start = self.first
        return (now - since) / (step - start) * (self.steps - step) if step > start else None

    def end(self) -> None:
        """Leave the line."""
        if self.out.isatty():
            print(file=self.out)


def describe(row: dict, steps: int, deaths: int, seconds_left: float | None) -> str:
    """`update 12/40 · accuracy 0.41 · staleness 1.8 · 950 tokens/s · 1 death · 2 min left`."""
    parts = [f"update {row['step']}/{steps}" if row else "waiting for the first update"]
    formats = {
        "accuracy": "accuracy {:.3f}",
        "staleness_mean": "staleness {:.1f}",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    parts += [text.format(row[name]) for name, text in formats.items() if name in row]
    if deaths:
        parts.append(f"{deaths} death{'s' * (deaths > 1)}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


def last_row(path: Path) -> dict:
    """The last complete row of a log; empty if there is none."""
    rows = parse_rows(read_lines(path)[-2:])
    return rows[-1] if rows else {}


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
        lines = read_lines(layout.log("metrics"))
        sampled = {row["step"]: row for row in read_jsonl(layout.log("rollouts"))}
        known = takewhile(lambda pair: pair[0] == pair[1], zip(seen, lines, strict=False))
        for row in parse_rows(lines[len(list(known)) :]):
            yield {**sampled.get(row["step"], {}), **row}
        if last:
            return
        seen = lines
        time.sleep(seconds)
