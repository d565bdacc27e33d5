"""Figures as vectors: kept beside a notebook when it is executed, shown by the site.

A notebook holds its figures as PNG, which every viewer shows and which is small. The same figure as
SVG goes to `data/figures`, under the hash of that PNG, so that a figure that has changed never
finds the drawing of an older one. Figures that are drawn again and again (`LivePlot`, `Explorer`),
pictures of pixels, and drawings that are larger than `LARGEST` have none.
"""

import gzip
import hashlib
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from rlbook.paths import ROOT, data_dir

SVG = "image/svg+xml"
LARGEST = 40_000  # bytes, compressed
# What a kernel runs when it starts, so that every figure is shown in both forms.
START = "from workshop.site.vectors import draw_vectors; draw_vectors()"


def draw_vectors() -> None:
    """In a kernel: show every figure as SVG too. Each cell asks anew: `setup()` resets it."""
    from IPython import get_ipython
    from matplotlib.figure import Figure

    shell = get_ipython()
    formatter = shell.display_formatter.formatters[SVG]
    shell.events.register("pre_run_cell", lambda _: formatter.for_type(Figure, vector))


def vector(figure: Any) -> str | None:
    """A figure as SVG with two decimals; None where a PNG is the better picture of it."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None}
    )
    drawn = slim(buffer.getvalue())
    small = "<image" not in drawn and len(gzip.compress(drawn.encode())) <= LARGEST
    return drawn if small else None


def slim(drawn: str) -> str:
    """Matplotlib's SVG without what it says of itself, its colours all said, on fewer lines.

    It leaves out black, which is SVG's own: the root says it here.
    """
    drawn = drawn[drawn.index("<svg ") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    # not 0.015625, the scale of a letter's outline
    drawn = re.sub(
        r"(?<!scale\()\b\d+\.\d{3,}",
        lambda at: f"{float(at[0]):.2f}".rstrip("0").rstrip("."),
        drawn,
    )
    drawn = re.sub(r"\s+", " ", drawn).replace("> <", "><").strip()
    return drawn.replace("<svg ", '<svg fill="#000000" ', 1)


def folder_of(notebook: Path) -> Path | None:
    """Where the vectors of a notebook of the book are kept; None for any other."""
    inside = notebook.resolve().is_relative_to(ROOT / "chapters")
    return data_dir() / "figures" / notebook.stem if inside else None


def name_of(png: str) -> str:
    """The name of the vector that belongs to a stored PNG, in base64."""
    return hashlib.sha256("".join(png.split()).encode()).hexdigest()[:16] + ".svgz"


def take_vectors(notebook: NotebookNode, folder: Path | None) -> None:
    """Move the SVGs of an executed notebook into its folder, which has none but these then."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    for data in shown(notebook):
        drawn = data.pop(SVG, None)
        if folder and drawn and "image/png" in data:
            folder.mkdir(parents=True, exist_ok=True)
            packed = gzip.compress("".join(drawn).encode(), 9, mtime=0)
            (folder / name_of(data["image/png"])).write_bytes(packed)


def vector_of(png: str, folder: Path | None) -> str | None:
    """The SVG of a stored PNG, if there is one."""
    path = (folder or Path()) / name_of(png)
    return gzip.decompress(path.read_bytes()).decode() if path.is_file() else None


def shown(notebook: NotebookNode) -> Iterator[NotebookNode]:
    """What the outputs of a notebook show, form by form."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "data" in output:
                yield output.data
