"""Figures and widgets. Stands on top of the package: nothing else imports it."""

from rlbook.extras import require

require("figures", "anywidget", "ipywidgets", "matplotlib", "pandas")

from rlbook.viz.curves import compare_bars, learning_curves
from rlbook.viz.live import LivePlot
from rlbook.viz.masks import MASKS, Mask, mask_lab
from rlbook.viz.samples import show_samples
from rlbook.viz.style import (
    METHOD_COLOURS,
    colour_of,
    label_line,
    label_lines,
    setup,
    use_style,
)
from rlbook.viz.widgets import Explorer, choice, slider

__all__ = [
    "MASKS",
    "METHOD_COLOURS",
    "Explorer",
    "LivePlot",
    "Mask",
    "choice",
    "colour_of",
    "compare_bars",
    "label_line",
    "label_lines",
    "learning_curves",
    "mask_lab",
    "setup",
    "show_samples",
    "slider",
    "use_style",
]
