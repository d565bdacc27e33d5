"""Chapter 05: what a prompt's solve rate decides about its share of an update."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines
from rlbook.viz.widgets import Explorer, choice, slider

SOLVE_RATES = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
Exact = Callable[[Callable, Float[Tensor, " P"], int], tuple[Tensor, Tensor]]


def difficulty_explorer(exact: Exact, advantages: Mapping[str, Callable], p: float) -> Explorer:
    """Weight and push of a prompt against its solve rate.

    `exact(advantage, p (P,), n)` gives E[g]/∇p and E|A| of groups of n; `advantages` are the
    estimators to choose from, by name.
    """

    def draw(fig: Figure, divide: str, group: int, p: float) -> None:
        difficulty_figure(fig, exact, advantages, divide, group, p)

    return Explorer(
        draw,
        hint="G = 2: the weight is flat. Then raise G, and move p towards 0.",
        figsize=(7.6, 3.5),
        divide=choice(list(advantages), label="divide by"),
        group=slider(2, 64, 8, 1, label="group size G"),
        p=slider(0.01, 0.99, p, label="solve rate p"),
    )


def difficulty_figure(
    fig: Figure,
    exact: Exact,
    advantages: Mapping[str, Callable],
    divide: str,
    group: int,
    p: float,
) -> None:
    """Two panels: weight of the prompt's gradient, and mean |A| of one of its rollouts."""
    axes = fig.subplots(1, 2)
    chosen, plain = advantages[divide], list(advantages)[-1]
    here = [x.item() for x in exact(chosen, torch.tensor([p], dtype=torch.float64), group)]
    others = exact(advantages[plain], SOLVE_RATES, group)
    panels = zip(axes, exact(chosen, SOLVE_RATES, group), others, here, strict=True)
    for ax, curve, other, value in panels:
        ax.plot(SOLVE_RATES, other, color=MUTED, lw=1.2, ls=(0, (4, 3)))
        ax.plot(SOLVE_RATES, curve, color=GOOD)
        ax.plot([p, p], [0, value], color=FAINT, lw=1, zorder=0)
        ax.plot(p, value, "o", color=BAD, ms=7)
        ax.set(xlabel="solve rate p", xlim=(0, 1))
    silent = p**group + (1 - p) ** group
    axes[0].set(ylim=(0, 7), ylabel="weight  E[g] / ∇p", title=f"Weight {here[0]:.2f}")
    axes[1].set(ylim=(0, 1.05), ylabel="push  E|Â|")
    axes[1].set_title(f"Push {here[1]:.2f}, silent groups {silent:.0%}")
    note = f"dashed: divided by {plain}"
    axes[0].text(0.98, 0.94, note, transform=axes[0].transAxes, ha="right", fontsize=9, color=MUTED)


def draw_solve_rates(
    ax: Axes, rates: Mapping[int, Sequence[float]], mean: float, jitter: float = 0.28
) -> None:
    """A dot per prompt at its solve rate, a column per level; the batch mean as a line."""
    for level, values in rates.items():
        spread = torch.linspace(-jitter, jitter, len(values))
        ax.plot(level + spread, values, "o", ms=4.5, mew=0, alpha=0.55, color=GOOD)
        average = sum(values) / len(values)
        ax.plot([level - 0.38, level + 0.38], [average, average], color=INK, lw=2)
    ax.axhline(mean, color=BAD, lw=1.5, ls=(0, (4, 3)))
    ax.set(ylim=(-0.03, 1.03), xticks=list(rates), xlabel="operands in the sum")
    ax.set_ylabel("solve rate of the base model")


def draw_silence(ax: Axes, sizes: Sequence[int]) -> None:
    """p^G + (1−p)^G against p, a labelled line per group size."""
    shades = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08306b")
    heights = torch.linspace(0.62, 0.1, len(sizes))  # of the labels, one below the other
    for size, shade, height in zip(sizes, shades, heights, strict=False):
        silent = SOLVE_RATES**size + (1 - SOLVE_RATES) ** size
        ax.plot(SOLVE_RATES, silent, color=shade)
        crossing = int((silent[:100] - height).abs().argmin())
        ax.text(
            SOLVE_RATES[crossing], silent[crossing], f"G = {size}" if size == sizes[0] else size,
            fontsize=9, color=INK, ha="center", va="center",
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    ax.set(xlabel="solve rate p", ylabel="chance of a silent group", xlim=(0, 1), ylim=(0, 1))


def draw_coefficients(ax: Axes) -> None:
    """How hard each KL loss pulls a sampled token back, against its log-ratio to the reference."""
    d = torch.linspace(-2.5, 4, 200)
    ax.axhline(0, color=FAINT, lw=1)
    ax.axvline(0, color=FAINT, lw=1)
    ax.plot(d, -d, color=GOOD, label="k2: −d")
    ax.plot(d, (-d).exp() - 1, color=BAD, label="k3, naive: exp(−d) − 1")
    ax.set(
        xlabel=r"$d=\log\pi_\theta-\log\pi_{ref}$ of the sampled token",
        ylabel="push on log π, per β",
    )
    ax.set(xlim=(-2.5, 4), ylim=(-4.4, 11.5))
    label_lines(ax)
