"""Chapter 08: how far a rare token may go, and whom a length limit blames."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.exact import rare_token_world, reuse_batches
from rlbook.objectives import NoTrustRegion, RatioClip
from rlbook.viz.style import FAINT, INK, METHOD_COLOURS, MUTED, label_lines
from rlbook.viz.widgets import Explorer, choice, slider

COLOURS = {
    "GRPO": METHOD_COLOURS["grpo"],
    "+ clip-higher": "#E69F00",
    "+ token mean": "#56B4E9",
    "+ overlong ramp": "#882255",
    "+ overlong filter": "#CC79A7",
    "+ dynamic sampling": "#6b6b6b",
    "DAPO": METHOD_COLOURS["dapo"],
}
CLIPS = {"0.2": COLOURS["GRPO"], "0.28": COLOURS["DAPO"], "no clip": MUTED}
BLAME = {"cliff": COLOURS["GRPO"], "ramp": COLOURS["+ overlong ramp"], "filter": "#b8860b"}
BATCHES = 30


def rare_explorer(rare: float = 0.01, eps_high: float = 0.28, updates: int = 16) -> Explorer:
    """The world of section 1: one batch from the inside, then batch after batch."""
    return Explorer(
        rare_figure,
        hint="4 updates: nothing is clipped. Then 32, then 8 with ε_high above ½.",
        figsize=(7.6, 3.5),
        rare=choice({"0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05}, rare, label="good token at"),
        eps_high=slider(0.05, 1.0, eps_high, 0.01, label="ε_high"),
        updates=slider(1, 32, updates, 1, label="updates per batch"),
    )


def rare_figure(fig: Figure, rare: float, eps_high: float, updates: int) -> None:
    """Ratio of the rare token within the first batch (left), its probability per batch (right)."""
    world = rare_token_world(rare)
    regions = {
        "no clip": NoTrustRegion(),
        "0.2": RatioClip(0.2, 0.2),
        "yours": RatioClip(0.2, eps_high),
    }
    colours = CLIPS | {"yours": COLOURS["DAPO"]}
    batches = min(4 * BATCHES, max(BATCHES, 480 // updates))  # enough for the good token to win
    left, right = fig.subplots(1, 2)
    for name, region in regions.items():
        inside = [
            reuse_batches(*world, region, 1, updates=k).probs[-1, 0] for k in range(updates + 1)
        ]
        left.plot([p / rare for p in inside], "o-", ms=3, color=colours[name], label=name)
        run = reuse_batches(*world, region, batches, updates)
        right.plot(run.probs[: BATCHES + 1, 0], color=colours[name], label=name)
    for eps, name in ((0.2, "0.2"), (eps_high, "yours")):
        left.axhline(1 + eps, color=colours[name], lw=0.9, ls=(0, (4, 3)))
    left.set(xlabel="updates on the first batch", ylabel="ratio of the good token")
    left.set(yscale="log", xlim=(0, max(updates, 4) * 1.02), ylim=(0.93, 7))
    left.set_yticks((1, 1.2, 1.5, 2, 3, 5), (1, 1.2, 1.5, 2, 3, 5))
    left.set_yticks([], minor=True)
    left.xaxis.get_major_locator().set_params(integer=True)
    label_lines(left)
    masked, grown = run.masked[0, 0].item(), inside[-1] / rare  # the last region is yours
    left.set_title(f"ε_high {eps_high:.2f}: grows ×{grown:.2f}, {masked:.0%} masked")
    right.set(xlabel="batches", ylabel="probability of the good token", ylim=(-0.02, 1.02))
    half = run.batches_until(0)
    right.set_title(f"Past ½ after {half} batches" if half else f"Not past ½ in {batches} batches")
    right.axhline(0.5, color=FAINT, lw=1, zorder=0)


def draw_pushes(
    axes: Sequence[Axes], cut: Sequence[float], pushes: Mapping[str, torch.Tensor]
) -> None:
    """Push on the choice of the careful way, and on stopping there, against the share cut off.

    `pushes` holds a (len(cut), 2) tensor per rule.
    """
    titles = ("Take the careful way?", "Stop earlier there?")
    for column, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        ax.axhline(0, color=INK, lw=0.9)
        for name, values in pushes.items():
            ax.plot(cut, values[:, column], color=BLAME[name], label=name)
        ax.set(title=title, xlabel="share of careful answers cut off", xlim=(0, 1))
        label_lines(ax)
    axes[0].set_ylabel("expected push on the logit")
