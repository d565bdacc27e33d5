"""PPO's clip, drawn from the function the trainer runs."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.objectives import RatioClip, Tokens, surrogate
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, readable
from workshop.shared.live import LiveFigure

RATIOS = (0.4, 1.6)


def clip_explorer(ratio: float = 1.35, eps_low: float = 0.2, eps_high: float = 0.2) -> LiveFigure:
    """Move the ratio and both edges of the trust region; see objective, gradient and mask."""
    return LiveFigure(
        "clip",
        clip_figure,
        {"ratio": ratio, "eps_low": eps_low, "eps_high": eps_high},
        hint="push ρ past 1+ε_high: the left column goes flat, the right one does not. "
        "Then pull it below 1−ε_low.",
        figsize=(7.6, 4.3),
    )


def clip_curves(
    ratio: torch.Tensor, advantage: float, eps_low: float, eps_high: float
) -> dict[str, torch.Tensor]:
    """What `RatioClip` does to tokens with these ratios (T,) and one advantage.

    `objective` is minus the loss, `gradient` its derivative by log π_θ (autograd), `keep` the
    mask, `unclipped` the objective ρA without a trust region.
    """
    logp_old = torch.full_like(ratio, -2.0)  # any value: only the difference of log-probs counts
    logp = (logp_old + ratio.log()).requires_grad_()
    tokens = Tokens.of(logp, logp_old, torch.full_like(ratio, advantage))
    clipped = surrogate(RatioClip(eps_low, eps_high), tokens, logp)
    (gradient,) = torch.autograd.grad(-clipped.loss.sum(), logp)
    return {
        "objective": -clipped.loss.detach(),
        "gradient": gradient,
        "keep": clipped.keep,
        "unclipped": ratio * advantage,
    }


def clip_figure(
    fig: Figure, ratio: float, eps_low: float, eps_high: float, advantage: float = 1.0
) -> None:
    """Objective (above) and gradient (below) against the ratio, for A = ±`advantage`.

    Shaded where `RatioClip` masks the gradient; the dot is a token at `ratio`.
    """
    fig.set_layout_engine("none")  # fixed margins: nothing jumps, and a redraw takes half the time
    spacing = {"left": 0.085, "right": 0.99, "top": 0.925, "bottom": 0.12}
    axes = fig.subplots(
        2, 2, sharex=True, sharey=True, gridspec_kw={**spacing, "wspace": 0.06, "hspace": 0.09}
    )
    grid = torch.linspace(*RATIOS, 601, dtype=torch.float64)
    here = torch.tensor([ratio], dtype=torch.float64)
    for column, a in zip(axes.T, (advantage, -advantage), strict=True):
        curves = clip_curves(grid, a, eps_low, eps_high)
        token = clip_curves(here, a, eps_low, eps_high)
        kept = bool(token["keep"])
        for ax, name in zip(column, ("objective", "gradient"), strict=True):
            shade_masked(ax, grid, curves["keep"])
            ax.axvline(1, color=FAINT, lw=1, zorder=0)
            ax.axhline(0, color=FAINT, lw=1, zorder=0)
            if name == "objective":
                ax.plot(grid, curves["unclipped"], color=MUTED, lw=1, ls=(0, (4, 3)))
            draw_in_pieces(ax, grid, curves[name], curves["keep"], broken=name == "gradient")
            colour = GOOD if kept else BAD
            ax.plot(ratio, token[name], "o", ms=9, color=colour, mec="white", mew=1.5, zorder=5)
        column[0].set_title(verdict(a, float(token["gradient"]), kept))
        column[1].set_xlabel(r"ratio $\rho = \pi_\theta\,/\,\pi_{old}$")
    height = 1.12 * RATIOS[1] * abs(advantage)
    axes[0, 0].set(xlim=RATIOS, ylim=(-height, height), xticks=(0.5, 0.75, 1, 1.25, 1.5))
    label_edges(axes[0, 0], axes[0, 1], eps_low, eps_high)
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel(r"$\partial$ objective / $\partial \log \pi_\theta$")
    fig.align_ylabels()


def verdict(advantage: float, gradient: float, kept: bool) -> str:
    """The title of a panel: advantage, gradient, or that the token is masked."""
    state = f"gradient {gradient:+.2f}" if kept else "masked, gradient 0"
    return f"A = {advantage:+g}: {state}".replace("-", "−")


def draw_in_pieces(ax: Axes, x, y, keep, broken: bool) -> None:
    """The curve, without a vertical stroke where the gradient jumps."""
    pieces = (keep, ~keep) if broken else (torch.ones_like(keep),)
    for piece in pieces:
        ax.plot(x, torch.where(piece, y, torch.nan), color=INK, lw=2)


def shade_masked(ax: Axes, x, keep) -> None:
    """A shade over the ratios at which a token is masked."""
    ax.fill_between(
        x, 0, 1, where=~keep, transform=ax.get_xaxis_transform(), color=BAD, alpha=0.10, lw=0
    )
    masked = x[~keep]
    place = ax.get_subplotspec()
    if place and place.is_first_row() and len(masked) > 60:
        ax.text(
            float(masked.mean()), 0.04, "masked", transform=ax.get_xaxis_transform(),
            ha="center", va="bottom", fontsize=9, color=readable(BAD),
        )  # fmt: skip


def label_edges(positive: Axes, negative: Axes, eps_low: float, eps_high: float) -> None:
    """Name the one edge that acts on each sign of the advantage."""
    edges = (
        (positive, 1 + eps_high, r"$1+\varepsilon_{high}$", -1),
        (negative, 1 - eps_low, r"$1-\varepsilon_{low}$", 1),
    )
    for ax, x, text, side in edges:
        ax.annotate(
            f"{text} = {x:.2f}",
            (x, 0.93),
            xycoords=ax.get_xaxis_transform(),
            xytext=(5 * side, 0),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            va="top",
            fontsize=9,
            color=MUTED,
        )
