"""Held-out problems, asked at intervals while the run goes on."""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from rlbook.scale.config import EvalConfig
from rlbook.stats.intervals import bootstrap_interval
from rlbook.stats.pass_at_k import pass_at_k_curve
from rlbook.tasks import Problem
from rlbook.training.batch import Rollout
from rlbook.training.metrics import mean

RESAMPLES = 2_000  # a hundredth of the interval's width, in a few milliseconds


class Evaluation:
    """One evaluation after another: due every `every` versions and at the end of the run.

    Generators need not hold still for it: a row names the versions that wrote its answers.
    """

    def __init__(self, problems: Sequence[Problem], config: EvalConfig, last: int | None = None):
        self.problems, self.config = list(problems), config
        self.last = last  # version of the newest evaluation; None before the first
        self.version: int | None = None  # of the one under way
        self.waiting: deque[int] = deque()
        self.groups: dict[int, list[Rollout]] = {}

    @property
    def in_flight(self) -> int:
        """Problems asked and not answered."""
        if self.version is None:
            return 0
        return len(self.problems) - len(self.waiting) - len(self.groups)

    def due(self, version: int, done: bool = False) -> bool:
        """Whether an evaluation of the generators' version should begin; `done`: no later one."""
        if not self.config.every or self.version is not None:
            return False
        if self.last is None or done:
            return self.last is None or version > self.last
        return version // self.config.every > self.last // self.config.every

    def begin(self, version: int) -> None:
        self.version, self.groups = version, {}
        self.waiting = deque(range(len(self.problems)))

    def take(self) -> int | None:
        """Index of the next held-out problem to ask."""
        return self.waiting.popleft() if self.waiting else None

    def again(self, index: int) -> None:
        """Its request failed."""
        self.waiting.append(index)

    def add(self, index: int, rollouts: list[Rollout]) -> dict | None:
        """Note a group; the row of the evaluation if it was the last one."""
        self.groups[index] = rollouts
        if len(self.groups) < len(self.problems):
            return None
        row = evaluation_row(self.version, list(self.groups.values()))
        self.last, self.version = self.version, None
        return row


def evaluation_row(version: int, groups: Sequence[Sequence[Rollout]]) -> dict:
    """pass@1 with its 95 % interval over problems, pass@k for doubling k, and the versions used.

    The problem is the sampling unit: completions of one problem are drawn together.
    """
    rollouts = [rollout for group in groups for rollout in group]
    versions = [v for rollout in rollouts for v in rollout.versions]
    samples, right = len(groups[0]), np.array([sum(r.correct for r in g) for g in groups])
    row = {
        "step": version,
        "version_min": min(versions),
        "version_max": max(versions),
        "problems": len(groups),
        "samples": samples,
        "length": mean(r.length for r in rollouts),
        "truncated": mean(r.truncated for r in rollouts),
        "time": time.time(),
    }
    ks = [k for k in (2**i for i in range(samples.bit_length())) if k <= samples]
    for k, value in zip(ks, pass_at_k_curve(samples, right, ks), strict=True):
        row[f"pass@{k}"] = float(value)
    if len(groups) > 1:
        interval = bootstrap_interval(right / samples, resamples=RESAMPLES)
        row["pass@1_low"], row["pass@1_high"] = float(interval.low), float(interval.high)
    return row
