"""Chapter 10: how much a prompt of solve rate p counts, and what that does to pass@k."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.exact.strategy_mixture import (
    StrategyMixture,
    easy_and_hard,
    estimator_weight,
    likelihood_weight,
)
from rlbook.objectives import group_normalize, leave_one_out, max_rl
from rlbook.viz.style import MUTED, colour_of, label_lines
from rlbook.viz.widgets import Explorer, slider

ESTIMATORS = {"RLOO": leave_one_out, "GRPO": group_normalize, "MaxRL": max_rl}
COLOURS = {
    "base": MUTED,
    "RLOO": colour_of("rloo"),
    "GRPO": colour_of("grpo"),
    "MaxRL": colour_of("maxrl"),
    "log p": colour_of("lite_ppo"),
}
DASHES = (0, (4, 3))


def weight_explorer(n: int = 16, order: int = 4) -> Explorer:
    """The weight w(p) of ∇p: three estimators with groups of N, and J_T for any T."""
    return Explorer(
        weight_figure,
        hint="N = 2: MaxRL is RLOO. Then N = 64. Find the T whose dashed line hides under MaxRL.",
        figsize=(7.6, 3.9),
        n=slider(2, 64, n, 1, label="group size N"),
        order=slider(1, 64, order, 1, label="order T"),
    )


def weight_figure(fig: Figure, n: int, order: int) -> None:
    """w(p) from the package's estimators, p on a logit axis and w on a logarithmic one."""
    ax = fig.subplots()
    p = torch.linspace(-7, 7, 281, dtype=torch.float64).sigmoid()
    ax.plot(p, likelihood_weight(p), color=COLOURS["log p"], ls=":", label="log p: 1/p")
    for name, estimator in ESTIMATORS.items():
        ax.plot(p, estimator_weight(estimator, n)(p), color=COLOURS[name], label=name)
    label = f"$w_T$, T = {order}"
    ax.plot(p, likelihood_weight(p, order), color="#CC79A7", ls=DASHES, lw=1.5, label=label)
    ax.set(xscale="logit", yscale="log", xlim=(8e-4, 1 - 8e-4), ylim=(0.7, 130))
    ticks = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_yticks((1, 2, 5, 10, 20, 50, 100), (1, 2, 5, 10, 20, 50, 100))
    ax.set(xlabel="solve rate p of a prompt", ylabel="weight of ∇p")
    hard, even = (estimator_weight(max_rl, n)(x).item() for x in (0.01, 0.5))
    ax.set_title(f"N = {n}: MaxRL weighs a 1 % prompt {hard / even:.1f} times a 50 % one")
    ax.legend(loc="upper right")


def mixture_explorer(n: int = 16, hard: int = 8, steps: int = 400) -> Explorer:
    """Exact training of three objectives on easy and hard prompts, and pass@k where it ends."""
    return Explorer(
        mixture_figure,
        hint="lower N to 4: MaxRL gives up like the others. With N = 64, how few hard prompts "
        "does it still defend?",
        figsize=(7.6, 3.4),
        n=slider(2, 64, n, 1, label="group size N"),
        hard=slider(0, 16, hard, 1, label="hard prompts of 16"),
        steps=slider(0, 1000, steps, 50, label="gradient steps"),
    )


def mixture_figure(fig: Figure, n: int, hard: int, steps: int) -> None:
    """Share of the careful strategy along training (left) and pass@k at its end (right)."""
    world, start = easy_and_hard(hard), torch.tensor([0.5, 0.5], dtype=torch.float64)
    paths = {
        name: world.ascend(estimator_weight(estimator, n), start, steps)
        for name, estimator in ESTIMATORS.items()
    }
    left, right = fig.subplots(1, 2)
    for name, path in paths.items():
        left.plot(path[:, 1], color=COLOURS[name], label=name)
    left.set(ylim=(-0.03, 1.03), xlim=(0, max(steps, 1)))
    left.set(title="Share of the careful way", xlabel="exact gradient steps")
    label_lines(left)
    ends = {"base": start} | {name: path[-1] for name, path in paths.items()}
    draw_pass_curves(right, world, ends)
    right.set_title("pass@k at the end")


def draw_pass_curves(
    ax: Axes,
    world: StrategyMixture,
    policies: Mapping[str, Float[Tensor, " S"]],
    ks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
) -> None:
    """Exact pass@k against k, a labelled line per policy; "base" is dashed."""
    for name, probs in policies.items():
        curve = [world.pass_at_k(probs, k).item() for k in ks]
        style = DASHES if name == "base" else "-"
        ax.plot(ks, curve, color=COLOURS.get(name), ls=style, label=name)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks[::2], ks[::2])
    ax.set(xlabel="k", ylabel="pass@k", ylim=(0.28, 1.02))
    label_lines(ax)


def draw_levels(ax: Axes, rates: Mapping[str, Mapping[int, float]], colours=COLOURS) -> None:
    """Solve rate against level, a labelled line per policy."""
    for name, by_level in rates.items():
        style = DASHES if name == "base" else "-"
        levels = np.array(sorted(by_level))
        values = [by_level[level] for level in levels]
        ax.plot(levels, values, "o", ls=style, ms=4, color=colours.get(name), label=name)
    ax.set(xlabel="level (operands)", ylim=(0, 1.02), xticks=levels)
    label_lines(ax)
