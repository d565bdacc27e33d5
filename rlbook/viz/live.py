"""A plot that grows while a run trains, and stays in the notebook when it has ended."""

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, nan
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlbook.training import side_by_side
from rlbook.viz.style import CYCLE, METHOD_COLOURS, MUTED, STYLE, label_lines

Row = Mapping[str, float]  # the metrics of a step
MAX_FRAMES = 36  # a front end gets the final picture too: at most 40 messages a cell


class LivePlot:
    """Draws metrics of one or several runs as they arrive, one panel per metric.

        live = LivePlot("accuracy", "length")
        for metrics in live.watch(Trainer(config), "ppo"):
            ...
        live.close()

    Redraws in place, at most `frames` times a run; `close` leaves the final picture without times
    in it. `history[label]` holds the metrics of every step. Outside a notebook nothing is drawn
    until `figure()` is asked for. `limits[metric]` fixes the axis of a metric, so that two plots
    can be compared. Usable as a context manager.
    """

    def __init__(
        self,
        *metrics: str,
        title: str = "",
        colours: Mapping[str, str] | None = None,
        frames: int = 12,
        smooth: int = 1,
        limits: Mapping[str, tuple[float, float]] | None = None,
    ):
        self.metrics = metrics or ("reward",)
        self.title, self.colours, self.frames, self.smooth = title, colours or {}, frames, smooth
        self.limits = limits or {}
        self.history: dict[str, list[Mapping[str, float]]] = {}
        self.drawn = 0
        self.expected: dict[str, int] = {}
        self._handle: Any = None

    def __enter__(self) -> "LivePlot":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def watch(
        self,
        run: Iterable[Mapping[str, float]],
        label: str = "run",
        total: int | None = None,
        parts: Mapping[str, str] | None = None,
    ) -> Iterator[Mapping[str, float]]:
        """Pass on the metrics of `run`, plotting them under `label`.

        `total` is the number of steps; by default `len(run)` or `run.config.steps`. Where none is
        known, the plot is redrawn ever more rarely. `parts` draws one run as several lines, each
        label with the metric of the run that it stands for: `{"two terms": "accuracy_level_2"}`.
        """
        total = total or steps_of(run)
        for line in parts or (label,):
            self.history.setdefault(line, [])
            if total:
                self.expected[line] = total
        done, redraw_at, start = 0, 1, time.perf_counter()
        try:
            for done, metrics in enumerate(run, 1):
                self.keep(metrics, label, parts)
                if done >= redraw_at:
                    self.show(eta(label, done, total, time.perf_counter() - start))
                    redraw_at = done + self.pause(done, total)
                yield metrics
        finally:
            self.show(force=True)

    def side_by_side(
        self,
        runs: Mapping[Any, Iterable[Mapping[str, float]]],
        learners: Mapping[Any, Any] | None = None,
        total: int | None = None,
        lines: Mapping[Any, str] | None = None,
    ) -> None:
        """Make independent runs at the same time, all curves growing, and close.

        `learners` is what each run changes and has to come back, by default the run itself; see
        `rlbook.training.side_by_side`. `total` is the steps of each, as in `watch`. `lines` names
        the line of each run, which several may share; by default it has the run's name.
        """
        line_of = {name: lines[name] if lines else name for name in runs}
        self.history |= {line: [] for line in line_of.values()}
        steps = {name: total or steps_of(run) or 0 for name, run in runs.items()}
        self.expected |= {line: steps[name] for name, line in line_of.items()}
        made: dict[Any, list[Row]] = {name: [] for name in runs}
        redraw_at, start, all_steps = 1, time.perf_counter(), sum(steps.values()) or None
        for done, (name, metrics) in enumerate(side_by_side(runs, learners), 1):
            made[name].append(metrics)
            mine = (rows for other, rows in made.items() if line_of[other] == line_of[name])
            self.history[line_of[name]] = joined(mine)
            if done >= redraw_at:
                self.show(eta("all", done, all_steps, time.perf_counter() - start))
                redraw_at = done + self.pause(done, all_steps)
        self.close()

    def pause(self, done: int, total: int | None) -> int:
        """Steps until the next picture."""
        return ceil(total / self.frames) if total else max(1, done // 4)

    def keep(
        self, metrics: Mapping[str, float], label: str, parts: Mapping[str, str] | None = None
    ) -> None:
        """Write a step into the history: as one line, or as the first metric of several."""
        if parts is None:
            self.history[label].append(metrics)
            return
        for line, metric in parts.items():
            renamed = {"step": "step", self.metrics[0]: metric}
            row = {new: metrics[old] for new, old in renamed.items() if old in metrics}
            self.history[line].append(row)

    def show(self, progress: str = "", force: bool = False) -> None:
        """Draw the current state in place; no-op outside a notebook or after `MAX_FRAMES`."""
        if not in_notebook() or (self.drawn >= MAX_FRAMES and not force):
            return
        self.drawn += 1
        bundle = {"text/plain": repr(self), "image/png": self.png(progress)}
        if self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = DisplayHandle()
            self._handle.display(bundle, raw=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        """Leave the final picture as the cell's output."""
        if self.history:
            self.show(force=True)

    def png(self, progress: str = "") -> bytes:
        """`figure` as PNG."""
        with mpl.rc_context(STYLE):
            return png_bytes(self.figure(progress))

    def figure(self, progress: str = "") -> Figure:
        """The curves so far as a matplotlib figure; `progress` is written under them."""
        with mpl.rc_context(STYLE):
            fig = Figure(figsize=(3.6 * max(2, len(self.metrics)), 2.8))
            FigureCanvasAgg(fig)
            axes = fig.subplots(1, len(self.metrics), squeeze=False)[0]
            for ax, metric in zip(axes, self.metrics, strict=True):
                self.draw_panel(ax, metric)
            if self.title:
                fig.suptitle(self.title, x=0.01, ha="left", fontweight="bold", fontsize=11)
            if progress:
                fig.supxlabel(progress, x=0.01, ha="left", fontsize=9, color=MUTED)
        return fig

    def draw_panel(self, ax, metric: str) -> None:
        """The curves of one metric, a labelled line per run."""
        free = iter(CYCLE * (len(self.history) + 1))
        known = {**METHOD_COLOURS, **self.colours}
        lines = []
        for label, rows in self.history.items():
            points = [
                (row.get("step", i + 1), row[metric]) for i, row in enumerate(rows) if metric in row
            ]
            colour = known.get(label) or next(free)
            if any(y == y for _, y in points):
                x, y = zip(*points, strict=True)
                lines += ax.plot(x, moving_mean(y, self.smooth), color=colour, label=label)
        ax.set_title(metric.replace("_", " "), fontweight="normal", fontsize=10)
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if metric in self.limits:
            ax.set_ylim(*self.limits[metric])
        if self.expected:
            ax.set_xlim(0, max(self.expected.values()) * 1.02)
        if len(self.history) > 1:
            label_lines(ax, lines)

    def __repr__(self) -> str:
        runs = ", ".join(f"{label}: {len(rows)}" for label, rows in self.history.items())
        return f"LivePlot of {', '.join(self.metrics)} ({runs})"


def joined(runs: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of several runs as those of one line, which breaks off between them."""
    begun = [rows for rows in runs if rows]
    return [row for rows in begun for row in (*rows, dict.fromkeys(rows[-1], nan))][:-1]


def moving_mean(values: Iterable[float], width: int) -> list[float]:
    """Mean of each value and the `width` − 1 before it."""
    values = list(values)
    windows = (values[max(0, i + 1 - width) : i + 1] for i in range(len(values)))
    return [sum(w) / len(w) for w in windows]


def steps_of(run: Any) -> int | None:
    """How many steps a run will take, where it tells: a `Trainer` by its config."""
    config = getattr(run, "config", None)
    if config is not None and hasattr(config, "steps"):
        return max(0, config.steps - getattr(run, "step", 0)) or None
    return len(run) if hasattr(run, "__len__") else None


def eta(label: str, done: int, total: int | None, seconds: float) -> str:
    """One progress line: steps done, pace, time left."""
    pace = seconds / done
    line = f"{label}: step {done}" + (f" of {total}" if total else "")
    line += f" · {pace:.2g} s a step"
    return line + (f" · {pace * (total - done):.0f} s left" if total else "")


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def png_bytes(fig: Figure) -> bytes:
    """A figure as PNG with no time stamp or version in it: same figure, same bytes."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
