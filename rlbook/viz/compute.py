"""Compute curves with their points, their bands and what they promise beyond the last point."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from rlbook.scaling import Bootstrap
from rlbook.scaling.seeds import Recipe, pooled
from rlbook.viz.style import CYCLE, INK, label_lines, use_style


def draw_fits(ax: Axes, recipes: Mapping[str, Recipe], boots: Mapping[str, Bootstrap]) -> None:
    """A curve per recipe through the points of its runs, dashed from the last to twice as far."""
    lines = []
    for name, colour in zip(recipes, (INK, *CYCLE), strict=False):
        points, boot = pooled(recipes[name]), boots[name]
        first, last = points.compute.min(), points.compute.max()
        ax.plot(*points, "o", ms=3, color=colour, alpha=0.5, mew=0)
        seen, ahead = np.geomspace(first, last, 100), np.geomspace(last, 2 * last, 30)
        ax.plot(seen, boot.curve(seen), color=colour)
        lines += ax.plot(ahead, boot.curve(ahead), "--", color=colour, label=name)
        whole = np.concatenate([seen, ahead])
        band = boot.band(whole)
        ax.fill_between(whole, band.low, band.high, color=colour, alpha=0.15, lw=0)
    ax.margins(x=0.01)
    label_lines(ax, lines)


def save_fits(
    path: Path,
    recipes: Mapping[str, Recipe],
    boots: Mapping[str, Bootstrap],
    x: str,
    y: str,
) -> None:
    """The picture of `draw_fits` as a file."""
    use_style()
    figure, ax = plt.subplots(figsize=(7.2, 4), layout="constrained")
    draw_fits(ax, recipes, boots)
    ax.set(xlabel=x, ylabel=y, title="Dashed: promised, not measured")
    figure.savefig(path)
    plt.close(figure)
