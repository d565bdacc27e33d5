"""Rows of a run's logs on their way to its sinks. The launcher does it: nobody else has to wait."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbook.durable import read_json, write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.training.sinks import Sinks

LOGS = ("metrics", "rollouts", "eval")
SECONDS = 5.0  # between looks: logs are read whole


@contextmanager
def forwarding(config: ScaleConfig, layout: Layout) -> Iterator[Callable[[], None]]:
    """Inside, each call sends what is new now and then; on the way out, what is left.

    Raises `ImportError` naming the package of a sink that is missing.
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
        for log in LOGS:
            for row in read_jsonl(self.layout.log(log)):
                key = f"{log}/{row.get('set', '')}"
                if row["step"] > self.sent.get(key, -1):
                    self.sinks(log, row)
                    self.sent[key] = row["step"]
        if self.sent != before:
            write_json(self.layout.sent, self.sent)
