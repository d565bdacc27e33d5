"""The notebooks: execute them, keep them clean, hold them to the package."""

from rlbook.extras import require

require("book", "ipywidgets", "matplotlib", "nbclient", "nbformat", "pandas")

from workshop.tools.exports import export_difference, exported
from workshop.tools.hygiene import problems
from workshop.tools.runner import build, chapters, execute, recorded_times

__all__ = [
    "build",
    "chapters",
    "execute",
    "export_difference",
    "exported",
    "problems",
    "recorded_times",
]
