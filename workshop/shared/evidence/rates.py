"""What was tried for each arm, and what each reaches at its best: the map of learning rates."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlbook.viz.style import BAD, GOOD, INK, MUTED
from workshop.shared.evidence.arms import compare_bars
from workshop.shared.evidence.tables import short

__all__ = ["WORTH", "draw_map", "map_figure", "rates_table", "usable"]

WORTH = LinearSegmentedColormap.from_list("worth", [BAD, "#f7f7f7", GOOD])


def map_figure(sweep: pd.DataFrame, final: pd.DataFrame, base: float) -> Figure:
    """Left: what each arm reaches at each learning rate it was tried with, its best framed. Right:
    each arm at its best, on seeds that did not choose it. `base`: accuracy before training.
    """
    arms = list(dict.fromkeys(sweep["arm"]))
    size = (8.6, 0.6 + 0.48 * len(arms))
    fig, (left, right) = plt.subplots(1, 2, figsize=size, width_ratios=(1.5, 1))
    draw_map(left, sweep, base)
    compare_bars(final, "pass@1", right, arms=arms, within=(0, 1))
    right.axvline(base, color=MUTED, lw=1, ls=(0, (4, 3)))
    right.set(yticklabels=[], xlim=(0, 1))
    return fig


def draw_map(ax: Axes, sweep: pd.DataFrame, base: float) -> None:
    """A row per arm, a column per learning rate: mean pass@1, blue above `base`, orange below."""
    table = rates_table(sweep)
    norm = TwoSlopeNorm(base, 0, 1)
    ax.imshow(np.ma.masked_invalid(table), cmap=WORTH, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        if np.isnan(value):
            continue
        strong = abs(norm(value) - 0.5) > 0.3
        best = value == np.nanmax(table.to_numpy()[row])
        ax.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=9.5,
            color="white" if strong else INK, weight="bold" if best else "normal",
        )  # fmt: skip
        if best:
            frame = Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, ec=INK, lw=1.8)
            ax.add_patch(frame)
    ax.set_xticks(range(table.shape[1]), [short(lr) for lr in table.columns])
    ax.set_yticks(range(len(table)), list(table.index))
    ax.set_xlabel("learning rate")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)


def rates_table(sweep: pd.DataFrame, column: str = "pass@1") -> pd.DataFrame:
    """Mean over seeds, a row per arm in the order of the table, a column per learning rate.

    An arm whose width varies too has a row per width, "GSPO 0.03".
    """
    rows = sweep.assign(arm=with_width(sweep))
    table = rows.pivot_table(index="arm", columns="lr", values=column, sort=False)
    return table.sort_index(axis=1)


def with_width(table: pd.DataFrame) -> pd.Series:
    """The arm's name, with its width where that varies."""
    if "width" not in table:
        return table["arm"]
    width = table["width"].map(lambda value: "" if pd.isna(value) else f" {value:g}")
    return table["arm"] + width


def usable(sweep: pd.DataFrame, column: str = "pass@1") -> pd.DataFrame:
    """What each arm reaches at half, at once and at twice its best learning rate."""
    rows = {}
    for arm, values in rates_table(sweep, column).iterrows():
        tried = values.dropna()
        best = tried.idxmax()
        row = {"best learning rate": short(best)}
        for name, factor in (("half", 0.5), ("best", 1), ("twice", 2)):
            near = tried[np.isclose(tried.index, factor * best)]
            row[name] = float(near.iloc[0]) if len(near) else np.nan
        rows[arm] = row
    return pd.DataFrame.from_dict(rows, orient="index")
