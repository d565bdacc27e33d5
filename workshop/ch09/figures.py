"""Chapter 09: whom a trust region silences, answers on their windows, runs in a noisy world."""

from collections.abc import Mapping, Sequence
from math import log1p

import pandas as pd
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from torch import Tensor

from rlbook.viz.style import BAD, FAINT, GOOD, METHOD_COLOURS, MUTED, readable
from workshop.shared.evidence import ARM_COLOURS, colour_of, compare_bars

REGION_COLOURS = {
    "no region": ARM_COLOURS["no trust region"],
    "PPO": METHOD_COLOURS["ppo"],
    "DAPO": METHOD_COLOURS["dapo"],
    "DPPO": METHOD_COLOURS["dppo"],
    "cap 5": METHOD_COLOURS["cispo"],
    "cap 1.2": "#CC79A7",
    "[0.8, 1.2]": "#b8860b",
}
WINDOW_COLOURS = ("#6cc8ee", "#0b5a80")  # GSPO's windows, narrow and wide
ANCHOR_COLOURS = {
    "no trust region": ARM_COLOURS["no trust region"],
    "CISPO": ARM_COLOURS["CISPO"],
    "clip, recomputed": ARM_COLOURS["clip-higher 0.28"],
    "clip, at the sampler": "#E69F00",
}


def draw_silenced(ax: Axes, tokens: pd.DataFrame, method: str) -> None:
    """Share of the tokens of each band of π_old that a method masks, by the sign of Â.

    `tokens` as in `tokens_in_turn` of chapter 08.
    """
    masked = tokens[method] == 0
    share = pd.DataFrame({"good": masked & (tokens.advantage > 0), "band": tokens.band})
    share["bad"] = masked & (tokens.advantage < 0)
    of_bands = share.groupby("band", observed=False)
    rates, sizes = of_bands[["bad", "good"]].mean(), of_bands.size()
    places = range(len(rates))
    ax.bar(places, rates.bad, 0.62, color=BAD, label="of wrong answers")
    ax.bar(places, rates.good, 0.62, bottom=rates.bad, color=GOOD, label="of right answers")
    for x, (total, size) in enumerate(zip(rates.sum(axis=1), sizes, strict=True)):
        text = f"{total:.0%}\nof {size}"
        ax.text(x, total + 0.012, text, ha="center", va="bottom", fontsize=8, color=MUTED)
    ax.set_xticks(places, list(rates.index))
    ax.set(xlabel=r"probability when sampled, $\pi_{old}$", yticks=(), ylim=(0, 0.52))


def draw_worlds(axes: Sequence[Axes], runs: pd.DataFrame, titles: Mapping[str, str]) -> None:
    """Expected reward at the end of every run, a row per region, a panel per world."""
    arms = list(dict.fromkeys(runs.region))
    for ax, (world, title) in zip(axes, titles.items(), strict=True):
        part = runs[runs.world == world]
        compare_bars(part, "reward", ax, by="region", arms=arms, colours=REGION_COLOURS)
        found = part.groupby("region").found.mean()
        for row, arm in enumerate(arms):
            ax.text(
                0.638, row, f"{found[arm]:.0%}", ha="right", va="center", fontsize=9,
                color=readable(REGION_COLOURS[arm]),
            )  # fmt: skip
        ax.set(xlim=(0.495, 0.64), xticks=(0.5, 0.55, 0.6), xlabel="expected reward at the end")
        ax.set_title(f"{title}\n", fontsize=10)
        ax.text(0, 1.02, world, transform=ax.transAxes, fontsize=9, color=MUTED)


def draw_pairs(ax: Axes, runs: pd.DataFrame) -> None:
    """A row per arm with its seeds, and a grey line through the runs of each seed.

    `runs` has a rate in [0, 1] per seed and arm; the lines show which differences are paired.
    """
    long = runs.melt(var_name="arm", value_name="rate")
    ax.plot(runs.to_numpy().T, range(runs.shape[1]), color=FAINT, lw=1, zorder=0)
    compare_bars(long, "rate", ax, within=(0, 1))


def draw_answers(
    ax: Axes,
    length: Int[Tensor, " N"],
    log_ratio: Float[Tensor, " N"],
    good: Bool[Tensor, " N"],
    window: tuple[float, float] | None = None,
) -> None:
    """A dot per answer, its length against its log-ratio; the window (low, high) as a band.

    Answers far below a window are counted in a corner, so that the rest can be told apart.
    """
    if window:
        ax.axhspan(log1p(-window[0]), log1p(window[1]), color=colour_of("gspo"), lw=0.8)
    for part, colour, name in ((good, GOOD, "good answers"), (~good, BAD, "bad answers")):
        ax.scatter(length[part], log_ratio[part], s=13, color=colour, alpha=0.6, lw=0, label=name)
    ax.set_xlabel("tokens in the answer")
    if window:
        ax.set_ylim(-0.36, 0.16)
        ax.legend(loc="lower right", handletextpad=0.1)
        if below := int((log_ratio < -0.36).sum()):
            text = f"{below} further below"
            ax.text(0.02, 0.02, text, transform=ax.transAxes, color=MUTED, fontsize=8)
