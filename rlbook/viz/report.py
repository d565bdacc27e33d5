"""The report of a full-scale run: one HTML file that needs nothing else, no network either.

With jinja2 in place of `string.Template` it is six lines shorter, and a dependency longer.
"""

import base64
import html
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlbook.manifest import manifest
from rlbook.scale.layout import Layout
from rlbook.viz.run_record import RunRecord, key_figures, read_run
from rlbook.viz.style import BAD, CYCLE, GOOD, STYLE, label_lines


@dataclass(frozen=True)
class Panel:
    """Metrics that share axes: column → label. `band` is drawn as an area between two columns."""

    title: str
    columns: dict[str, str]
    band: tuple[str, str] | None = None
    log: bool = False
    note: str = ""


LAST_ANSWERS = 20

PANELS = (
    Panel("Reward", {"reward": "reward"}, note="Mean over all completions sampled for the batch."),
    Panel("Accuracy", {"accuracy": "sampled"}, note="Share of sampled completions that are right."),
    Panel(
        "Staleness of trained tokens",
        {"staleness_mean": "mean"},
        band=("staleness_min", "staleness_max"),
        note="Updates between sampling and training; the area reaches from the least to the most.",
    ),
    Panel(
        "Mismatch",
        {"mismatch_fresh": "fresh", "mismatch_stale": "stale"},
        log=True,
        note="Mean |log π trainer − log μ sampler|. Of fresh tokens only arithmetic differs.",
    ),
    Panel(
        "Filtered and masked",
        {"clip_fraction": "tokens masked", "equal_rewards": "groups of equal rewards"},
        note="Shares that contribute no gradient.",
    ),
    Panel("Entropy", {"entropy": "nats per token"}),
    Panel(
        "Length",
        {"length": "all", "length_right": "right", "length_wrong": "wrong"},
        note="Mean tokens of a completion.",
    ),
    Panel("Truncated", {"truncated": "truncated", "interrupted": "interrupted"}),
    Panel("Gradient norm", {"grad_norm": "before clipping"}, log=True),
    Panel("Throughput", {"tokens_per_second": "tokens per second"}),
    Panel("Idle", {"trainer_idle": "trainer", "generator_idle": "generators"}),
    Panel("Model FLOPs utilisation", {"mfu": "MFU"}),
    Panel(
        "Seconds",
        {"batch_seconds": "per batch", "push_seconds": "pushing weights", "queue_seconds": "queue"},
        log=True,
    ),
)


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into a run folder, finished or not; returns its path. Chapter 17.

    Raises `FileNotFoundError` for a folder without a run.
    """
    record = read_run(folder)
    path = Layout(record.root).report
    partial = path.with_suffix(".partial")
    partial.write_text(report_html(record), encoding="utf-8")
    os.replace(partial, path)
    return path


def report_html(record: RunRecord) -> str:
    """The whole document; figures are SVG images inside it."""
    figures = "\n".join(figure_html(*part) for part in figures_of(record))
    title = f"Run {record.root.name}"
    return PAGE.substitute(
        title=html.escape(title),
        key_figures=table_html(key_figures(record)),
        figures=figures or "<p>No update has been made yet.</p>",
        answers="\n".join(map(answer_html, record.samples[-LAST_ANSWERS:])) or "<p>None yet.</p>",
        settings=table_html(record.settings),
        manifest=html.escape(json.dumps(manifest(), indent=2, sort_keys=True)),
    )


def answer_html(row: dict) -> str:
    """A prompt and what the policy wrote, under what the verifier said of it."""
    verdict = "right" if row["correct"] else f"wrong, expected {row['expected']}"
    facts = f"update {row['step']}, {verdict}, reward {row['reward']:g}, {row['tokens']} tokens"
    facts += ", truncated" * row["truncated"]
    text = f"{row['prompt']}\n{row['answer']}"
    return f"<p>{html.escape(facts)}</p><pre>{html.escape(text)}</pre>"


def figures_of(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Title, SVG and remark of every figure for which there are data."""
    with mpl.rc_context(STYLE):
        if record.evaluations:
            remark = "Held-out problems; the area is a 95 % interval over problems."
            yield "Evaluation", svg(evaluation_figure(record)), remark
        for panel in PANELS:
            if figure := panel_figure(record, panel):
                yield panel.title, svg(figure), panel.note
        if record.events:
            remark = "Bars: a process lives. Crosses: it died and was started again."
            yield "Processes", svg(process_figure(record)), remark


def panel_figure(record: RunRecord, panel: Panel) -> Figure | None:
    """Lines over updates; None if no column of the panel was reported."""
    columns = {name: drawable(*record.column(name), panel.log) for name in panel.columns}
    columns = {name: xy for name, xy in columns.items() if xy[0]}
    if not columns:
        return None
    figure, ax = new_axes()
    if panel.band:
        (x, low), (x_high, high) = (record.column(name) for name in panel.band)
        if x == x_high:
            ax.fill_between(x, low, high, color=CYCLE[0], alpha=0.15, lw=0)
    for name, (x, y) in columns.items():
        ax.plot(x, y, label=panel.columns[name], marker="o" if len(x) < 3 else None, ms=4)
    if panel.log:
        ax.set_yscale("log")
    finish(ax)
    return figure


def drawable(x: list[int], y: list[float], log: bool) -> tuple[list[int], list[float]]:
    """The points that have a place on the axes."""
    kept = [i for i, value in enumerate(y) if np.isfinite(value) and (value > 0 or not log)]
    return [x[i] for i in kept], [y[i] for i in kept]


def evaluation_figure(record: RunRecord) -> Figure:
    """pass@k over updates, with the interval of pass@1."""
    figure, ax = new_axes()
    rows = record.evaluations
    steps = [row["step"] for row in rows]
    if all("pass@1_low" in row for row in rows):
        low, high = ([row[f"pass@1_{end}"] for row in rows] for end in ("low", "high"))
        ax.fill_between(steps, low, high, color=CYCLE[0], alpha=0.15, lw=0)
    ks = sorted({int(n[5:]) for row in rows for n in row if n[:5] == "pass@" and n[5:].isdigit()})
    for k in ks:
        ax.plot(
            steps, [row.get(f"pass@{k}", np.nan) for row in rows], "o-", ms=3, label=f"pass@{k}"
        )
    finish(ax)
    return figure


def process_figure(record: RunRecord) -> Figure:
    """A lane for every process: when it lived, and when it died."""
    names = list(dict.fromkeys(row["process"] for row in record.events))
    figure, ax = new_axes(height=0.7 + 0.3 * len(names))
    begin = record.events[0]["time"]
    for lane, name in enumerate(names):
        alive_since = None
        for row in (row for row in record.events if row["process"] == name):
            now = (row["time"] - begin) / 60
            if row["event"] == "start":
                alive_since = now
                continue
            if alive_since is not None:
                ax.plot([alive_since, now], [lane, lane], color=GOOD, lw=5, solid_capstyle="butt")
            if row["event"] == "death":
                ax.plot(now, lane, "x", color=BAD, ms=8, mew=2, zorder=3)
            alive_since = None
        if alive_since is not None:
            end = record.seconds / 60
            ax.plot([alive_since, end], [lane, lane], color=GOOD, lw=5, solid_capstyle="butt")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("minutes")
    ax.grid(axis="y", visible=False)
    return figure


def new_axes(height: float = 2.6) -> tuple[Figure, Axes]:
    """A figure that can be measured without a window."""
    figure = Figure(figsize=(5.4, height))
    FigureCanvasAgg(figure)  # labels are placed by measuring
    return figure, figure.add_subplot()


def finish(ax: Axes) -> None:
    """Whole updates below, and lines named where they end."""
    ax.set_xlabel("updates")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.02)
    if len(ax.lines) > 1:
        label_lines(ax)


def svg(figure: Figure) -> str:
    """The figure as an SVG document, the same bytes for the same figure."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def figure_html(title: str, image: str, remark: str) -> str:
    """An image of its own, so that the names inside one SVG cannot meet those of another."""
    data = base64.b64encode(image.encode()).decode()
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b> {html.escape(remark)}</figcaption>"
        f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def table_html(rows: dict) -> str:
    """Names and values, a row each."""
    cells = (
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222222; max-width: 1160px;
  margin: 2rem auto; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr));
  gap: 1.2rem; }
figure { margin: 0; }
figure img { width: 100%; }
figcaption { font-size: 13px; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; font-weight: normal; padding: 2px 1rem 2px 0; vertical-align: top;
  border-bottom: 1px solid #d9d9d9; overflow-wrap: anywhere; }
th { white-space: nowrap; }
pre { font-size: 12px; white-space: pre-wrap; }
</style>
<h1>$title</h1>
$key_figures
<h2>Course of the run</h2>
<main>
$figures
</main>
<h2>Answers</h2>
<details><summary>The last ones that were kept to be read</summary>$answers</details>
<h2>Settings</h2>
<details><summary>config.yaml</summary>$settings</details>
<h2>Manifest</h2>
<details><summary>Versions and machine that wrote this report</summary>
<pre>$manifest</pre></details>
</html>
""")
