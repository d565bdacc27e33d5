"""The report of a full-scale run: one HTML file that needs nothing else, no network either."""

import base64
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, StrictUndefined
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
    """Write `report.html` into a run folder, finished or not; returns its path. Chapter 18.

    Raises `FileNotFoundError` for a folder without a run.
    """
    record = read_run(folder)
    path = Layout(record.root).report
    partial = path.with_suffix(".partial")
    partial.write_text(report_html(record), encoding="utf-8")
    os.replace(partial, path)
    return path


def report_html(record: RunRecord) -> str:
    """The whole document. Each figure is an SVG image of its own: names inside one cannot meet
    those of another."""
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, undefined=StrictUndefined)
        .from_string(page)
        .render(
            title=f"Run {record.root.name}",
            key_figures=key_figures(record),
            figures=[
                (name, base64.b64encode(image.encode()).decode(), remark)
                for name, image, remark in figures_of(record)
            ],
            answers=record.samples[-LAST_ANSWERS:],
            settings=record.settings,
            manifest=json.dumps(manifest(), indent=2, sort_keys=True),
        )
    )


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
