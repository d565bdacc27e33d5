"""Figures of the appendix on troubles: a broken run beside the healthy one."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.viz.style import BAD, MUTED

HEALTHY = "grpo"


def draw_family(fig: Figure, pairs: Mapping[str, tuple[str, str]], curves: pd.DataFrame) -> None:
    """A panel per run and column: `pairs` has (run, column) by title."""
    axes = fig.subplots(1, len(pairs), squeeze=False)[0]
    for ax, (title, (run, column)) in zip(axes, pairs.items(), strict=True):
        draw_pair(ax, curves, run, column)
        ax.set_title(title.replace("_", " "), fontsize=9)
    axes[0].legend(fontsize=8)


def draw_pair(ax: Axes, curves: pd.DataFrame, run: str, column: str) -> None:
    """One column of a broken run's log, and of the healthy run's."""
    for name, colour, label in ((HEALTHY, MUTED, "healthy"), (run, BAD, "broken")):
        rows = curves[curves.run == name].reset_index(drop=True)
        ax.plot(rows.index + 1, rows[column], color=colour, marker="o", ms=3, label=label)
    ax.set_xlabel("row of the log")
    ax.set_ylabel(column, fontsize=8)
