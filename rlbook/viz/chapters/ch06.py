"""Chapter 06: what each baseline costs in rollouts, exactly."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rlbook.exact import cost
from rlbook.viz.style import FAINT, MUTED, colour_of, label_lines
from rlbook.viz.widgets import Explorer, slider

COLOURS = {
    "none": colour_of("reinforce"),
    "siblings": colour_of("rloo"),
    "greedy": colour_of("remax"),
}
TINTS = {"none": "#c9c9c9", "siblings": "#3d3d3d", "greedy": "#CC79A7"}
SOLVE_RATES = tuple(i / 40 for i in range(1, 40))


def cost_explorer(n: int = 4, shift: float = 0.0, fillers: int = 6) -> Explorer:
    """Cost of three baselines against the solve rate, for one prompt."""
    return Explorer(
        cost_figure,
        hint="n = 2, then 8; then add 0.5 to the rewards; then 1 other token, rewards 0 and 1.",
        figsize=(7.4, 3.7),
        n=slider(2, 16, n, 1, label="rollouts n"),
        shift=slider(-1.0, 1.0, shift, 0.1, label="added to rewards"),
        fillers=slider(1, 6, fillers, 1, label="other tokens"),
    )


def cost_figure(fig: Figure, n: int, shift: float, fillers: int) -> None:
    """`cost` of none, siblings and greedy against p, on a logarithmic axis."""
    ax = fig.subplots()
    curves = {
        name: [cost(name, p, n, round(shift, 1), fillers) for p in SOLVE_RATES] for name in COLOURS
    }
    for name, curve in curves.items():
        ax.plot(SOLVE_RATES, curve, color=COLOURS[name], label=name)
    ax.axhline(1, color=FAINT, lw=1.5, zorder=0)
    ax.text(0.01, 0.96, "best constant", color=MUTED, fontsize=9, va="top")
    top = max(max(curve) for curve in curves.values())
    ax.set(yscale="log", ylim=(0.85, max(4.5, 1.2 * top)), xlim=(0, 1))
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 300) if t < max(4.5, 1.2 * top)]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.set_yticks([], minor=True)
    ax.set(xlabel="solve rate p", ylabel="rollouts, relative to the best constant")
    wins = {name: 0 for name in COLOURS}
    for values in zip(*curves.values(), strict=True):
        wins[min(zip(values, COLOURS, strict=True))[1]] += 1
    shares = ", ".join(f"{name} {count / len(SOLVE_RATES):.0%}" for name, count in wins.items())
    ax.set_title(f"n = {n}, cheapest at: {shares} of solve rates")
    label_lines(ax)


def draw_winners(
    ax: Axes, sizes: Sequence[int], shift: float, fillers: int, free: bool = False
) -> None:
    """The cheapest baseline as a colour, for every solve rate (across) and n (up)."""

    def at(p: float, n: int) -> list[float]:
        return [cost(name, p, n, shift, fillers, free) for name in COLOURS]

    grid = torch.tensor(
        [[costs.index(min(costs)) for p in SOLVE_RATES if (costs := at(p, n))] for n in sizes]
    )
    edges = torch.linspace(0, 1, len(SOLVE_RATES) + 1)
    rows = torch.arange(len(sizes) + 1) - 0.5
    ax.pcolormesh(edges, rows, grid, cmap=ListedColormap([*TINTS.values()]), vmin=0, vmax=2)
    ax.set(xlabel="solve rate p", yticks=range(len(sizes)), yticklabels=sizes)
    ax.grid(visible=False)


def draw_push(ax: Axes, sizes: Sequence[int], pushes: dict[str, Sequence[float]]) -> None:
    """Expected gradient against the group size, in units of the true one."""
    colours = {"GRPO": colour_of("grpo"), "group mean": colour_of("dr_grpo")}
    ax.axhspan(-8, 0, color="#f3f3f3", zorder=0)
    ax.axhline(0, color=MUTED, lw=1)
    for name, values in pushes.items():
        ax.plot(sizes, values, "o-", ms=4, color=colours.get(name, COLOURS["siblings"]), label=name)
    ax.text(2, -3.3, "the wrong way", color=MUTED, fontsize=9)
    ax.set(xlabel="group size n", xlim=(1.5, sizes[-1] + 0.5), ylim=(-3.6, 1.7))
    ax.set_ylabel("expected gradient / true gradient")
    label_lines(ax)
