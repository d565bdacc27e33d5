"""The static face of the lab: where each mask lets a token learn, and how strongly."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from rlbook.exact import FOUR
from rlbook.exact.four_completions import Completions
from rlbook.objectives import (
    DivergenceMask,
    DivergencePenalty,
    NoTrustRegion,
    RatioClip,
    SoftGate,
    Tokens,
    WeightClip,
    sequence_ratio,
    weigh,
)
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, STYLE, readable
from workshop.shared.masks.rules import (
    MASKS,
    Mask,
    advantages_of,
    apply_mask,
    find_mask,
    token_names,
)

LOW, HIGH = -6.2, 4.4  # logits at the edges of a plane: probabilities .002 and .988
TICKS = {".01": 0.01, ".1": 0.1, ".5": 0.5, ".9": 0.9}
WEIGHTS = LogNorm(0.1, 10)
SHADES = {  # in few steps: a stored picture has 256 colours, and the labels need some
    1: LinearSegmentedColormap.from_list("good", ["#f3f8fc", "#8fc1e3", GOOD], N=24),
    -1: LinearSegmentedColormap.from_list("bad", ["#fdf4ee", "#f2b084", BAD], N=24),
}
ATLAS = ("none", "ppo", "dapo", "cispo", "dppo", "dppo_kl", "gspo")

# inches
PLANE, GAP, LEFT, RIGHT, TITLE, HEAD, FOOT, LINE = 1.36, 0.1, 0.62, 0.6, 0.34, 0.46, 0.44, 0.86
LETTER = 0.0094  # of a bold title, for each point of its size


def mask_atlas(
    *names: str,
    title: str | None = None,
    masks: Mapping[str, Mask] = MASKS,
    completions: Completions = FOUR,
) -> Figure:
    """A column per mask, a row per sign of Â: where in the plane of π does a token still learn?

        mask_atlas("ppo", "dapo")      # two columns; without names, all of them

    Across: π when the token was sampled; up: π now; both on a logit scale, so that a ratio clip is
    a wedge along the diagonal. The colour is the weight w of the token's gradient, −w·Â·∇log π,
    white and hatched where it is masked, the other row's where w < 0 and the token is pulled back;
    a dashed line is where w meets a cap. The dots are the
    tokens of the completions, hollow and named where this mask silences them. A mask on the ratio
    of the whole answer has no place in that plane: it is a line below, the answers' ratios against
    its window.
    Everything is calculated by the trust regions themselves; the title counts the silenced tokens
    unless another is given. Returns a figure outside pyplot: the
    last line of a cell shows it. Raises `ValueError` for an unknown mask.
    """
    chosen = [find_mask(name, masks) for name in names or ATLAS]
    title = finding(chosen, completions) if title is None else title
    planes = [mask for mask in chosen if mask.ratio == "token"]
    lines = [mask for mask in chosen if mask.ratio == "sequence"]
    columns = max(len(planes), 4 if lines else 2)
    width = LEFT + columns * (PLANE + GAP) + RIGHT
    top = TITLE if title else 0.0
    planes_high = HEAD + 2 * PLANE + GAP + FOOT if planes else 0.0
    height = top + planes_high + LINE * len(lines)
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(width, height), dpi=130)
        fig.set_layout_engine("none")  # axes stand at inches
        FigureCanvasAgg(fig)

        def axes(x: float, y: float, wide: float, high: float) -> Axes:
            """Axes at these inches from the left and from the top."""
            return fig.add_axes((x / width, 1 - (y + high) / height, wide / width, high / height))

        if title:
            size = min(11, (width - LEFT) / (LETTER * len(title)))
            fig.text(LEFT / width, 1 - 0.05 / height, title, va="top", fontsize=size, weight="bold")
        for column, mask in enumerate(planes):
            for row, sign in enumerate((1, -1)):
                x, y = LEFT + column * (PLANE + GAP), top + HEAD + row * (PLANE + GAP)
                draw_plane(axes(x, y, PLANE, PLANE), mask, sign, completions, first=column == 0)
                if mask is planes[-1]:
                    draw_scale(axes(x + PLANE + 0.1, y + 0.3, 0.09, PLANE - 0.4), sign)
        for index, mask in enumerate(lines):
            y = top + planes_high + index * LINE + 0.4
            draw_window(axes(LEFT, y, columns * (PLANE + GAP) - GAP, 0.26), mask, completions)
    return fig


def finding(masks: Sequence[Mask], completions: Completions = FOUR) -> str:
    """How many tokens each mask silences, in one line."""
    tokens = int(completions.mask.sum())
    count = {
        m.label: int((~apply_mask(m, completions).keep & completions.mask).sum()) for m in masks
    }
    some = [(label, n) for label, n in count.items() if n]
    none = [
        m.label for m in masks if not count[m.label] and not isinstance(m.region, NoTrustRegion)
    ]
    parts = [f"{label} silences {n}" for label, n in some[:1]]
    parts += [f"{label} {n}" for label, n in some[1:]]
    parts += [f"{label} {'none' if some else 'silences none'}" for label in none]
    return f"Of {tokens} tokens {', '.join(parts)}" if parts else ""


def draw_plane(
    ax: Axes, mask: Mask, sign: int, completions: Completions, first: bool = True
) -> None:
    """Weights, wall and cap of a mask over (π when sampled, π now), and the tokens in it."""
    logits = torch.linspace(LOW, HIGH, 360, dtype=torch.float64)
    now, sampled = torch.meshgrid(*2 * [torch.nn.functional.logsigmoid(logits)], indexing="ij")
    ratio = (now - sampled).exp()
    tokens = Tokens.of(now, sampled, torch.full_like(now, float(sign)))
    weights, keep = weigh(mask.region, tokens)
    weight = np.where(keep, weights, np.nan)
    grid = {"origin": "lower", "extent": (LOW, HIGH, LOW, HIGH), "interpolation": "nearest"}
    for way in (1, -1):  # a weight below 0 pulls the token back: the colour of the other row
        strength = np.where(way * weight > 0, way * weight, np.nan)
        if not np.isnan(strength).all():
            ax.imshow(strength, norm=WEIGHTS, cmap=SHADES[way * sign], **grid)
    masked = (~keep).double().numpy()
    if masked.any():
        area = {"levels": [0.5, 1.5], "colors": ["#ffffff"], "hatches": ["/////"]}
        with mpl.rc_context({"hatch.linewidth": 0.7}):
            ax.contourf(logits, logits, masked, **area).set(edgecolor="#b5b5b5", linewidth=0)
        ax.contour(logits, logits, masked, levels=[0.5], colors=[INK], linewidths=1)
    if isinstance(mask.region, WeightClip):
        cap = {"levels": [mask.region.max], "colors": [INK], "linestyles": "--", "linewidths": 1}
        ax.contour(logits, logits, ratio, **cap)
        ax.text(LOW + 0.4, HIGH - 0.4, f"w = {mask.region.max:g}", va="top", fontsize=8, color="w")
    ax.plot([LOW, HIGH], [LOW, HIGH], color=MUTED, lw=0.7, ls=(0, (2, 2)))
    silenced, of = draw_tokens(ax, mask, sign, completions)
    label_plane(ax, mask, sign, first)
    ax.text(
        HIGH - 0.25, LOW + 0.3, f"{silenced} of {of} silenced", ha="right", va="bottom", fontsize=8,
        color=INK if silenced else MUTED, path_effects=[halo()],
    )  # fmt: skip


def draw_tokens(ax: Axes, mask: Mask, sign: int, completions: Completions) -> tuple[int, int]:
    """Dots of the tokens whose advantage has this sign: how many are silenced, and how many are."""
    shown = (advantages_of(completions) * sign > 0) & completions.mask
    keep = apply_mask(mask, completions).keep
    names = token_names(completions)
    for n, t in shown.nonzero().tolist():
        x, y = (float(p[n, t].exp().logit()) for p in (completions.logp_old, completions.logp))
        face, edge, width = (INK, "white", 0.7) if keep[n, t] else ("white", INK, 1.2)
        ax.plot(x, y, "o", ms=4.8, mfc=face, mec=edge, mew=width, zorder=4)
        if not keep[n, t]:
            # towards the side of the wall on which nothing learns, unless the frame is there
            dx, dy, align = (-5, 3, "right") if sign > 0 else (5, -3, "left")
            dx, dy, align = (dx, dy, align) if x < HIGH - 1.7 else (0, 8, "center")
            ax.annotate(
                names[n][t], (x, y), xytext=(dx, dy), textcoords="offset points", ha=align,
                va="center", fontsize=7.5, weight="bold", zorder=5, path_effects=[halo()],
            )  # fmt: skip
    return int((shown & ~keep).sum()), int(shown.sum())


def label_plane(ax: Axes, mask: Mask, sign: int, first: bool) -> None:
    positions = [float(np.log(p / (1 - p))) for p in TICKS.values()]
    ax.set(xlim=(LOW, HIGH), ylim=(LOW, HIGH))
    ax.grid(False)
    ax.spines[:].set_visible(True)
    ax.set_xticks(positions, list(TICKS) if sign < 0 else [])
    ax.set_yticks(positions, list(TICKS) if first else [])
    ax.tick_params(labelsize=7.5, length=2, pad=2)
    if sign > 0:
        ax.set_title(mask.label, fontsize=10, color=readable(mask.colour), pad=16)
        ax.text(0, 1.05, setting(mask), transform=ax.transAxes, fontsize=8, color=MUTED)
        ax.spines.top.set(color=mask.colour, linewidth=4)
    elif first:
        ax.set_xlabel("π when sampled →", fontsize=8, loc="left", labelpad=2)
    if first:
        tokens = "good tokens, Â > 0" if sign > 0 else "bad tokens, Â < 0"
        ax.set_ylabel(f"{tokens}\nπ now →", fontsize=8, labelpad=2)


def setting(mask: Mask) -> str:
    """The limits of the mask in the symbols of the book."""
    match mask.region:
        case RatioClip(low, high, None):
            return f"ε {low:g} / {high:g}"
        case RatioClip(low, high, dual):
            return f"ε {low:g} / {high:g}, c {dual:g}"
        case WeightClip(max=most):
            return f"w ≤ {most:g}"
        case DivergenceMask(low=low, high=high):
            return f"δ {high:g}" if low == high else f"δ {low:g} / {high:g}"
        case DivergencePenalty(delta):
            return f"δ {delta:g}"
        case SoftGate(low, high):
            return f"τ {low:g} / {high:g}"
    return "w = ρ"


def draw_scale(ax: Axes, sign: int) -> None:
    """What the colours of a row of planes mean."""
    bar = ax.figure.colorbar(ScalarMappable(WEIGHTS, SHADES[sign]), cax=ax)
    bar.set_ticks([0.1, 1, 10], labels=[".1", "1", "10"])
    ax.minorticks_off()
    ax.tick_params(labelsize=7.5, length=2, pad=2)
    bar.outline.set_linewidth(0.5)
    ax.set_title("weight", fontsize=8, weight="normal", color=MUTED, pad=5)


def draw_window(ax: Axes, mask: Mask, completions: Completions) -> None:
    """The answers' ratios s on one line, and the window of a mask that asks for them."""
    s = sequence_ratio(completions.logp, completions.logp_old, completions.mask)[:, 0]
    keep = apply_mask(mask, completions).keep[:, 0]
    good = advantages_of(completions)[:, 0] > 0
    if isinstance(mask.region, RatioClip):
        ax.axvspan(1 - mask.region.low, 1 + mask.region.high, color=mask.colour, lw=1.4)
    ax.axhline(0, color=FAINT, lw=1, zorder=0)
    for rank, n in enumerate(s.argsort().tolist()):
        learns, colour = bool(keep[n]), GOOD if good[n] else BAD
        face = colour if learns else "white"
        ax.plot(float(s[n]), 0, "o", ms=6, mfc=face, mec=colour, mew=1.5, zorder=4)
        side = 1 if rank % 2 else -1
        ax.annotate(
            f"{completions.names[n][0]}: s = {s[n]:.3g}",
            (float(s[n]), 0), xytext=(0, 6.5 * side), textcoords="offset points", ha="center",
            va="bottom" if side > 0 else "top", fontsize=8, color=readable(colour),
        )  # fmt: skip
    reach = 1.08 * float(s.log().abs().max().clamp(min=0.05))
    ax.set(xscale="log", xlim=(np.exp(-reach), np.exp(reach)), ylim=(-1, 1))
    ax.axis("off")
    text = f"{mask.label}, {setting(mask)}: no wall, but a window for each answer's ratio s"
    ax.set_title(text, fontsize=9, color=readable(mask.colour), pad=14)


def halo() -> withStroke:
    return withStroke(linewidth=2.2, foreground="white")
