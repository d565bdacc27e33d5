"""Figures and widgets. Stands on top of the package: nothing else imports it."""

from rlbook.extras import require

require("figures", "anywidget", "ipywidgets", "matplotlib", "pandas")

from rlbook.viz.clip import clip_explorer, clip_figure
from rlbook.viz.curves import compare_bars, learning_curves, load_results
from rlbook.viz.evidence import scorecard
from rlbook.viz.live import LivePlot
from rlbook.viz.masks import MASKS, Mask, mask_atlas, mask_lab
from rlbook.viz.samples import SampleBrowser, show_samples
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
    "SampleBrowser",
    "choice",
    "clip_explorer",
    "clip_figure",
    "colour_of",
    "compare_bars",
    "label_line",
    "label_lines",
    "learning_curves",
    "load_results",
    "mask_atlas",
    "mask_lab",
    "scorecard",
    "setup",
    "show_samples",
    "slider",
    "use_style",
]
