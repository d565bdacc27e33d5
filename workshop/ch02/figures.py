"""Chapter 02: worlds small enough to draw, and what a baseline does to the noise of a gradient."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from rlbook.exact import FOUR, FillerPolicy, SoftmaxPolicy, TokenTree
from rlbook.stats import bootstrap_interval
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Trainer
from rlbook.viz import LivePlot
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, readable
from workshop.shared.evidence import FAMILY_COLOURS
from workshop.shared.explorer import Explorer, slider
from workshop.shared.live import LiveFigure
from workshop.shared.opening import quiet_setup as quiet_setup
from workshop.shared.schematic import chapter_map
from workshop.shared.worlds.baseline_cost import (
    baseline_moments,
    constant_baselines,
    relative_noise,
    rollouts_needed,
)

COLOURS = {"none": MUTED, "mean": BAD, "optimal": GOOD}
SOLVE_RATES = tuple(i / 26 for i in range(1, 26))
STEP = 2.5  # learning rate of the steps drawn in the triangle
CORNERS = np.array([(0.5, 3**0.5 / 2), (0.0, 0.0), (1.0, 0.0)])


# --- runs ----------------------------------------------------------------------------------------

YOURS = "1 and 2, minus the mean"
SHADES = {"rewards 0 and 1": "#6b6b6b", "rewards 1 and 2": "#D55E00", YOURS: "#0072B2"}
FOUR_FAMILIES = {name: level for level, name in enumerate(list(FAMILIES)[:4], 1)}
Histories = Mapping[str, Sequence[Mapping[str, float]]]


def opening(runs: Mapping[str, Trainer]) -> LivePlot:
    """First screen: two runs side by side as they train, and the map of the chapter.

    Raises `ValueError` if the point does not cost a fifth of all answers and lengthen the gradient.
    """
    title = "One point more for every answer, and the model learns far less"
    live = LivePlot("accuracy", "grad_norm", title=title, colours=SHADES, smooth=3)
    live.side_by_side(runs)
    chapter_map({"advantages": "reward − baseline", "loss": "−Â log π"})
    plt.show()
    plain, more = (both_ends(live.history).loc[name] for name in runs)
    if plain.iloc[0] < more.iloc[0] + 0.2 or more.iloc[1] < 2 * plain.iloc[1]:
        raise ValueError("the point does not cost what the title says")
    return live


def both_ends(histories: Histories) -> pd.DataFrame:
    """Share right in the last four batches of every run, and the length of its first gradient."""
    runs = {name: pd.DataFrame(rows) for name, rows in histories.items()}
    late = {name: run["accuracy"].tail(4).mean() for name, run in runs.items()}
    first = {name: run["grad_norm"].iloc[0] for name, run in runs.items()}
    return pd.DataFrame({"right, last 4 batches": late, "first gradient": first})


def watch_again(
    live: LivePlot, run: Iterable[Mapping[str, float]], total: int
) -> dict[str, list[Mapping[str, float]]]:
    """A reader's own run beside the two of the first screen; the rows of all three.

    Raises `ValueError` if it does not end well above rewards 1 and 2.
    """
    title = "The mean repairs what one point more had broken"
    again = LivePlot("accuracy", "grad_norm", title=title, colours=SHADES, smooth=3)
    again.history |= live.history
    for _ in again.watch(run, YOURS, total=total):
        pass
    again.close()
    ends = both_ends(again.history)["right, last 4 batches"]
    if ends[YOURS] < ends["rewards 1 and 2"] + 0.15:
        raise ValueError("the mean has not repaired it")
    return dict(again.history)


def watch_families(run: Iterable[Mapping[str, float]], total: int) -> pd.DataFrame:
    """Draw a run as a line per family; the batch at which each first passes one half and .9.

    Judged by means over five batches. Raises `ValueError` if the families do not pass one half in
    the order in which the right rule is frequent.
    """
    title = "The rarer the right rule, the later it passes one half"
    live = LivePlot("share right", title=title, colours=FAMILY_COLOURS, smooth=5)
    parts = {name: f"level {level}" for name, level in FOUR_FAMILIES.items()}
    for _ in live.watch(run, total=total, parts=parts):
        pass
    live.close()
    rows = {name: [row.get("share right", np.nan) for row in live.history[name]] for name in parts}
    smooth = pd.DataFrame(rows).rolling(5, min_periods=1).mean()
    table = pd.DataFrame({f"passes {goal}": first_above(smooth, goal) for goal in (0.5, 0.9)})
    if not table["passes 0.5"].is_monotonic_increasing:
        raise ValueError(f"the families pass one half in another order: {dict(table.iloc[:, 0])}")
    return table


def first_above(curves: pd.DataFrame, goal: float) -> pd.Series:
    """The first batch, counted from 1, at which each column is above a goal, if it ever is."""
    above = curves.gt(goal)
    return (above.idxmax() + 1).where(above.any()).astype("Int64")


def pushed_by(baselines: Sequence[float]) -> pd.DataFrame:
    """The four completions under several baselines: their advantages, and which way each pushes."""
    arrows = {1: "up", 0: "not pushed", -1: "down"}
    table = {"tokens": FOUR.lengths.tolist(), "reward": FOUR.rewards.int().tolist()}
    for number in baselines:
        weights = (FOUR.rewards - number).tolist()
        pushed = [f"{weight:+g}, {arrows[np.sign(weight)]}" for weight in weights]
        table[f"b = {number:g}"] = pushed
    return pd.DataFrame(table, index=FOUR.names)


def three_clouds(
    policy: SoftmaxPolicy, rewards: Float[Tensor, "3"], clouds: Mapping[str, Float[Tensor, "B 3"]]
) -> dict[str, float]:
    """Estimates of one gradient with several baselines; the share of steps that lead downhill."""
    shares = {name: downhill(policy, rewards, cloud) for name, cloud in clouds.items()}
    _, axes = plt.subplots(1, 3, figsize=(8.4, 3.1))
    for ax, (name, cloud) in zip(axes, clouds.items(), strict=True):
        draw_triangle(ax, policy, rewards, cloud)
        ax.set_title(f"{name}:\n{shares[name]:.0%} of the steps go downhill", fontsize=10)
    plt.show()
    return shares


# --- three answers in a triangle -----------------------------------------------------------------


def draw_triangle(
    ax: Axes,
    policy: SoftmaxPolicy,
    rewards: Float[Tensor, "3"],
    gradients: Float[Tensor, "B 3"] | None = None,
    names: Sequence[str] = ("X", "Y", "Z"),
) -> None:
    """A policy over three answers as a point, with the step that the true gradient wants.

    A corner is an answer that is always given; the darker the ground, the higher the expected
    reward. Each row of `gradients` adds the point to which a step along it would lead; the area of
    a dot counts the rows that lead there.
    """
    draw_ground(ax, rewards)
    if gradients is not None:
        ends, times = gradients.round(decimals=9).unique(dim=0, return_counts=True)
        x, y = places(after_steps(policy, ends)).T
        area = 1500 * times.numpy() / len(gradients)  # points²: as many batches, as much ink
        ax.scatter(x, y, s=area.clip(2), color=BAD, alpha=0.6, lw=0, zorder=2)
    true = policy.true_gradient(rewards)[None]
    start, end = places(policy.probs[None])[0], places(after_steps(policy, true))[0]
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=arrow, zorder=4)
    ax.plot(*start, "o", color=INK, ms=7, mec="white", zorder=5)
    for corner, name, reward in zip(CORNERS, names, rewards.tolist(), strict=True):
        up = corner[1] > 0.5
        ax.annotate(
            f"{name}: {reward:g}",
            corner,
            xytext=(0, 5 if up else -5),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=9,
        )
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.13, 1.0), aspect="equal")
    ax.axis("off")


def draw_ground(ax: Axes, rewards: Float[Tensor, "3"], steps: int = 60) -> None:
    """The triangle of distributions over three answers, shaded by expected reward."""
    grid = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    probs = np.array(grid) / steps
    x, y = (probs @ CORNERS).T
    value = probs @ rewards.numpy()
    ax.tricontourf(x, y, value, levels=11, cmap="Greys", alpha=0.32, zorder=0)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=MUTED, lw=0.8, zorder=1)


def after_steps(policy: SoftmaxPolicy, gradients: Float[Tensor, "B 3"]) -> Float[Tensor, "B 3"]:
    """Where one step of gradient ascent along each gradient leads: its probabilities."""
    return (policy.logits + STEP * gradients).softmax(-1)


def places(probs: Float[Tensor, "B 3"]) -> np.ndarray:
    """Distributions over three completions as points of a triangle, (B, 2)."""
    return probs.numpy() @ CORNERS


def downhill(
    policy: SoftmaxPolicy, rewards: Float[Tensor, "3"], gradients: Float[Tensor, "B 3"]
) -> float:
    """Share of the steps after which the expected reward is lower than before."""
    lower = after_steps(policy, gradients) @ rewards < policy.expected_reward(rewards) - 1e-12
    return lower.double().mean().item()


def cloud_explorer(b: float = -1.0, n: int = 8, p: float = 0.2) -> LiveFigure:
    """Gradient estimates for three answers, against baseline, batch and policy.

    The page draws every estimate that a batch can give, the picture a thousand of them.
    """
    return LiveFigure(
        "cloud",
        cloud_figure,
        {"b": b, "n": n, "p": p},
        hint="move b from −1 to the mean, 0.35; then n; then p to 0.85 with b = 0 and 0.9.",
        figsize=(7.6, 3.6),
    )


def cloud_figure(fig: Figure, b: float, n: int, p: float, batches: int = 1000) -> None:
    """Left: where a step along each estimate leads. Right: the exact noise against the baseline."""
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    policy = SoftmaxPolicy.from_probs([p, 0.625 * (1 - p), 0.375 * (1 - p)])
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    y = torch.multinomial(policy.probs, batches * n, True, generator=draw).view(batches, n)
    gradients = ((rewards[y] - b)[..., None] * policy.scores[y]).mean(1)
    draw_triangle(left, policy, rewards, gradients)
    left.set_title(f"{downhill(policy, rewards, gradients):.0%} of the steps go downhill")
    noise = partial(noise_to_signal, policy, rewards, n)
    grid = np.linspace(-1.5, 1.5, 61)
    right.plot(grid, [noise(x) for x in grid], color=INK)
    marks = {"mean": policy.expected_reward(rewards).item(), "here": b}
    for (name, x), colour, side in zip(
        marks.items(), (MUTED, BAD), ((0, -14), (22, 4)), strict=True
    ):
        right.plot(x, noise(x), "o", color=colour, ms=7, mec="white", zorder=3)
        right.annotate(
            name, (x, noise(x)), xytext=side, textcoords="offset points",
            color=readable(colour), ha="center", va="center", fontsize=9,
        )  # fmt: skip
    right.set(xlabel="baseline b", ylabel="noise / signal", ylim=(0, None), xlim=(-1.6, 1.6))
    right.set_title(f"{noise(b):.1f} times as much noise as signal")


def noise_to_signal(policy: SoftmaxPolicy, rewards: Float[Tensor, "3"], n: int, b: float) -> float:
    """Standard deviation of a batch's gradient over the length of its mean."""
    return baseline_moments(policy, rewards, n, b).noise_to_signal


# --- a tree of tokens ----------------------------------------------------------------------------


def draw_token_tree(
    ax: Axes, tree: TokenTree, value: Callable[[tuple[int, ...]], float], symbols: str
) -> None:
    """Every prefix of a tree with its value V, every token with its probability.

    `value` gives the V of a prefix, of a complete answer its reward; `symbols` has a character per
    symbol, STOP last.
    """
    leaves = in_order(tree, ())
    height = {leaf: -row for row, leaf in enumerate(leaves)}

    def node(prefix: tuple[int, ...]) -> float:
        return float(np.mean([height[leaf] for leaf in leaves if leaf[: len(prefix)] == prefix]))

    table = tree.logits.softmax(-1)
    for row, prefix in enumerate(tree.prefixes):
        x, y = len(prefix), node(prefix)
        for token, p in enumerate(table[row].tolist()):
            child = (*prefix, token)
            end = node(child)
            ax.plot([x, x + 0.28, x + 1], [y, end, end], color=MUTED, lw=0.5 + 5 * p, zorder=0)
            ax.text(
                x + 0.3, end + 0.1, f"{symbols[token]}  {p:.2f}".replace("0.", "."), fontsize=8.5,
                va="bottom",
            )  # fmt: skip
            if child in height:
                name = "".join(symbols[i] for i in child)
                mark = "  ✓" if value(child) > 0 else ""
                ax.text(
                    x + 1.05, end, name + mark, fontsize=9, va="center", family="monospace",
                    color=readable(GOOD) if mark else MUTED,
                )  # fmt: skip
        shade = value(prefix)
        box = {"boxstyle": "round,pad=0.3", "fc": mixed(shade), "ec": INK, "lw": 0.8}
        ax.text(x, y, f"V {shade:.2f}".replace("0.", "."), fontsize=8.5, ha="center", va="center",
                bbox=box, color="white" if shade > 0.6 else INK)  # fmt: skip
    ax.set(xlim=(-0.25, tree.max_tokens + 0.55), ylim=(-len(leaves) + 0.4, 0.8))
    ax.axis("off")


def in_order(tree: TokenTree, prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The complete answers that begin with a prefix, STOP between the symbols."""
    if len(prefix) == tree.max_tokens or tree.stop in prefix:
        return [prefix]
    middle = tree.symbols // 2
    tokens = [*range(middle), tree.stop, *range(middle, tree.symbols)]
    return [leaf for token in tokens for leaf in in_order(tree, (*prefix, token))]


def mixed(share: float) -> tuple[float, ...]:
    """White at 0, the blue of right answers at 1."""
    blue = np.array([0.0, 114, 178]) / 255
    return tuple(1 - share + share * blue)


# --- one token decides, others are noise ---------------------------------------------------------


def draw_fillers(ax: Axes, policy: FillerPolicy) -> None:
    """The tokens of the filler world in a row, each cut by its two probabilities."""
    for place, p in enumerate(policy.logits.sigmoid().tolist()):
        decides = place == 0
        x, colours = (
            1.25 * place + 0.35 * (not decides),
            (GOOD, BAD) if decides else (FAINT, "white"),
        )
        for bottom, share, colour in ((0, p, colours[0]), (p, 1 - p, colours[1])):
            ax.add_patch(
                FancyBboxPatch((x, bottom), 1, share, boxstyle="square,pad=0", fc=colour, ec=INK)
            )
        words = ("wrong", "right") if decides else ("0", "1")
        for word, at in zip(words, (p + (1 - p) / 2, p / 2), strict=True):
            colour = "white" if decides else MUTED
            ax.text(x + 0.5, at, word, ha="center", va="center", fontsize=8.5, color=colour)
        ax.text(x + 0.5, -0.06, "decides" if decides else "filler", ha="center", va="top",
                fontsize=8.5, color=MUTED)  # fmt: skip
    ax.set(xlim=(-0.1, 1.25 * len(policy.logits) + 0.4), ylim=(-0.2, 1.05))
    ax.axis("off")


# --- what a baseline costs -----------------------------------------------------------------------


def baseline_explorer(p: float = 0.8, shift: float = 0.0, fillers: int = 0) -> Explorer:
    """Noise of REINFORCE against the baseline and against the solve rate, exact."""
    return Explorer(
        baseline_figure,
        hint="add 1 to all rewards; then p = 0.9 with shift 0 and 0 other tokens; then 8.",
        figsize=(7.6, 3.5),
        p=slider(0.05, 0.95, p, label="solve rate p"),
        shift=slider(-1.0, 1.0, shift, 0.1, label="added to rewards"),
        fillers=slider(0, 8, fillers, 1, label="other tokens"),
    )


def baseline_figure(fig: Figure, p: float, shift: float, fillers: int) -> None:
    """Left: rollouts needed against b at one solve rate. Right: against p, for three baselines."""
    left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
    here = constant_baselines(p, shift, fillers)
    grid = torch.linspace(-1.25, 2.25, 71).tolist()
    left.plot(grid, [rollouts_needed(p, shift, fillers, b) for b in grid], color=INK, zorder=2)
    needed = {name: rollouts_needed(p, shift, fillers, b) for name, b in here.items()}
    top = max(needed.values())
    for name, b in here.items():
        left.plot([b, b], [0, needed[name]], color=COLOURS[name], lw=1.2, ls=(0, (4, 3)))
        left.plot(b, needed[name], "o", color=COLOURS[name], ms=7, zorder=3)
    left.set(xlabel="baseline b", xlim=(-1.25, 2.25), ylim=(-0.06 * top, 1.6 * top + 0.2))
    left.set_ylabel("rollouts until noise = signal")
    left.set_title(verdict(needed["mean"], needed["none"]))
    for name in here:
        curve = [
            rollouts_needed(q, shift, fillers, constant_baselines(q, shift, fillers)[name])
            for q in SOLVE_RATES
        ]
        right.plot(
            SOLVE_RATES, curve, color=COLOURS[name], label=f"{name}, {needed[name]:.2g} here"
        )
    right.axvline(p, color=FAINT, lw=1, zorder=0)
    right.set_yscale("symlog", linthresh=0.1, linscale=0.5)
    right.set(xlabel="solve rate p", ylim=(-0.03, 3000), xlim=(0, 1))
    right.set_yticks([0, 0.1, 1, 10, 100, 1000], ["0", "0.1", "1", "10", "100", "1000"])
    right.set_title("and at every solve rate")
    label_lines(right)


def verdict(mean: float, none: float) -> str:
    """What the mean does to the rollouts that are needed without a baseline, in words."""
    if mean > none:
        return f"The mean costs {mean / none:.2g} times 'none'"
    return f"The mean saves {1 - mean / none:.0%} of 'none'"


# --- pulls that were measured --------------------------------------------------------------------


def draw_pulls(ax: Axes, rewards: Float[Tensor, " N"], pulls: Float[Tensor, " N"]) -> None:
    """Histogram of the pulls of right and of wrong answers, and what the strongest 1 % hold."""
    bins = np.geomspace(pulls.min().item() / 2, pulls.max().item() * 2, 30)
    highest = 0.0
    for right, colour, name in ((1, GOOD, "right"), (0, BAD, "wrong")):
        chosen = pulls[rewards == right].numpy()
        counts, *_ = ax.hist(chosen, bins, color=colour, alpha=0.45, lw=0)
        highest = max(highest, counts.max())
        middle = float(np.median(chosen))
        ax.axvline(middle, color=colour, lw=1.6)
        ax.annotate(
            f"{name}\n{middle:,.0f}", (middle, 1), xycoords=("data", "axes fraction"),
            xytext=(-4 if right else 4, -2), textcoords="offset points", va="top", fontsize=9,
            ha="right" if right else "left", color=readable(colour),
        )  # fmt: skip
    top = pulls.sort(descending=True).values[: max(1, len(pulls) // 100)]
    ax.axvspan(float(top.min()), bins[-1], color=FAINT, alpha=0.6, lw=0, zorder=0)
    share = float(top.sum() / pulls.sum())
    ax.text(
        0.99, 0.55, f"grey: 1 % of the answers,\n{share:.0%} of all pull", fontsize=8.5,
        transform=ax.transAxes, ha="right", color=INK,
    )  # fmt: skip
    ax.set(xscale="log", xlabel="pull of an answer", ylabel="answers", ylim=(0, 1.35 * highest))


def draw_parabola(ax: Axes, measured: Float[np.ndarray, "P G 2"], colour: str, label: str) -> None:
    """Noise against b relative to b = 0, with a band over prompts and marks at b* and the mean.

    `measured` holds reward and pull of G answers to each of P prompts.
    """
    grid = np.linspace(-1.1, 1.1, 111)
    curve, low, high = bootstrap_interval(measured, partial(noise_curve, b=grid), resamples=1000)
    ax.fill_between(grid, low, high, color=colour, alpha=0.18, lw=0)
    ax.plot(grid, curve, color=colour, label=label, zorder=2)
    rewards, pulls = torch.from_numpy(measured.reshape(-1, 2)).T
    best = (pulls @ rewards / pulls.sum()).item()
    for b, marker in ((best, "D"), (rewards.mean().item(), "o")):
        height = relative_noise(rewards, pulls, torch.tensor([b], dtype=torch.float64))
        ax.plot(b, height, marker, color=colour, ms=7, mec="white", zorder=3)


def noise_curve(measured: np.ndarray, axis: int = 0, *, b: np.ndarray) -> np.ndarray:
    """`relative_noise` of prompts drawn whole; `axis` is theirs and must be 0."""
    rewards, pulls = torch.from_numpy(measured.reshape(-1, 2)).T
    return relative_noise(rewards, pulls, torch.from_numpy(b)).numpy()
