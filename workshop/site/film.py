"""The film strip that stands where "Train it here" cannot run: recorded runs, eight frames each.

`python -m workshop.site.film` trains the methods of all pages with the page's own scripts, in node,
and writes film.json.
"""

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from rlbook.paths import data_dir
from workshop.site.train import FILM_TEXT, LABELS, MODEL, PLACES, TEXT, write_scripts
from workshop.site.weights import write_weights

HERE = Path(__file__).parent
FILM = HERE / "film.json"
FRAMES = (0, 5, 10, 20, 30, 40, 60, 80)  # steps
RECORD = """
import { readFileSync } from "node:fs";
import { Learner } from "./learner.js";
import { Policy } from "./model.js";
const { row, frames } = JSON.parse(readFileSync(0));
const told = JSON.parse(readFileSync("train.json")), chosen = told.rows[row];
const [shape, bytes] = ["json", "bin"].map((end) => readFileSync(`models/${told.model}.${end}`));
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const method = { ...chosen, ...told.masks[chosen.mask] }, settings = { seed: 1, ...told.settings };
const learner = new Learner(new Policy(JSON.parse(shape), buffer), method, told.problems, settings);
const seen = [];
for (const step of frames) {
  while (learner.steps < step) learner.step();
  const { accuracy, pass8 } = learner.evaluate(), { right } = learner.show(told.shown);
  seen.push({ step, accuracy, pass8, right: right.map(Number) });
}
console.log(JSON.stringify(seen));
"""


def recorded(row: str, frames: Iterable[int] = FRAMES) -> list[dict[str, Any]]:
    """What a run of this row shows at these steps: accuracy, pass@8, which of eight are right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for script in (HERE / "static").glob("*.js"):
            shutil.copy(script, folder)
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "record.js").write_text(RECORD)
        write_scripts(folder)
        write_weights(data_dir() / MODEL, folder / "models")
        job = json.dumps({"row": row, "frames": [*frames]})
        done = subprocess.run(
            ["node", "record.js"], cwd=folder, input=job, capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(f"node: {done.stderr}")
    return json.loads(done.stdout)


def strip(rows: Iterable[str]) -> str:
    """Both methods' frames as an inline SVG in the page's colours: eight dots and a number each."""
    told = json.loads(FILM.read_text(encoding="utf-8"))
    rows = [*rows]
    wide, high, left = 72, 96, 118
    parts, words = [], []
    for line, row in enumerate(rows):
        top = 26 + line * high
        parts.append(f'<text x="0" y="{top + 32}" class="who">{html.escape(LABELS[row])}</text>')
        parts.append(f'<text x="0" y="{top + 74}" class="what">right, held out</text>')
        for place, frame in enumerate(told[row]):
            x = left + place * wide
            for n, right in enumerate(frame["right"]):
                kind = "good" if right else "bad"
                at = f'cx="{x + 8 + 14 * (n % 4)}" cy="{top + 18 + 18 * (n // 4)}"'
                parts.append(f'<circle {at} r="5.5" class="{kind}"/>')
            parts.append(f'<text x="{x}" y="{top + 74}">{frame["accuracy"]:.0%}</text>')
        first, last = told[row][0], told[row][-1]
        words.append(
            f"{LABELS[row]}: {first['accuracy']:.0%} right before training, "
            f"{last['accuracy']:.0%} after {last['step']} steps"
        )
    heads = "".join(
        f'<text x="{left + place * wide}" y="14">{"step " * (not place)}{frame}</text>'
        for place, frame in enumerate(FRAMES)
    )
    size = f"0 0 {left + len(FRAMES) * wide} {26 + len(rows) * high}"
    label = html.escape("Eight answers to one sum over a training run. " + "; ".join(words))
    return f'<svg viewBox="{size}" role="img" aria-label="{label}">{heads}{"".join(parts)}</svg>'


def main() -> None:
    """Record the runs of all pages."""
    rows = sorted({row for pair, _ in PLACES.values() for row in pair})
    told = {row: recorded(row) for row in rows}
    FILM.write_text(json.dumps(told, separators=(",", ":")) + "\n", encoding="utf-8")
    for row, frames in told.items():
        print(row, *(f"{frame['accuracy']:.2f}" for frame in frames))


if __name__ == "__main__":
    main()


# ---- its places ----


def host(place: str, auto: bool = False) -> str:
    """Where it stands: a film strip, which the script replaces; one line, as Markdown takes it."""
    rows, _ = PLACES[place]
    shown = f'<div class="film">{strip(rows)}<p>{FILM_TEXT}</p></div>'
    return f'<div data-train="{" ".join(rows)}"{" data-auto" * auto}>{shown}</div>'


def with_training(notebook: NotebookNode, place: str) -> NotebookNode:
    """The notebook with "Train it here" before the section that `PLACES` names, if it names one.

    Where that section has another name by now, before scorecard or exercises. Raises `ValueError`
    for a notebook that has neither.
    """
    if place not in PLACES:
        return notebook
    _, before = PLACES[place]
    for name in (re.escape(before), "(Scorecard|Exercises)"):
        found = re.compile(rf"^##+ (\d+ · )?{name}", re.MULTILINE)
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown" and found.search(cell.source):
                text = f"### Train it here\n\n{TEXT}\n\n{host(place)}"
                made = nbformat.v4.new_markdown_cell(text, id="train-it-here")
                notebook.cells.insert(index, made)
                return notebook
    raise ValueError(f"{place}: no section {before!r}, before which the page trains")
