"""Figures for notebooks and reports. Stands on top of the package: nothing else imports it."""

from rlbook.extras import require

require("figures", "matplotlib")

from rlbook.viz.live import LivePlot
from rlbook.viz.style import METHOD_COLOURS, label_line, label_lines, setup, use_style

__all__ = [
    "METHOD_COLOURS",
    "LivePlot",
    "label_line",
    "label_lines",
    "setup",
    "use_style",
]
