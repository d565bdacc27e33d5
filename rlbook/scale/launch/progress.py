"""Where a run is: the launcher's line, its rows as they come, and on their way to its sinks."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbook.durable import read_json, write_json
from rlbook.jsonl import parse_rows, read_jsonl, read_lines
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout
from rlbook.scale.plan.table import duration
from rlbook.training.sinks import Sinks

TERMINAL_SECONDS, FILE_SECONDS = 1.0, 30.0  # between lines
FORWARDED = ("metrics", "rollouts", "eval")
SECONDS = 5.0  # between looks for rows to forward: logs are read whole


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


@contextmanager
def forwarding(config: ScaleConfig, layout: Layout) -> Iterator[Callable[[], None]]:
    """Inside, each call sends what is new to the sinks now and then; on the way out, the rest.

    The launcher does it: nobody else has to wait. Raises `ImportError` naming the package of a
    sink that is missing.
    """
    if not config.sinks:
        yield lambda: None
        return
    forward = Forward(layout, Sinks(config.sinks, layout.root))
    try:
        yield forward.now_and_then
        forward()
    finally:
        forward.sinks.close()


class Forward:
    """Sends every row once, also if a trainer writes it again or the launcher is another one."""

    def __init__(self, layout: Layout, sinks: Sinks):
        self.layout, self.sinks, self.due = layout, sinks, 0.0
        self.sent: dict[str, int] = read_json(layout.sent, {})  # last step, by log and set

    def now_and_then(self) -> None:
        """A service that cannot be reached now must not end a run: what is not sent is kept."""
        if time.monotonic() < self.due:
            return
        try:
            self()
        except Exception as error:
            warnings.warn(f"sinks: {error}", RuntimeWarning, stacklevel=2)
        self.due = time.monotonic() + SECONDS

    def __call__(self) -> None:
        before = dict(self.sent)
        for log in FORWARDED:
            for row in read_jsonl(self.layout.log(log)):
                key = f"{log}/{row.get('set', '')}"
                if row["step"] > self.sent.get(key, -1):
                    self.sinks(log, row)
                    self.sent[key] = row["step"]
        if self.sent != before:
            write_json(self.layout.sent, self.sent)
