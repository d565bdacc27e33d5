"""Where a run is: the launcher's line."""

import sys
import time

from rlbook.jsonl import parse_rows, read_lines
from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout
from rlbook.scale.plan.table import duration

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 30.0  # between lines


class ProgressLine:
    """Called after every look of the supervisor; rewrites a terminal's line, else prints lines."""

    def __init__(self, layout: Layout, steps: int):
        self.layout, self.steps, self.due = layout, steps, 0.0
        self.first: tuple[float, int] | None = None  # time and step of the first row seen

    def __call__(self, supervisor: Supervisor) -> None:
        if (now := time.monotonic()) < self.due:
            return
        live = sys.stderr.isatty()
        self.due = now + (TERMINAL_SECONDS if live else FILE_SECONDS)
        row, left = self.last_row("metrics"), None
        if row:
            row = self.last_row("rollouts") | row
            since, start = self.first = self.first or (now, row["step"])
            if row["step"] > start:  # extrapolated from the updates of this launcher
                left = (now - since) / (row["step"] - start) * (self.steps - row["step"])
        line = status_line(row, self.steps, supervisor.deaths, left)
        if row.get("step", 0) >= self.steps:
            line += f" · {' and '.join(supervisor.finishing())} finishing"
        print(f"\r\x1b[K{line}" if live else f"{line}\n", end="", file=sys.stderr, flush=True)

    def last_row(self, log: str) -> dict:
        """The last complete row of a log; empty if there is none."""
        return next(iter(parse_rows(read_lines(self.layout.log(log))[-2:])[::-1]), {})


def status_line(row: dict, steps: int, deaths: int, seconds_left: float | None) -> str:
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
