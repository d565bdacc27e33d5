"""The book's one drawing of a training step: what a chapter changes is lit."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BOXES = ("prompt", "answers", "verdicts", "rewards", "advantages", "loss", "weights")
ANSWERS = "ABCD"
WIDTH, GAP, HEIGHT, ROW = 1.0, 0.32, 0.46, 0.3
INK, PALE, LINE, GRID, LIT = "#222222", "#6b6b6b", "#c9c9c9", "#eeeeee", "#0072B2"
LEFT = {box: place * (WIDTH + GAP) for place, box in enumerate(BOXES)}


def schematic(
    title: str,
    lit: Collection[str],
    carried: Mapping[str, Sequence[str]],
    notes: Mapping[str, str] | None = None,
    later: Mapping[str, str] | None = None,
    colour: str = LIT,
) -> Figure:
    """prompt → answers → verdicts → rewards → advantages → loss → weights, the changed boxes lit.

    `carried` gives, for a box, what each of the four completions A to D has become there; `notes`
    a few words above a box, below its arrows; `later` the chapter in which a pale box comes.
    Raises `ValueError` for a box that is not in the drawing, or not four entries.
    """
    notes, later = notes or {}, later or {}
    if strange := {*lit, *carried, *notes, *later} - {*BOXES}:
        raise ValueError(f"no box is called {sorted(strange)[0]!r}: {', '.join(BOXES)}")
    if uneven := [box for box, entries in carried.items() if len(entries) != len(ANSWERS)]:
        raise ValueError(f"{uneven[0]!r} needs an entry for each of {', '.join(ANSWERS)}")
    fig, ax = plt.subplots(figsize=(8.6, 2.75))
    for box in BOXES:
        draw_box(ax, box, colour if box in lit else None, pale=box in later)
        note = notes.get(box) or (f"chapter {later[box]}" if box in later else "")
        ax.text(middle(box), 0.59, note, ha="center", fontsize=7.5, color=colour)
    for left, right in pairwise(BOXES):
        arrow(ax, (LEFT[left] + WIDTH + 0.03, 0.23), (LEFT[right] - 0.03, 0.23))
    arrow(ax, (middle("weights"), 0.76), (middle("answers"), 0.76), "arc3,rad=0.12")
    around = "the next answers come from the new weights"
    ax.text(middle("rewards") + 0.66, 1.3, around, ha="center", fontsize=7.5, color=PALE)
    for row, name in enumerate(ANSWERS):
        height = -0.28 - ROW * row
        ax.plot([LEFT["answers"], right_edge()], [height - 0.14] * 2, color=GRID, lw=0.8, zorder=0)
        ax.text(LEFT["answers"] - 0.16, height, name, ha="right", va="center", fontsize=8)
        for box, entries in carried.items():
            ink = colour if box in lit else INK
            place = {"ha": "center", "va": "center", "fontsize": 8, "color": ink}
            ax.text(middle(box), height, entries[row], **place)
    ax.set(xlim=(-0.1, right_edge() + 0.1), ylim=(-0.28 - ROW * 3.6, 1.5))
    ax.axis("off")
    ax.set_title(title, loc="left", fontsize=10, weight="bold")
    return fig


def chapter_map(lit: Mapping[str, str], ax: Axes | None = None) -> Figure:
    """The seven boxes without the completions, for a first screen: a chapter's lit, with its words.

    In a figure of its own, or in `ax`. Raises `ValueError` for a box that is not in the drawing.
    """
    if strange := {*lit} - {*BOXES}:
        raise ValueError(f"no box is called {sorted(strange)[0]!r}: {', '.join(BOXES)}")
    ax = ax or plt.subplots(figsize=(8.6, 1.15))[1]
    for box in BOXES:
        draw_box(ax, box, LIT if box in lit else None, pale=False)
        ax.text(middle(box), -0.24, lit.get(box, ""), ha="center", fontsize=7.5, color=LIT)
    for left, right in pairwise(BOXES):
        arrow(ax, (LEFT[left] + WIDTH + 0.03, 0.23), (LEFT[right] - 0.03, 0.23))
    arrow(ax, (middle("weights"), 0.58), (middle("answers"), 0.58), "arc3,rad=0.1")
    ax.set(xlim=(-0.1, right_edge() + 0.1), ylim=(-0.35, 1.15))
    ax.axis("off")
    return ax.get_figure()


def over_a_map(*widths: float) -> list[Axes]:
    """Axes side by side for a first screen, of these relative widths, and one below for its map."""
    figure = plt.figure(figsize=(8.8, 4.5))
    grid = figure.add_gridspec(2, len(widths), height_ratios=(3.1, 1), width_ratios=widths)
    above = [figure.add_subplot(grid[0, place]) for place in range(len(widths))]
    return [*above, figure.add_subplot(grid[1, :])]


def middle(box: str) -> float:
    return LEFT[box] + WIDTH / 2


def right_edge() -> float:
    return LEFT[BOXES[-1]] + WIDTH


def draw_box(ax: Axes, box: str, colour: str | None, pale: bool) -> None:
    """A box with its name, filled if it has a colour."""
    shape = FancyBboxPatch(
        (LEFT[box], 0),
        WIDTH,
        HEIGHT,
        boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor=colour or "white",
        edgecolor=colour or LINE,
        linewidth=1.4,
    )
    ax.add_patch(shape)
    ink = "white" if colour else PALE if pale else INK
    weight = "bold" if colour else "normal"
    size = 8.2 if len(box) > 8 else 9
    ax.text(middle(box), 0.23, box, ha="center", va="center", size=size, color=ink, weight=weight)


def arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], curve: str = "arc3"
) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": PALE, "lw": 1}
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=curve, **style))
