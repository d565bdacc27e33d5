"""Evidence: curves and bars over seeds, always with their intervals."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rlbook.stats import t_interval
from rlbook.viz.style import ARM_COLOURS, CYCLE, METHOD_COLOURS, label_lines


def learning_curves(
    df: pd.DataFrame,
    y: str = "accuracy",
    ax: Axes | None = None,
    *,
    x: str = "step",
    by: str = "arm",
    arms: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    smooth: int = 1,
    level: float = 0.95,
) -> Axes:
    """Mean of `y` over seeds with Student's t interval, one labelled line per arm.

    `df` has the columns `by`, "seed", `x` and `y`; `smooth` averages each seed's curve over that
    many steps (centred) before anything else. A single seed is drawn thin, without an interval.
    Raises `ValueError` naming a missing column or arm.
    """
    missing = {by, "seed", x, y} - set(df.columns)
    if missing:
        raise ValueError(f"no column {sorted(missing)} in {list(df.columns)}")
    ax = ax or plt.gca()
    lines = []
    for arm, colour in arm_colours(df, by, arms, colours).items():
        seeds = df[df[by] == arm].pivot_table(index=x, columns="seed", values=y)
        seeds = seeds.rolling(smooth, center=True, min_periods=1).mean()
        label = (labels or {}).get(arm, arm)
        steps, runs = seeds.index.to_numpy(), seeds.to_numpy().T
        if len(runs) == 1:
            lines += ax.plot(steps, runs[0], color=colour, lw=1, label=label)
            continue
        mean, low, high = t_interval(runs, level)
        ax.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
        lines += ax.plot(steps, mean, color=colour, label=label)
    ax.set(xlabel=x, ylabel=y.replace("_", " "))
    ax.margins(x=0.01)
    label_lines(ax, lines)
    return ax


def compare_bars(
    df: pd.DataFrame,
    y: str,
    ax: Axes | None = None,
    *,
    by: str = "arm",
    arms: Sequence[str] | None = None,
    colours: Mapping[str, str] | None = None,
    level: float = 0.95,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Axes:
    """One row per arm: every seed as a dot, the mean and its t interval as a bar through them.

    `df` has a row per arm and seed. `within` is what `y` can be at all, (0, 1) for a rate: the part
    of an interval outside is not drawn, which costs it no coverage. Raises `ValueError` naming a
    missing column or arm.
    """
    if missing := {by, y} - set(df.columns):
        raise ValueError(f"no column {sorted(missing)} in {list(df.columns)}")
    ax = ax or plt.gca()
    names = arm_colours(df, by, arms, colours)
    for row, (arm, colour) in enumerate(names.items()):
        runs = df.loc[df[by] == arm, y].to_numpy(dtype=float)
        ax.plot(runs, np.full(len(runs), row), "o", ms=5, color=colour, alpha=0.45, mew=0)
        if len(runs) > 1:
            mean, *ends = t_interval(runs, level)
            ax.plot(np.clip(np.array(ends, dtype=float), *within), [row, row], color=colour, lw=2.5)
            ax.plot(mean, row, "o", ms=9, color=colour, mec="white", mew=1.2, zorder=4)
    ax.set_yticks(range(len(names)), list(names))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(y.replace("_", " "))
    ax.grid(axis="y", visible=False)
    return ax


def arm_colours(
    df: pd.DataFrame,
    by: str,
    arms: Sequence[str] | None,
    colours: Mapping[str, str] | None,
) -> dict[str, str]:
    """Arms in order, each with its colour: given, else its method's, else the next of the cycle."""
    present = list(dict.fromkeys(df[by]))
    arms = list(arms or present)
    if unknown := [arm for arm in arms if arm not in present]:
        raise ValueError(f"no arm {unknown}; there are {present}")
    known = {**METHOD_COLOURS, **ARM_COLOURS, **(colours or {})}
    taken = {known[arm] for arm in arms if arm in known}
    free = iter([c for c in CYCLE if c not in taken] + list(CYCLE) * len(arms))
    return {arm: known[arm] if arm in known else next(free) for arm in arms}
