"""The static face of the lab: where each mask lets a token learn, and how strongly."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.exact.four_completions import Completions
from rlbook.objectives import RatioClip, Surrogate, sequence_ratio
from rlbook.viz.masks.rules import (
    MASKS,
    Mask,
    advantages_of,
    apply_mask,
    find_mask,
    token_names,
)
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, STYLE, readable

LOW, HIGH = -6.2, 4.4  # logits at the edges of a plane: probabilities from .002 to .988
TICKS = {0.01: ".01", 0.1: ".1", 0.5: ".5", 0.9: ".9"}
WEIGHTS = LogNorm(0.1, 10)
SHADES = {
    1: LinearSegmentedColormap.from_list("good", ["#f3f8fc", "#8fc1e3", GOOD]),
    -1: LinearSegmentedColormap.from_list("bad", ["#fdf4ee", "#f2b084", BAD]),
}
ATLAS = ("none", "ppo", "dapo", "cispo", "dppo", "dppo_kl", "gspo")


def mask_atlas(
    *names: str, masks: Mapping[str, Mask] = MASKS, completions: Completions = FOUR
) -> Figure:
    """A column per mask, a row per sign of Â: where in the plane of π does a token still learn?

        mask_atlas("ppo", "dapo")      # two columns; without names, all of them

    Across: π when the token was sampled; up: π now; both on a logit scale, so that a ratio clip is
    a wedge along the diagonal. The colour is the weight w of the token's gradient, −w·Â·∇log π,
    white and hatched where it is masked. The dots are the tokens of the completions, hollow and
    named where this mask silences them. A mask on the ratio of the whole answer has no place in
    that plane: it is a line below, the answers' ratios against its window.
    Everything is calculated by the trust regions themselves. Returns a figure outside pyplot: the
    last line of a cell shows it. Raises `ValueError` for an unknown mask.
    """
    chosen = {name: find_mask(name, masks) for name in names or ATLAS}
    planes = [mask for mask in chosen.values() if mask.ratio == "token"]
    lines = [mask for mask in chosen.values() if mask.ratio != "token"]
    with mpl.rc_context({**STYLE, "figure.constrained_layout.use": False}):
        width = 1.0 + 1.62 * max(len(planes), 3)
        inches = [0.5, *[1.62] * 2 * bool(planes), 0.45, *[0.62] * len(lines)]
        fig = Figure(figsize=(width, sum(inches)), dpi=130)
        FigureCanvasAgg(fig)
        top = 1 - 0.5 / sum(inches)
        bottom = (0.45 + 0.62 * len(lines)) / sum(inches)
        if planes:
            box = {"left": 0.62 / width, "right": 1 - 0.62 / width, "top": top, "bottom": bottom}
            grid = fig.add_gridspec(2, len(planes), **box, wspace=0.06, hspace=0.06)
            for column, mask in enumerate(planes):
                for row, sign in enumerate((1, -1)):
                    ax = fig.add_subplot(grid[row, column])
                    draw_plane(ax, mask, sign)
                    draw_tokens(ax, mask, sign, completions)
                    label_plane(ax, mask, sign, first=column == 0)
            for row, sign in enumerate((1, -1)):
                height = (top - bottom) / 2
                draw_scale(fig, sign, (1 - 0.52 / width, top - height * (row + 0.9)), height * 0.6)
        for index, mask in enumerate(lines):
            y = (0.62 * (len(lines) - index) - 0.34) / sum(inches)
            ax = fig.add_axes((0.62 / width, y, 1 - 1.24 / width, 0.16 / sum(inches)))
            draw_window(ax, mask, completions)
    return fig


def weights_on(
    mask: Mask, logp: Float[Tensor, "*shape"], logp_old: Float[Tensor, "*shape"], sign: int
) -> Surrogate:
    """What a mask of the token's ratio does at these log-probabilities to an advantage of ±1."""
    ratio = (logp - logp_old).exp()
    return mask.region(logp, logp_old, ratio, torch.full_like(logp, float(sign)))


def draw_plane(ax: Axes, mask: Mask, sign: int, points: int = 360) -> None:
    """Weight as colour, hatched where masked, over (π when sampled, π now)."""
    logits = torch.linspace(LOW, HIGH, points, dtype=torch.float64)
    logp = torch.nn.functional.logsigmoid(logits)
    now, sampled = torch.meshgrid(logp, logp, indexing="ij")
    surrogate = weights_on(mask, now, sampled, sign)
    weight = np.where(surrogate.keep, surrogate.weight, np.nan)
    ax.imshow(
        weight, origin="lower", extent=(LOW, HIGH, LOW, HIGH), norm=WEIGHTS, cmap=SHADES[sign],
        interpolation="none",
    )  # fmt: skip
    if not surrogate.keep.all():
        edge = logits.numpy()
        masked = (~surrogate.keep).double().numpy()
        with mpl.rc_context({"hatch.linewidth": 0.7}):
            ax.contourf(
                edge, edge, masked, levels=[0.5, 1.5], colors=["#ffffff"], hatches=["/////"]
            ).set(edgecolor="#b9b9b9", linewidth=0)
        ax.contour(edge, edge, masked, levels=[0.5], colors=[INK], linewidths=0.9)
    ax.plot([LOW, HIGH], [LOW, HIGH], color=MUTED, lw=0.7, ls=(0, (2, 2)))


def draw_tokens(ax: Axes, mask: Mask, sign: int, completions: Completions) -> None:
    """The tokens whose advantage has this sign; named where silenced."""
    shown = (advantages_of(completions) * sign > 0) & completions.mask
    keep = apply_mask(mask, completions).keep
    for n, names in enumerate(token_names(completions)):
        for t, name in enumerate(names):
            if not shown[n, t]:
                continue
            x, y = (
                float(torch.logit(p[n, t].exp())) for p in (completions.logp_old, completions.logp)
            )
            learns = bool(keep[n, t])
            ax.plot(
                x, y, "o", ms=4.6, mfc=INK if learns else "white", mec="white" if learns else INK,
                mew=0.7 if learns else 1.1, zorder=4,
            )  # fmt: skip
            if not learns:
                ax.annotate(
                    name, (x, y), xytext=(-4.5, 2.5 * sign), textcoords="offset points",
                    ha="right", va="center", fontsize=7.5, weight="bold", color=INK, zorder=5,
                    path_effects=[withStroke(linewidth=2.2, foreground="white")],
                )  # fmt: skip


def label_plane(ax: Axes, mask: Mask, sign: int, first: bool) -> None:
    positions = [float(np.log(p / (1 - p))) for p in TICKS]
    ax.set(xlim=(LOW, HIGH), ylim=(LOW, HIGH))
    ax.grid(False)
    ax.spines[:].set_visible(True)
    ax.set_xticks(positions, list(TICKS.values()) if sign < 0 else [])
    ax.set_yticks(positions, list(TICKS.values()) if first else [])
    ax.tick_params(labelsize=7.5, length=2, pad=2)
    if sign > 0:
        ax.set_title(mask.label, fontsize=9.5, color=readable(mask.colour), pad=13)
        ax.text(0, 1.03, setting(mask), transform=ax.transAxes, fontsize=7.5, color=MUTED)
    elif first:
        ax.set_xlabel("π when sampled", fontsize=8, loc="left", labelpad=2)
    if first:
        ax.set_ylabel(f"{'good' if sign > 0 else 'bad'} token: π now", fontsize=8, labelpad=2)


def setting(mask: Mask) -> str:
    """The limits of the mask in the symbols of the book."""
    region = mask.region
    match type(region).__name__:
        case "RatioClip":
            limits = f"ε {region.low:g} / {region.high:g}"
            return limits if region.dual is None else f"{limits}, c {region.dual:g}"
        case "WeightClip":
            return f"w ≤ {region.max:g}"
        case "DivergenceMask":
            return f"δ {region.high:g}"
    return "w = ρ"


def draw_scale(fig: Figure, sign: int, corner: tuple[float, float], height: float) -> None:
    bar = fig.add_axes((*corner, 0.09 / fig.get_figwidth(), height))
    scale = fig.colorbar(ScalarMappable(WEIGHTS, SHADES[sign]), cax=bar)
    scale.set_ticks([0.1, 1, 10], labels=[".1", "1", "10"])
    scale.ax.minorticks_off()
    scale.ax.tick_params(labelsize=7.5, length=2, pad=2)
    scale.outline.set_linewidth(0.5)
    scale.ax.set_title("weight w", fontsize=7.5, weight="normal", color=MUTED, pad=5, loc="center")


def draw_window(ax: Axes, mask: Mask, completions: Completions) -> None:
    """The answers' ratios s on one line, with the window of a mask that judges whole answers."""
    region = mask.region
    s = sequence_ratio(completions.logp, completions.logp_old, completions.mask)[:, 0]
    keep = apply_mask(mask, completions).keep[:, 0]
    good = completions.rewards > completions.rewards.mean()
    if isinstance(region, RatioClip):
        ax.axvspan(1 - region.low, 1 + region.high, color=mask.colour, lw=1.2)
    ax.axhline(0, color=FAINT, lw=1, zorder=0)
    for n, name in enumerate(completions.names):
        colour, learns = (GOOD if good[n] else BAD), bool(keep[n])
        ax.plot(s[n], 0, "o", ms=6, mfc=colour if learns else "white", mec=colour, mew=1.4)
        ax.annotate(
            f"{name[0]}  {s[n]:.3g}" + ("" if learns else " silenced"), (float(s[n]), 0),
            xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7.5,
            color=readable(colour),
        )  # fmt: skip
    ax.set(xscale="log", xlim=(0.78, 1.5), ylim=(-1, 1))
    ax.axis("off")
    ax.set_title(
        f"{mask.label} ({setting(mask)}) has no place in that plane: it asks for the ratio s of "
        "the whole answer",
        fontsize=8.5, color=readable(mask.colour), pad=14,
    )  # fmt: skip
