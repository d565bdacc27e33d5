"""Execute the notebooks with clean, repeatable outputs, and keep the time each one takes."""

import base64
import hashlib
import io
import json
import os
import re
import tempfile
import textwrap
import time
from collections.abc import Sequence
from functools import reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode

from rlbook.manifest import manifest
from rlbook.paths import ROOT, data_dir
from workshop.shared.bound import VARIABLE as NUMBERS
from workshop.shared.bound import bound_numbers, filled
from workshop.shared.waiting import START as NOTES
from workshop.shared.waiting import VARIABLE, waiting
from workshop.site.vectors import START, folder_of, take_vectors
from workshop.tools.colab import close_folds
from workshop.tools.hygiene import CHECK_TAG, WIDGET, problems

if TYPE_CHECKING:
    from PIL.Image import Image

VISIBLE = 10  # of 255: what an eye tells apart in a band


def chapters() -> list[Path]:
    """Every notebook of the book in reading order: chapters, appendices, then solutions."""
    folder = ROOT / "chapters"
    return sorted(folder.glob("*.ipynb")) + sorted(folder.glob("solutions/*.ipynb"))


def build(paths: Sequence[str | Path] = (), timeout: int = 300) -> bool:
    """Execute notebooks in place (default: the whole book), one line each; True if all is well.

    Writes what each takes on an idle machine of two cores, and its long cells on 1, 2 and 8
    (`workshop.shared.waiting`), to `data/results/chapter_times.json`, with the machine it was
    measured on. A notebook that fails keeps its old outputs.
    """
    good = True
    for path in [Path(p).resolve() for p in paths] or chapters():
        try:
            seconds, waits = execute(path, timeout)
        except Exception as error:
            print(f"{path.name:<32} FAILED\n{textwrap.indent(str(error).strip(), '    ')}")
            good = False
            continue
        record_time(path, waits)
        wrong = problems(path)
        good &= not wrong
        size = path.stat().st_size / 1000
        print(f"{path.name:<32} {seconds:6.1f} s {size:5.0f} kB", *wrong, sep="\n    ", flush=True)
    return good


def execute(path: str | Path, timeout: int = 300) -> tuple[float, dict[str, Any]]:
    """Run a notebook from top to bottom, store its outputs in place; wall seconds and `waiting`.

    Same code, same bytes: no time stamps, widget state, model ids or paths of this machine. Its
    figures as vectors go to `data/figures`. `timeout` is per cell. Raises
    `nbclient.exceptions.CellExecutionError` for a failing cell; the file is left alone then.
    """
    from nbclient import NotebookClient

    path = Path(path)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=[f"--IPKernelApp.exec_lines={line}" for line in (START, NOTES)],
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        notes, numbers = Path(folder) / "notes", Path(folder) / "numbers"
        client.execute(env=os.environ | {VARIABLE: str(notes), NUMBERS: str(numbers)})
        waits = waiting(notebook, notes)
        fill(notebook, json.loads(numbers.read_text()) if numbers.is_file() else {})
    seconds = time.perf_counter() - start
    clean(notebook, path.stem)
    take_vectors(notebook, folder_of(path))
    nbformat.write(notebook, path)
    return seconds, waits


def fill(notebook: NotebookNode, values: dict[str, str]) -> None:
    """Write the numbers of a run into the text. Raises `ValueError` if no cell has told them."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and any(bound_numbers(cell.source)):
            if not values:
                raise ValueError("bound numbers, but the last cell does not call `hold`")
            cell.source = filled(cell.source, values)


def clean(notebook: NotebookNode, name: str) -> None:
    """Remove from an executed notebook what differs from run to run or machine to machine."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for index, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = without_paths(output.text)
            data = output.get("data", {})
            output.get("metadata", {}).pop(WIDGET, None)
            if "text/html" in data:  # stands without a kernel, where a model would be missing
                data.pop(WIDGET, None)
            for mime, content in data.items():
                if mime == WIDGET:
                    digest = hashlib.sha256(f"{name}/{index}".encode())
                    content["model_id"] = digest.hexdigest()[:32]
                elif mime == "image/png":
                    data[mime] = small_png(content)
                elif mime.startswith("text/"):
                    data[mime] = without_paths(content)
            if CHECK_TAG not in cell.metadata.get("tags", []) and "text/html" in data:
                data["text/html"] = small_table(data["text/html"])
    close_folds(notebook)


def without_paths(text: str) -> str:
    """Text of an output with this machine's paths made relative or neutral."""
    text = re.sub(r"\S*/ipykernel_\d+/\d+\.py", "<cell>", text)
    return text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


def small_table(html: str) -> str:
    """A table as pandas writes it, without its own style and the space between tags."""
    if 'class="dataframe"' not in html:
        return html
    return re.sub(r"(?<=>)\s+(?=<)", "", re.sub(r"<style scoped>.*?</style>", "", html, flags=re.S))


def small_png(image: str) -> str:
    """A base64 PNG with a palette of few colours, as many as it takes to lose no region.

    Where 256 lose a square of 3 × 3 pixels, none of 5 × 5; the picture itself where they do, or
    where that is smaller.
    """
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
    methods = Image.Quantize.MAXCOVERAGE, Image.Quantize.MEDIANCUT, Image.Quantize.FASTOCTREE
    tries = [*product((32, 64, 128, 256), methods, (3,)), *product((256,), methods, (5,))]
    for colours, method, side in tries:
        few = picture.quantize(colours, method, dither=Image.Dither.NONE)
        if not loses_a_region(picture, few.convert("RGB"), side):
            buffer = io.BytesIO()
            few.save(buffer, "PNG", optimize=True)
            return min(image, base64.b64encode(buffer.getvalue()).decode(), key=len)
    return image


def loses_a_region(picture: "Image", few: "Image", side: int) -> bool:
    """Whether a square of so many pixels is visibly off: more than 10 of 255 in some channel."""
    from PIL import ImageChops, ImageFilter

    bands = ImageChops.difference(picture, few).split()
    off = reduce(ImageChops.lighter, bands).point(lambda step: 255 * (step > VISIBLE))
    return off.filter(ImageFilter.MinFilter(side)).getbbox() is not None


def times_path() -> Path:
    """The file of how long each notebook took."""
    return data_dir() / "results" / "chapter_times.json"


def recorded_times() -> dict[str, dict]:
    """Per notebook (path below chapters/): `seconds` and the manifest of the run."""
    path = times_path()
    return json.loads(path.read_text()) if path.is_file() else {}


def record_time(path: Path, waits: dict[str, Any]) -> None:
    """Note how long a notebook takes, and which machine says so."""
    folder = ROOT / "chapters"
    if not path.is_relative_to(folder):
        return
    name = path.relative_to(folder).as_posix()
    facts = manifest(command=f"make book CHAPTERS=chapters/{name}")
    times = {**recorded_times(), name: {**waits, **facts}}
    times = {key: times[key] for key in sorted(times) if (folder / key).is_file()}
    times_path().parent.mkdir(parents=True, exist_ok=True)
    times_path().write_text(json.dumps(times, indent=1) + "\n")
