"""How far more accelerators carry: the simulated pipeline at every size. Chapters 17 and 18."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from rlbook.scaling.simulator import Cluster, Lengths, Schedule, simulate, split


def scaling(
    schedules: Iterable[Schedule],
    cluster: Cluster,
    lengths: Lengths,
    batch: int,
    accelerators: Sequence[int],
    updates: int = 24,
    warmup: int = 8,
    seed: int = 0,
    group_size: int = 1,
) -> list[dict[str, float | str]]:
    """One `summary` row per schedule and number of accelerators, with the batch size fixed.

    A schedule that overlaps divides the accelerators (`split`), one that alternates has
    all of them do both: it is not charged for a split it does not need. The costs of `cluster`
    count, its own numbers of generators and trainers do not. A single accelerator cannot overlap:
    no row. Chapter 17.
    """
    rows = []
    for schedule in schedules:
        for n in accelerators:
            if not schedule.overlap:
                shape = replace(cluster, generators=n, trainers=n)
            elif n > 1:
                shape = split(schedule, cluster, lengths, batch, n)
            else:
                continue
            run = simulate(schedule, shape, lengths, batch, updates, warmup, seed, group_size)
            sizes = {"generators": shape.generators, "trainers": shape.trainers}
            per_accelerator = {"per_accelerator": run.tokens_per_second / n}
            rows.append({**run.summary(), "accelerators": n, **sizes, **per_accelerator})
    return rows


def knee(rows: Iterable[dict[str, Any]], schedule: Schedule, share: float = 0.5) -> float:
    """Accelerators beyond which each does less than `share` of what it does at best.

    Interpolated between the sizes of `scaling` on a logarithmic axis; inf if it is never reached.
    Chapter 17.
    """
    mine = sorted(
        (row["accelerators"], row["per_accelerator"])
        for row in rows
        if row["schedule"] == schedule.name
    )
    if not mine:
        raise ValueError(f"no rows of {schedule.name!r}: pass it to scaling() first")
    sizes, speeds = np.array(mine, dtype=float).T
    shares = speeds / speeds.max()
    above = np.flatnonzero(shares >= share)[-1]
    if above == len(sizes) - 1:
        return inf
    way = (shares[above] - share) / (shares[above] - shares[above + 1])
    return float(sizes[above] * (sizes[above + 1] / sizes[above]) ** way)
