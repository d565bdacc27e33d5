"""Chapter 11: which tokens a ratio stops and which a divergence stops, over real batches."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.objectives import DivergenceMask, RatioClip, TrustRegion, token_ratio
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, readable
from rlbook.viz.widgets import Explorer, choice, slider

BOTH = "#7a5195"
PROBS, RATIOS = (5e-4, 0.9995), (0.02, 50.0)
PROB_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99)

Moved = tuple[Float[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, " M"]]


def stopped(
    region: TrustRegion,
    logp: Float[Tensor, "..."],
    logp_old: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
) -> Bool[Tensor, "..."]:
    """Tokens with an advantage whose gradient `region` takes away."""
    keep = region(logp, logp_old, token_ratio(logp, logp_old), advantages).keep
    return ~keep & (advantages != 0)


def divergence_explorer(batches: Mapping[str, Moved]) -> Explorer:
    """The clip of DAPO against DPPO's mask, over tokens (log π_θ, log μ, A) of named batches."""
    tokens = choice({name: name for name in batches}, label="tokens")

    def draw(fig: Figure, tokens: str, kind: str, delta: float) -> None:
        divergence_figure(fig, batches[tokens], kind, delta)

    return Explorer(
        draw,
        hint="lower δ until DPPO stops as many tokens as the clip: they are not the same ones. "
        "Then switch to kl, with δ near 0.05.",
        figsize=(7.6, 4.4),
        tokens=tokens,
        kind=choice(["tv", "kl"], label="divergence"),
        delta=slider(0.01, 0.5, 0.15, 0.01, label="δ"),
    )


def divergence_figure(fig: Figure, moved: Moved, kind: str, delta: float) -> None:
    """Probability when sampled against the ratio, one panel per sign of the advantage."""
    fig.set_layout_engine("none")
    clip, mask = RatioClip(0.2, 0.28), DivergenceMask(kind, delta, delta)
    logp, logp_old, advantages = moved
    for left, sign in ((0.085, 1), (0.55, -1)):
        ax = fig.add_axes((left, 0.125, 0.435, 0.68))
        shade(ax, clip, mask, sign)
        chosen = advantages * sign > 0
        here = logp[chosen], logp_old[chosen], advantages[chosen]
        draw_tokens(ax, *here, stopped(clip, *here), stopped(mask, *here))
        ax.set(xscale="logit", yscale="log", xlim=PROBS, ylim=RATIOS, xlabel=r"probability $\mu$")
        ax.set_yticks([0.02, 0.1, 0.5, 1, 2, 10, 50], ["0.02", "0.1", "0.5", "1", "2", "10", "50"])
        ax.set_xticks(PROB_TICKS, [f"{p:g}" for p in PROB_TICKS])
        ax.minorticks_off()
        ax.set_title(f"A {'>' if sign > 0 else '<'} 0, {int(chosen.sum())} tokens", fontsize=10)
        if sign > 0:
            ax.set_ylabel(r"ratio $\pi_\theta/\mu$")
        else:
            ax.tick_params(labelleft=False)
    headline(fig, stopped(clip, *moved), stopped(mask, *moved))


def shade(ax: Axes, clip: TrustRegion, mask: TrustRegion, sign: int) -> None:
    """Colour the plane by who stops a token there; grey is where π_θ would exceed 1."""
    x = torch.linspace(*torch.tensor(PROBS).logit(), 300).sigmoid().log()
    y = torch.linspace(*torch.tensor(RATIOS).log(), 300)
    y, x = torch.meshgrid(y, x, indexing="ij")
    advantage = torch.full_like(x, float(sign))
    by_clip = stopped(clip, x + y, x, advantage)
    by_mask = stopped(mask, (x + y).clamp(max=0), x, advantage) & (x + y <= 0)
    edges = x.exp().numpy(), y.exp().numpy()
    for part, colour in (
        (by_clip & ~by_mask, BAD),
        (by_mask & ~by_clip, GOOD),
        (by_clip & by_mask, BOTH),
    ):
        part = part & (x + y <= 0)
        ax.contourf(*edges, part.float().numpy(), levels=[0.5, 1.5], colors=[colour], alpha=0.17)
    impossible = (x + y > 0).float().numpy()
    ax.contourf(*edges, impossible, levels=[0.5, 1.5], colors=["#eeeeee"])
    ax.axhline(1, color=FAINT, lw=1, zorder=1)
    ax.text(0.97, 0.94, "π > 1", transform=ax.transAxes, color=MUTED, fontsize=9, ha="right")


def draw_tokens(ax: Axes, logp, logp_old, advantages, by_clip, by_mask) -> None:
    """A point per token, in the colour of what stops it."""
    ratio = (logp - logp_old).exp().clamp(*RATIOS)
    for part, colour, size in (
        (~by_clip & ~by_mask, MUTED, 6),
        (by_clip & ~by_mask, BAD, 16),
        (by_clip & by_mask, BOTH, 16),
        (by_mask & ~by_clip, GOOD, 22),
    ):
        x = logp_old[part].exp().clamp(*PROBS)
        ax.scatter(x, ratio[part], s=size, color=colour, alpha=0.6, lw=0, zorder=3)


def headline(fig: Figure, by_clip, by_mask) -> None:
    """Counts, each in its colour."""
    parts = (
        (f"clip only: {int((by_clip & ~by_mask).sum())}", BAD),
        (f"both: {int((by_clip & by_mask).sum())}", BOTH),
        (f"DPPO only: {int((by_mask & ~by_clip).sum())}", GOOD),
    )
    fig.text(0.085, 0.93, "Stopped by", fontsize=11, weight="bold", color=INK)
    for x, (text, colour) in zip((0.225, 0.40, 0.52), parts, strict=True):
        fig.text(x, 0.93, text, fontsize=11, weight="bold", color=readable(colour))
