"""What the orchestrator counts from one batch to the next."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbook.training.metrics import mean

COUNTED = (
    "rejected",
    "late",
    "empty_batches",
    "failed_requests",
    "refused_requests",
    "verify_timeouts",
    "verify_errors",
)


class Counters:
    """Events, waiting times and time averages since the last `row`; names as in the metrics.

    `failures` is a counter that somebody else fills.
    """

    def __init__(
        self,
        servers: int = 1,
        failures: Counter[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.servers, self.clock = servers, clock
        self.failures = Counter() if failures is None else failures
        self.in_flight = 0
        self._reset()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside, one more group is being written."""
        self._advance()
        self.in_flight += 1
        try:
            yield
        finally:
            self._advance()
            self.in_flight -= 1

    def batched(self, seconds: float, since: float) -> None:
        """A group that took `seconds` and had its verdicts at `since` is in a batch."""
        self.group_seconds.append(seconds)
        self.queue_seconds.append(self.clock() - since)

    def row(self) -> dict[str, float]:
        """Everything since the last row. A server without a request of its own counts as idle."""
        self._advance()
        seconds = max(self._now - self._began, 1e-9)
        row = {
            "batch_seconds": seconds,
            "group_seconds": mean(self.group_seconds),
            "queue_seconds": mean(self.queue_seconds),
            "groups_in_flight": self._flow / seconds,
            "generator_idle": self._idle / (seconds * self.servers),
            **{name: (self.events + self.failures)[name] for name in COUNTED},
        }
        self._reset()
        return row

    def _reset(self) -> None:
        self._began = self._now = self.clock()
        self._flow = self._idle = 0.0
        self.events: Counter[str] = Counter()
        self.failures.clear()
        self.group_seconds: list[float] = []
        self.queue_seconds: list[float] = []

    def _advance(self) -> None:
        now = self.clock()
        seconds, self._now = now - self._now, now
        self._flow += seconds * self.in_flight
        self._idle += seconds * max(0, self.servers - self.in_flight)
