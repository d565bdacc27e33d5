"""Chapter 10: how much a prompt of solve rate p counts, and what that does to pass@k."""

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.evaluation import right_counts, summary
from rlbook.exact import FOUR
from rlbook.objectives import group_normalize, leave_one_out, max_rl
from rlbook.stats import bootstrap_interval, pass_at_k, t_interval
from rlbook.training import Rollout
from rlbook.viz.style import INK, MUTED, label_lines, use_style
from workshop.shared.evidence import batches_until, colour_of, compare_bars, learning_curves
from workshop.shared.explorer import Explorer, slider
from workshop.shared.live import LiveFigure
from workshop.shared.schematic import chapter_map, schematic
from workshop.shared.worlds.strategy_mixture import (
    StrategyMixture,
    easy_and_hard,
    estimator_weight,
    likelihood_weight,
    truncated_log_likelihood,
)

ESTIMATORS = {"RLOO": leave_one_out, "GRPO": group_normalize, "MaxRL": max_rl}
COLOURS = {
    "base": MUTED,
    "RLOO": colour_of("rloo"),
    "GRPO": colour_of("grpo"),
    "MaxRL": colour_of("maxrl"),
    "log p": colour_of("lite_ppo"),
    "pass@16": "#CC79A7",
}
DASHES = (0, (4, 3))
ANY_ORDER = COLOURS["pass@16"]  # of an order, or a k, that no method of the chapter has: dashed
OPENINGS = {"at once": "</think>", "so": "so ", "check": "check "}
OPENING_COLOURS = {
    "at once": "#9a3d14",
    "so": "#7fb3d5",
    "check": "#1f6f9f",
    "works it out": "#c9d8e2",
}


def weight_explorer(n: int = 16, order: int = 4) -> LiveFigure:
    """The weight w(p) of ∇p: three estimators with groups of N, and J_T for any T."""
    methods = [
        {"label": name, "colour": COLOURS[name], "advantage": estimator.__name__}
        for name, estimator in ESTIMATORS.items()
    ]
    return LiveFigure(
        "weight",
        weight_figure,
        {"n": n, "order": order},
        hint="N = 2: MaxRL is RLOO. Then N = 64. Find the T whose dashed line hides under MaxRL.",
        figsize=(7.6, 3.9),
        methods=methods,
        log=COLOURS["log p"],
        any=ANY_ORDER,
    )


def weight_figure(fig: Figure, n: int, order: int) -> None:
    """w(p) from the package's estimators; harder prompts to the right, where the labels are."""
    ax = fig.subplots()
    p = torch.linspace(7, -7, 281, dtype=torch.float64).sigmoid()
    ax.plot(p, likelihood_weight(p), color=COLOURS["log p"], ls=":", label="log p: 1/p")
    for name, estimator in ESTIMATORS.items():
        ax.plot(p, estimator_weight(estimator, n)(p), color=COLOURS[name], label=name)
    label = f"$w_T$, T = {order}"
    ax.plot(p, likelihood_weight(p, order), color=ANY_ORDER, ls=DASHES, lw=1.5, label=label)
    weight_axes(ax, ylim=(0.7, 1300))
    hard, even = (estimator_weight(max_rl, n)(x).item() for x in (0.01, 0.5))
    ax.set_title(f"N = {n}: MaxRL weighs a 1 % prompt {hard / even:.1f} times a 50 % one")
    label_lines(ax)


def weight_axes(ax: Axes, ylim: tuple[float, float]) -> None:
    """Solve rate on a logit axis from easy to hard, the weight of ∇p on a logarithmic one."""
    ax.set(xscale="logit", yscale="log", xlim=(1 - 8e-4, 8e-4), ylim=ylim)
    ticks = (0.999, 0.99, 0.9, 0.5, 0.1, 0.01, 0.001)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xticks([], minor=True)
    marks = [y for y in (0.01, 0.1, 1, 2, 5, 10, 20, 50, 100, 1000) if ylim[0] <= y <= ylim[1]]
    ax.set_yticks(marks, [f"{y:g}" for y in marks])
    ax.set_yticks([], minor=True)
    ax.set(xlabel="solve rate p of a prompt (harder →)", ylabel="weight of ∇p")


def draw_weights(ax: Axes, weights: Mapping[str, Float[Tensor, " P"]], p: Tensor) -> None:
    """A labelled line per objective; one that is not a method of the chapter is dashed."""
    for name, w in weights.items():
        style = "-" if name in COLOURS else DASHES
        ax.plot(p, w, color=COLOURS.get(name, ANY_ORDER), ls=style, label=name)
    weight_axes(ax, ylim=(0.01, 40))
    label_lines(ax)


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


def draw_election(ax: Axes, world: StrategyMixture, orders: Sequence[int]) -> None:
    """J_T against the share of the second strategy, maxima marked, a labelled line per order T."""
    share = torch.linspace(0.002, 1, 500, dtype=torch.float64)
    rates = world.solve_rates(torch.stack([1 - share, share], dim=1))
    known = {1: ("RLOO", "T = 1: RLOO"), 15: ("MaxRL", "T = 15: MaxRL, N = 16")}
    for order in orders:
        name, label = known.get(order, ("", f"T = {order}"))
        J = truncated_log_likelihood(rates, order).mean(-1)
        style = {"color": COLOURS.get(name, ANY_ORDER), "ls": "-" if name else DASHES}
        ax.plot(share, J - J.max(), lw=1.6, label=label, **style)
        ax.plot(share[J.argmax()], 0, "o", color=style["color"], clip_on=False, zorder=5)
    ax.set(xlabel="share of the careful way", ylabel="$J_T$, maximum moved to 0")
    ax.set(ylim=(-0.45, 0.03), xlim=(0, 1))
    label_lines(ax)


def opening_of(rollout: Rollout) -> str:
    """How an answer to a prompt that ends with `<think>` begins."""
    starts = (name for name, text in OPENINGS.items() if rollout.text.startswith(text))
    return next(starts, "works it out")


def one_of_each(rollouts: Sequence[Rollout], levels: Sequence[int]) -> list[Rollout]:
    """Of the first problem of each level, the first answer with each opening."""
    chosen = []
    for level in levels:
        first = next(r.problem for r in rollouts if r.problem.level == level)
        answers = [r for r in rollouts if r.problem == first]
        chosen += [
            next(r for r in answers if opening_of(r) == name)
            for name in OPENING_COLOURS
            if name in map(opening_of, answers)
        ]
    return chosen


def opening_shares(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Share of each opening."""
    found = Counter(map(opening_of, rollouts))
    return {name: found[name] / len(rollouts) for name in OPENING_COLOURS}


def draw_openings(ax: Axes, policies: Mapping[str, Sequence[Rollout]]) -> None:
    """A bar per policy, cut by the share of each opening; wide parts carry their name."""
    for row, rollouts in enumerate(policies.values()):
        left = 0.0
        for name, share in opening_shares(rollouts).items():
            ax.barh(row, share, left=left, color=OPENING_COLOURS[name], height=0.7)
            if share > 0.14:
                ink = "white" if name in ("at once", "check") else INK
                ax.text(left + share / 2, row, name, ha="center", va="center", color=ink, size=8.5)
            left += share
    ax.set_yticks(range(len(policies)), list(policies))
    ax.set(ylim=(len(policies) - 0.5, -0.5), xlim=(0, 1), xlabel="share of answers that open so")
    ax.grid(visible=False)


def draw_sampled_pass_curves(
    ax: Axes,
    policies: Mapping[str, Sequence[Rollout]],
    ks: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
) -> None:
    """pass@k of sampled policies with 95 % bootstrap bands over prompts, a labelled line each."""
    lines = []
    for name, rollouts in policies.items():
        right = right_counts(rollouts)
        samples = len(rollouts) // len(right)
        bands = [bootstrap_interval(pass_at_k(samples, right, k), resamples=2_000) for k in ks]
        mean, low, high = zip(*bands, strict=True)
        style = {"color": COLOURS[name], "ls": DASHES if name == "base" else "-"}
        ax.fill_between(ks, low, high, color=COLOURS[name], alpha=0.12, lw=0)
        lines += ax.plot(ks, mean, label=name, **style)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, ks)
    ax.set(xlabel="k", ylabel="pass@k", ylim=(0, 1.02))
    label_lines(ax, lines)


def opening(policies: Mapping[str, Sequence[Rollout]]) -> None:
    """First screen: how base and RLOO open, their pass@k, and the map of the chapter.

    Raises `ValueError` if RLOO does not gain at one try, or does not lose at sixteen.
    """
    use_style()
    found = {name: summary(rollouts, ks=(1, 16)) for name, rollouts in policies.items()}
    gained, lost = (found["RLOO"][k] - found["base"][k] for k in ("pass@1", "pass@16"))
    if gained <= 0 or lost >= 0:
        raise ValueError(f"RLOO changes pass@1 by {gained:+.3f} and pass@16 by {lost:+.3f}")
    openings_and_passes(policies, ("RLOO stops guessing", "It loses what guesses solved"))
    chapter_map({"advantages": "relative to the solve rate"})
    plt.show()


def openings_and_passes(policies: Mapping[str, Sequence[Rollout]], titles: tuple[str, str]) -> None:
    """How the answers of each policy begin, and their pass@k."""
    _, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.2), width_ratios=(1.15, 1))
    draw_openings(left, policies)
    left.set_title(titles[0])
    draw_sampled_pass_curves(right, policies)
    right.set_title(titles[1])
    plt.show()


def found_out(policies: Mapping[str, Sequence[Rollout]], ks: Sequence[int]) -> pd.DataFrame:
    """Share of guesses and pass@k of every policy, from its answers."""
    table = pd.DataFrame({name: summary(r, ks=ks) for name, r in policies.items()}).T
    table.insert(0, "guesses", [opening_shares(r)["at once"] for r in policies.values()])
    return table[["guesses", *(f"pass@{k}" for k in ks)]].astype(float)


def two_advantages() -> None:
    """The four completions with MaxRL's advantage and RLOO's."""
    maxrl, rloo = max_rl(FOUR.rewards, FOUR.groups), leave_one_out(FOUR.rewards, FOUR.groups)
    carried = {
        "verdicts": ["right" if reward else "wrong" for reward in FOUR.rewards],
        "rewards": [f"{reward:.0f}" for reward in FOUR.rewards],
        "advantages": [f"{a:+.0f} · {b:+.2f}" for a, b in zip(maxrl, rloo, strict=True)],
        "loss": ["1/16"] * 4,
    }
    notes = {"advantages": "MaxRL · RLOO", "loss": "a token counts"}
    schematic(
        "A reward, measured by how often its prompt is solved", {"advantages"}, carried, notes
    )
    plt.show()


def three_tries(runs: pd.DataFrame, base: Mapping[str, float]) -> None:
    """`draw_ends` in one call."""
    _, axes = plt.subplots(1, 3, figsize=(9.4, 2.7), sharey=True)
    draw_ends(axes, runs, base)
    for ax, title in zip(axes, ("One try", "Sixteen tries", "Sixty-four tries"), strict=True):
        ax.set_title(title)
    plt.show()


def draw_ends(axes: Sequence[Axes], runs: pd.DataFrame, base: Mapping[str, float]) -> None:
    """pass@1, @16 and @64 of every run: a panel each, a row per arm and learning rate."""
    rows = runs.assign(arm=[f"{arm}, lr {lr:g}" for arm, lr in zip(runs.arm, runs.lr, strict=True)])
    colours = {row: COLOURS[row.partition(",")[0]] for row in rows.arm}
    for ax, k in zip(axes, ("pass@1", "pass@16", "pass@64"), strict=True):
        compare_bars(rows, k, ax, within=(0, 1), colours=colours)
        ax.axvline(base[k], color=COLOURS["base"], ls=DASHES, lw=1)
        ax.set_xlim(0, None)


CLASSIFIERS = {"RL": "RLOO", "MaxRL, N = 4": "", "MaxRL, N = 16": "MaxRL", "MaxRL, N = 64": ""}


def draw_classifiers(ax: Axes, curves: Mapping[str, Sequence[float]]) -> None:
    """Solve rate of held-out examples over updates, a labelled line per objective."""
    for name, curve in curves.items():
        colour = COLOURS.get(CLASSIFIERS.get(name, "log p"), ANY_ORDER)
        style = DASHES if CLASSIFIERS.get(name) == "" else "-"
        ax.plot(range(1, len(curve) + 1), curve, color=colour, ls=style, label=name)
    ax.set(xlabel="updates", ylabel="solve rate, held out", ylim=(0, 1), xlim=(0, None))
    label_lines(ax)


def draw_price(axes: Sequence[Axes], steps: pd.DataFrame, levels: Mapping[int, str]) -> None:
    """Share of right answers over the batches, a panel per family, mean and interval over seeds."""
    for ax, (level, title) in zip(axes, levels.items(), strict=True):
        learning_curves(steps, f"accuracy_level_{level}", ax, smooth=3)
        ax.set(ylim=(0, 1), xlabel="batches", ylabel="", title=title)
    axes[0].set_ylabel("share of right answers")


def rare_families(steps: pd.DataFrame) -> None:
    """`draw_price` for plain sums and the three rarest families, in one call."""
    _, axes = plt.subplots(1, 4, figsize=(11.5, 2.9), sharey=True)
    draw_price(axes, steps, {1: "Plain sums", 4: "Precedence", 5: "Powers", 6: "Squares"})
    plt.show()


def half_times(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Batches until the mean of five exceeds ½, by seed (rows) and arm."""
    return batches_until(steps, column, over=5, runs=("seed", "arm")).unstack("arm")


def lead_at_each_rate(steps: pd.DataFrame, families: Mapping[int, str]) -> pd.DataFrame:
    """What MaxRL is ahead of RLOO at one and the same learning rate: the map `habits_rates`.

    A row per rate and family, batches until half are right, and one per rate for the share of plain
    sums that are right in batches 6 to 15; means over seeds and the paired difference.
    """
    rows = {}
    for lr, of_rate in steps.groupby("lr"):
        measured = {
            f"{family}: half are right": half_times(of_rate, f"accuracy_level_{level}")
            for level, family in families.items()
        }
        early = of_rate[of_rate["step"].between(6, 15)]
        plain = early.pivot_table(values="accuracy_level_1", index="seed", columns="arm")
        for what, table in (measured | {"plain sums, batches 6 to 15": plain}).items():
            gap, digits = t_interval(table["RLOO"] - table["MaxRL"]), 2 if table is plain else 1
            means = {arm: f"{table[arm].mean():.{digits}f}" for arm in ("RLOO", "MaxRL")}
            low, high = f"{gap.low:.{digits}f}", f"{gap.high:.{digits}f}"
            rows[f"{lr:g}", what] = means | {
                "RLOO − MaxRL": f"{gap.mean:.{digits}f} [{low}, {high}]"
            }
    return pd.DataFrame(rows).T
