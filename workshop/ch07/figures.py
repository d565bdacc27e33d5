"""Chapter 07: what a token weighs, and what that does to the length of right and wrong answers."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.stats import t_interval
from rlbook.viz.style import (
    BAD,
    FAINT,
    GOOD,
    METHOD_COLOURS,
    MUTED,
    label_lines,
    readable,
    use_style,
)
from workshop.ch07.claims import TWO_MEANS
from workshop.shared.evidence import learning_curves, load_results
from workshop.shared.explorer import Explorer, choice, slider
from workshop.shared.schematic import chapter_map, over_a_map, schematic
from workshop.shared.worlds.length_bias import StopPolicy, follow

AVERAGES = ("sequence_mean", "token_mean", "prompt_mean", "constant")
UPDATES, RATE = 40, 1.2


WORLDS = {"it knows when it is lost": "knows", "it cannot tell": "blind", "right takes 8": "needs"}


def stop_world(world: str, p: float = 0.5, stop: float = 0.1) -> tuple[StopPolicy, torch.Tensor]:
    """A policy with its rewards: `knows`, `blind` or `needs` (right answers need 8 tokens)."""
    policy = StopPolicy.of(p, stop, knows=world != "blind")
    long_enough = policy.lengths >= (8 if world == "needs" else 1)
    return policy, policy.rewards * long_enough


def drift_explorer(aggregation: str = "sequence_mean", p: float = 0.5) -> Explorer:
    """Where the expected updates take the lengths of right and wrong answers."""
    return Explorer(
        drift_figure,
        hint="choose the constant. Then back, and a policy that cannot tell.",
        figsize=(7.6, 3.4),
        aggregation=choice(list(AVERAGES), aggregation, label="aggregation"),
        p=slider(0.1, 0.9, p, 0.1, label="P(right path)"),
        world=choice(WORLDS, label="the policy"),
    )


def drift_figure(fig: Figure, aggregation: str, p: float, world: str) -> None:
    """Distribution of the lengths before and after 40 expected updates, for both paths."""
    policy, rewards = stop_world(world, p)
    settings = {"updates": UPDATES, "lr": RATE, "prompts": 4, "constant": 10}
    after = follow(policy, rewards, aggregation, **settings)[-1]
    for ax, right in zip(fig.subplots(1, 2, sharey=True), (True, False), strict=True):
        draw_lengths(ax, policy.length_chances(right), after.length_chances(right), right)
        before, now = policy.mean_length(right), after.mean_length(right)
        path = "Right" if right else "Wrong"
        ax.set_ylabel("share of answers" if right else "")
        ax.set_title(f"{path} path: {before:.1f} → {now:.1f} tokens")


def draw_lengths(ax: Axes, before: Iterable[float], after: torch.Tensor, right: bool) -> None:
    """Both distributions; the last bar is the limit."""
    places, colour = range(1, len(after) + 1), GOOD if right else BAD
    ax.bar(places, after, width=0.9, color=colour, alpha=0.75)
    ax.step([0.5, *(n + 0.5 for n in places)], [*before, before[-1]], where="post", color=MUTED)
    ax.set(xlabel="tokens", ylim=(0, 0.3), xlim=(0, len(after) + 2))
    ax.text(0.97, 0.9, "grey: before", color=MUTED, transform=ax.transAxes, ha="right")
    name = f"after {UPDATES} updates"
    ax.text(0.97, 0.8, name, color=readable(colour), transform=ax.transAxes, ha="right")


SIGMA = {
    "no σ": (METHOD_COLOURS["dr_grpo"], "-", "s"),
    "σ, G = 8": (METHOD_COLOURS["grpo"], "--", "o"),
    "σ, G = 64": (METHOD_COLOURS["grpo"], "-", "o"),
}


def draw_measured_weights(
    ax: Axes,
    rates: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    exact: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> None:
    """Weight of a problem's gradient against its solve rate: exact curves, measured dots."""
    for name, (p, w) in exact.items():
        colour, style, _ = SIGMA[name]
        order = torch.as_tensor(p).argsort(descending=True)  # labels where the hard problems are
        x, y = torch.as_tensor(p)[order], torch.as_tensor(w)[order]
        ax.plot(x, y, ls=style, color=colour, label=name, zorder=1)
    for name, weights in measured.items():
        colour, style, marker = SIGMA[name]
        face = colour if style == "-" else "white"
        ax.plot(rates, weights, marker, color=colour, mfc=face, ms=7, zorder=3)
    ticks = (0.9, 0.5, 0.1, 0.02)
    ax.set_xscale("logit")
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set(xlim=(0.95, 0.009), ylim=(0, 8), xlabel="share of right answers (harder →)")
    ax.set_ylabel("weight of the gradient")
    label_lines(ax)


AGGREGATIONS = {
    "mean per answer": (METHOD_COLOURS["grpo"], "-", "o"),
    "token mean": (METHOD_COLOURS["dapo"], "-", "s"),
}


def draw_shares(
    ax: Axes,
    shares: Mapping[str, Mapping[str, float]],
    arms: Mapping[str, tuple[str, str, str]] = SIGMA,
    of: str = "the gradient's length",
) -> None:
    """Share of each family, a row per family, a mark per arm in its colour, line and marker."""
    families = list(next(iter(shares.values())))
    for name, by_family in shares.items():
        colour, style, marker = arms[name]
        face = colour if style == "-" else "white"
        places = range(len(families))
        dots = [by_family[f] for f in families]
        ax.plot(dots, places, marker, color=colour, mfc=face, ms=7, label=name)
    for row, family in enumerate(families):
        ends = [by_family[family] for by_family in shares.values()]
        ax.plot([min(ends), max(ends)], [row, row], color=FAINT, lw=2, zorder=0)
    ax.set_yticks(range(len(families)), families)
    ax.set(ylim=(len(families) - 0.5, -0.5), xlim=(0, None), xlabel=f"share of {of}")
    ax.grid(axis="y", visible=False)


def gap_table(
    runs: pd.DataFrame, pairs: Sequence[tuple[str, str]], columns: Sequence[str]
) -> pd.DataFrame:
    """First arm minus second, paired by seed: mean and 95 % interval, a column per learning rate.

    `runs` is indexed by lr, arm and seed.
    """
    found = {}
    for first, second in pairs:
        for column in columns:
            by_arm = runs[column].unstack("arm")
            gaps = (by_arm[first] - by_arm[second]).groupby("lr")
            found[f"{first} − {second}", column] = {
                f"lr {lr:g}": interval_text(gap) for lr, gap in gaps
            }
    return pd.DataFrame(found).T


def late_ends(steps: pd.DataFrame, final: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """A row per lr, arm and seed: means over the last five batches, and what was measured after."""
    by_run = ["lr", "arm", "seed"]
    late = steps[steps.step > steps.step.max() - 5].groupby(by_run)
    return late[list(columns)].mean().join(final.set_index(by_run))


def interval_text(values: Iterable[float]) -> str:
    """Mean and 95 % interval, with two digits each: "+11 [-0.05, +22]"."""
    return "{:+.2g} [{:+.2g}, {:+.2g}]".format(*t_interval(list(values)))


def opening() -> None:
    """First screen: how long a lost answer becomes, who reaches the limit, and the map.

    Five seeds of `lost_answers` at the smaller rate. Raises `ValueError` unless every seed of
    GRPO's mean grows by 25 tokens and ends above every seed of the constant.
    """
    use_style()
    steps = load_results("lost_answers")
    runs = steps[
        (steps["lr"] == steps["lr"].min()) & steps["arm"].isin(["mean per answer", "constant"])
    ]
    tokens = runs.pivot(index="step", columns=["arm", "seed"], values="length_lost")
    grown = tokens.iloc[-1] - tokens.iloc[0]
    ends = tokens.iloc[-1]
    if (
        grown["mean per answer"].min() < 25
        or ends["mean per answer"].min() < ends["constant"].max()
    ):
        raise ValueError(f"the titles do not hold: {ends.to_dict()}")
    *axes, below = over_a_map(1, 1)
    chapter_map({"loss": "how much a token counts"}, below)
    for ax, column in zip(axes, ("length_lost", "truncated_lost"), strict=True):
        learning_curves(runs, column, ax)
        ax.set(xlabel="batches", xticks=(1, 5, 10, 15, 20))
    axes[0].set(ylabel="tokens of a lost answer", ylim=(20, 82))
    axes[0].set_title("Divided by their length, lost answers grow")
    axes[1].set(ylabel="share at the limit of 80 tokens", ylim=(0, 1))
    axes[1].set_title("They run until they are cut off")
    plt.show()


def on_the_way() -> None:
    """The four completions on their way through a step of GRPO, without σ."""
    advantage, counts = FOUR.rewards - FOUR.rewards.mean(), 1 / (4 * FOUR.lengths)
    carried = {
        "answers": [f"{n} tokens" for n in FOUR.lengths.tolist()],
        "verdicts": ["right" if reward else "wrong" for reward in FOUR.rewards],
        "rewards": [f"{reward:.0f}" for reward in FOUR.rewards],
        "advantages": [f"{a:+.1f}" for a in advantage],
        "loss": [f"1/{1 / each:.0f}" for each in counts],
        "weights": [f"{push:+.3f}" for push in advantage * counts],
    }
    notes = {"loss": "a token counts", "weights": "a token is pushed"}
    schematic("GRPO's loss is a ruler that shrinks as the answer grows", {"loss"}, carried, notes)
    plt.show()


def four_averages(steps: pd.DataFrame) -> None:
    """Tokens of a lost answer by batch under four ways to average, a panel per learning rate."""
    _, axes = plt.subplots(1, 2, figsize=(9.2, 3.2), sharey=True)
    for ax, (lr, runs) in zip(axes, steps.groupby("lr"), strict=True):
        learning_curves(runs, "length_lost", ax)
        ax.set(ylim=(20, 82), xlabel="batches", ylabel="tokens of a lost answer")
        ax.set(xticks=(1, 5, 10, 15, 20))
        ax.set_title(f"learning rate {lr:g}")
    plt.show()


def who_pays(runs: pd.DataFrame) -> None:
    """How plain sums are answered under two means, ten seeds of `siblings`.

    Raises `ValueError` unless the verbose and the careful answers lose at least half of their
    share, and the ramblers and the broken ones do not.
    """
    named = runs.replace({"arm": TWO_MEANS})
    ways = named.groupby("arm").mean(numeric_only=True).loc[list(AGGREGATIONS)]
    ways = ways.filter(like="share_").rename(columns=lambda name: name.removeprefix("share_"))
    ways = ways[["verbose", "careful", "terse", "ramble", "truncated", "broken"]]
    ratio = ways.loc["mean per answer"] / ways.loc["token mean"]
    if ratio[["verbose", "careful"]].max() > 0.5 or ratio[["ramble", "broken"]].min() < 1:
        raise ValueError(f"the title does not hold: {ratio.to_dict()}")
    _, ax = plt.subplots(figsize=(7.2, 2.8))
    draw_shares(ax, ways.T.to_dict(), AGGREGATIONS, "the answers to plain sums")
    ax.set_title("The verbose and the careful die out, ramblers and broken answers do not")
    ax.legend(frameon=False)
    plt.show()
