"""One look for the whole book: one style, one colour per method, labels on the lines."""

import platform
import random
from collections.abc import Sequence
from importlib.metadata import version
from linecache import getline
from traceback import walk_tb
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from rlbook import __version__

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
GOOD, BAD = "#0072B2", "#D55E00"

# Methods that share a figure stay apart for deuteranopes and protanopes too (tests/rlbook/viz).
METHOD_COLOURS = {
    "reinforce": "#6b6b6b",
    "reinforce_batch_mean": "#56B4E9",
    "reinforce_ema": "#004488",
    "ppo": "#D55E00",
    "grpo": "#0072B2",
    "rloo": "#1b1b1b",
    "remax": "#CC79A7",
    "reinforce_plus_plus": "#b8860b",
    "opo": "#117733",
    "dr_grpo": "#88772a",
    "dapo": "#009E73",
    "cispo": "#882255",
    "gspo": "#33BBEE",
    "maxrl": "#228833",
    "dppo": "#332288",
    "dppo_kl": "#AA4499",
    "scalerl": "#997700",
    "lite_ppo": "#E69F00",
    "gpg": "#6699CC",
    "opd": "#44AA99",
}
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#882255", "#E69F00", "#6b6b6b", "#56B4E9", "#332288")

STYLE: dict[Any, Any] = {
    "figure.figsize": (7.2, 3.4),
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#9a9a9a",
    "axes.linewidth": 0.8,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.formatter.useoffset": False,
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "xtick.color": "#9a9a9a",
    "ytick.color": "#9a9a9a",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "image.cmap": "viridis",
    "svg.hashsalt": "rlbook",
}


def use_style() -> None:
    """Make the book's style the default of every figure drawn from now on."""
    mpl.rcParams.update(STYLE)


def setup(seed: int = 0, threads: int | None = None) -> None:
    """The first cell of every chapter: style, threads, seeds, inline PNG; prints what runs.

    `threads` as in `rlbook.policy.set_threads`.
    """
    import torch

    from rlbook.policy import set_threads

    use_style()
    inline_png()
    one_line_interrupts()
    threads = set_threads(threads)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    packages = [f"{name} {version(name).split('+')[0]}" for name in ("torch", "transformers")]
    plural = "s" if threads > 1 else ""
    print(
        f"rlbook {__version__} · Python {'.'.join(platform.python_version_tuple()[:2])} · "
        f"{' · '.join(packages)} · {threads} thread{plural} · seed {seed}"
    )


def inline_png() -> None:
    """Show figures in a notebook as PNG without time stamps or version; elsewhere do nothing."""
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        shell.run_line_magic("matplotlib", "inline")
        use_style()  # the magic resets part of the style
        set_matplotlib_formats("png", metadata={"Software": None})


def one_line_interrupts() -> None:
    """A notebook's cell that is interrupted says where it was, without the way it came there."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if getattr(shell, "kernel", None) is not None and not shell.custom_exceptions:
        shell.set_custom_exc((KeyboardInterrupt,), _interrupted)


def _interrupted(shell, kind, stop, trace, tb_offset=None) -> list[str]:
    cells = [at for at in walk_tb(trace) if at[0].f_globals is shell.user_ns]
    frame, number = cells[0] if cells else (trace.tb_frame, trace.tb_lineno)
    line = getline(frame.f_code.co_filename, number).strip()
    lines = [f"Interrupted in line {number}, {line!r}. What is computed so far is kept."]
    stop._render_traceback_ = lambda: lines
    shell.showtraceback((kind, stop, trace))
    return lines


def readable(colour: str, contrast: float = 4.5) -> str:
    """`colour`, darkened until text in it reaches this contrast ratio on white (WCAG 2.1)."""
    rgb = np.array(to_rgb(colour))
    while 1.05 / (luminance(rgb) + 0.05) < contrast:
        rgb = rgb * 0.95
    return to_hex(rgb.tolist())


def luminance(rgb: np.ndarray) -> float:
    """Relative luminance of an sRGB colour with components in [0, 1] (WCAG 2.1)."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def label_line(line: Line2D, text: str | None = None, dy: float = 0.0) -> Annotation:
    """Write `text` (default: the line's label) after the line's last point, in its colour.

    `dy` moves it up, in points. Raises `ValueError` for a line without a finite point.
    """
    x, y = last_point(line)
    return cast(Axes, line.axes).annotate(
        text or str(line.get_label()),
        (x, y),
        xytext=(6, dy),
        textcoords="offset points",
        va="center",
        color=readable(to_hex(line.get_color())),
        fontsize=9,
        annotation_clip=False,
    )


def label_lines(
    ax: Axes, lines: Sequence[Line2D] | None = None, gap: float = 12.0
) -> list[Annotation]:
    """`label_line` for several lines (default: all labelled ones), at least `gap` points apart."""
    if lines is None:
        lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    ax.figure.canvas.draw()  # settles the limits, hence where the ends are
    points = 72 / ax.figure.dpi
    wanted = np.array([ax.transData.transform(last_point(line))[1] for line in lines]) * points
    placed = spread(wanted, gap)
    moves = zip(lines, placed - wanted, strict=True)
    return [label_line(line, dy=float(move)) for line, move in moves]


def last_point(line: Line2D) -> tuple[float, float]:
    """The last finite point of a line; raises `ValueError` if it has none."""
    xy = np.asarray(line.get_xydata(), dtype=float)
    xy = xy[np.isfinite(xy).all(axis=1)]
    if not len(xy):
        raise ValueError(f"line {line.get_label()!r} has no finite point to label")
    return float(xy[-1, 0]), float(xy[-1, 1])


def spread(wanted: np.ndarray, gap: float) -> np.ndarray:
    """The positions closest to `wanted` (least squares) that are `gap` apart, in the same order."""
    order = np.argsort(wanted, kind="stable")
    blocks: list[tuple[float, int]] = []  # (centre of the block, members)
    for position in wanted[order]:
        centre, size = float(position), 1
        while blocks and centre - blocks[-1][0] < gap * (size + blocks[-1][1]) / 2:
            other, members = blocks.pop()
            centre = (centre * size + other * members) / (size + members)
            size += members
        blocks.append((centre, size))
    placed = [c + gap * (i - (n - 1) / 2) for c, n in blocks for i in range(n)]
    result = np.empty(len(wanted))
    result[order] = placed
    return result
