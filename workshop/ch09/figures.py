"""Chapter 09: which tokens a trust region masks, runs as they go, answers on their windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log1p
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from torch import Tensor

from rlbook.policy import Sampler, load_policy
from rlbook.training import Rollout, collect_rollouts
from rlbook.viz import LivePlot
from rlbook.viz.style import BAD, FAINT, GOOD, METHOD_COLOURS, MUTED, readable
from workshop.ch09.worlds import Moved
from workshop.shared import texts
from workshop.shared.evidence import ARM_COLOURS, colour_of, compare_bars
from workshop.shared.evidence import draw_openings as draw_openings
from workshop.shared.texts import TextPanel

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
WATCHED = ARM_COLOURS | {
    "window 0.0003": WINDOW_COLOURS[0],
    "window 0.03": WINDOW_COLOURS[1],
}
Accuracies = dict[str, list[float]]  # of each run, batch by batch


def opening(sums: pd.DataFrame, rare: pd.DataFrame) -> None:
    """The first screen: masked tokens by their probability, on plain sums and in a rare opening.

    Tables of `workshop.ch09.worlds.opening_tokens`. The titles say how many of the masked tokens
    belong to right answers.
    """
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.2), sharey=True)
    for ax, world, tokens in zip(axes, ("Plain sums", "A rare opening"), (sums, rare), strict=True):
        draw_silenced(ax, tokens, "PPO")
        good = (tokens[tokens.PPO.eq(0)].advantage > 0).mean()
        ax.set_title(f"{world}: {good:.0%} of them in right answers")
    axes[1].legend()
    title = "Tokens whose gradient PPO's clip sets to 0"
    fig.suptitle(title, x=0.01, ha="left", weight="bold")
    plt.show()


def watch(
    policies: Mapping[str, tuple],
    runs: Mapping[str, Iterator],
    total: int,
    finding: Callable[[Accuracies], str],
) -> Accuracies:
    """Draw the accuracy of several runs as they go, and return it.

    `finding` gives the title when all have ended, or raises where the runs say something else.
    """
    live = LivePlot("accuracy", colours=WATCHED)
    live.side_by_side(runs, policies, total)
    history = {name: [row["accuracy"] for row in rows] for name, rows in live.history.items()}
    live.title = finding(history)
    live.close()
    return history


def sooner(arm: str, than: str) -> Callable[[Accuracies], str]:
    """A finding: by how many batches one arm passes one half before another."""

    def half(accuracy: list[float]) -> float:
        k = next(k for k, value in enumerate(accuracy) if value > 0.5)
        return k + 1 - (accuracy[k] - 0.5) / (accuracy[k] - accuracy[k - 1])

    def finding(history: Accuracies) -> str:
        ahead = half(history[than]) - half(history[arm])
        if ahead <= 0:
            raise ValueError(f"{arm} is not sooner than {than}: {ahead:+.2f} batches")
        return f"{arm} passes one half {ahead:.1f} batches before {than}"

    return finding


def last(arm: str) -> Callable[[Accuracies], str]:
    """A finding: that an arm is behind all others over the last three batches."""

    def finding(history: Accuracies) -> str:
        ends = {name: late(values) for name, values in history.items()}
        if min(ends, key=lambda name: ends[name]) != arm:
            raise ValueError(f"the {arm} does not end last: {ends}")
        return f"The {arm} ends last"

    return finding


def late(accuracy: Sequence[float]) -> float:
    """Mean over a run's last three batches."""
    return sum(accuracy[-3:]) / 3


def before_after(policy: tuple, world: Any, n: int = 4) -> TextPanel:
    """Answers of the base and of `policy` to one problem, tinted by how log π has changed."""
    base, problem = load_policy("tiny"), world.sample(0, 1)

    def answers(of: tuple) -> list[Rollout]:
        engine = Sampler(of[0], of[1].eos_token_id)
        return collect_rollouts(engine, of[1], world, problem, n=n, seed=0, max_new_tokens=12)

    was, now = answers(base), answers(policy)
    change = texts.log_prob_change(was, base[0], policy[0])
    name = "change of log π"
    return texts.before_after(problem[0], was, now, change, base[1], push_name=name)


def sum_and_mean(moved: Moved, window: tuple[float, float] = (3e-4, 4e-4)) -> None:
    """A dot per answer: its length against the sum and against the mean of its log-ratios."""
    _, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    draw_answers(left, moved.length, moved.log_sum, moved.good)
    draw_answers(right, moved.length, moved.log_s, moved.good, window=window)
    left.set(title="Sum of the log-ratios", ylabel="log-ratio of the answer")
    right.set(title="Mean of them; the line is GSPO's window")
    plt.show()


def draw_silenced(ax: Axes, tokens: pd.DataFrame, method: str) -> None:
    """Share of the tokens of each band of π_old that a method masks, by the sign of Â.

    `tokens` as in `tokens_in_turn`.
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
