"""Chapter 06: two ways to work, what each baseline costs, where a trained model has its noise."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.exact import FOUR
from rlbook.objectives import group_center, group_normalize, leave_one_out
from rlbook.viz.style import FAINT, INK, MUTED, label_lines, readable, use_style
from workshop.shared.evidence import colour_of, draw_map
from workshop.shared.explorer import Explorer, slider
from workshop.shared.schematic import chapter_map, over_a_map, schematic
from workshop.shared.worlds import StrategyMixture, estimator_weight
from workshop.shared.worlds.baseline_cost import cost

COLOURS = {
    "none": colour_of("reinforce"),
    "siblings": colour_of("rloo"),
    "greedy": colour_of("remax"),
}
SIZE_COLOURS = dict(
    zip(
        ("k = 2", "k = 4", "k = 8", "k = 16"),
        ("#b5b5b5", "#8a8a8a", "#5a5a5a", "#1b1b1b"),
        strict=True,
    )
)
ROWS = {
    "reinforce": "none",
    "reinforce_ema": "moving average",
    "reinforce_batch_mean": "batch mean",
    "rloo": "siblings (RLOO)",
    "opo": "by length (OPO)",
    "remax": "greedy (ReMax)",
    "reinforce_plus_plus": "whitened (REINFORCE++)",
    "grpo": "siblings, ÷ σ (GRPO)",
    "ppo": "critic (PPO)",
}
SOLVE_RATES = tuple(i / 40 for i in range(1, 40))


def cost_explorer(n: int = 4, shift: float = 0.0, fillers: int = 6) -> Explorer:
    """Cost of three baselines against the solve rate, for one prompt."""
    return Explorer(
        cost_figure,
        hint="n = 2, then 8; then add 0.5 to the rewards; then 1 other token, rewards 0 and 1.",
        figsize=(7.4, 3.7),
        n=slider(2, 16, n, 1, label="rollouts n"),
        shift=slider(-1.0, 1.0, shift, 0.1, label="added to rewards"),
        fillers=slider(1, 6, fillers, 1, label="other tokens"),
    )


def cost_figure(fig: Figure, n: int, shift: float, fillers: int) -> None:
    """`cost` of none, siblings and greedy against p, on a logarithmic axis."""
    ax = fig.subplots()
    curves = {
        name: [cost(name, p, n, round(shift, 1), fillers) for p in SOLVE_RATES] for name in COLOURS
    }
    for name, curve in curves.items():
        ax.plot(SOLVE_RATES, curve, color=COLOURS[name], label=name)
    ax.axhline(1, color=FAINT, lw=1.5, zorder=0)
    ax.text(0.01, 0.94, "best constant", color=MUTED, fontsize=9, va="center")
    top = max(max(curve) for curve in curves.values())
    ax.set(yscale="log", ylim=(0.87, max(4.5, 1.2 * top)), xlim=(0, 1))
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 300) if t < max(4.5, 1.2 * top)]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.set_yticks([], minor=True)
    ax.set(xlabel="solve rate p", ylabel="rollouts, relative to the best constant")
    wins = {name: 0 for name in COLOURS}
    for values in zip(*curves.values(), strict=True):
        wins[min(zip(values, COLOURS, strict=True))[1]] += 1
    shares = ", ".join(f"{name} {count / len(SOLVE_RATES):.0%}" for name, count in wins.items())
    ax.set_title(f"n = {n}, cheapest at: {shares} of solve rates")
    label_lines(ax)


def draw_borders(ax: Axes, sizes: Sequence[int], fillers: int = 6) -> None:
    """Up to which solve rate is no baseline cheaper than siblings, for each zero of the rewards?"""
    rates = torch.tensor(SOLVE_RATES)
    lines = []
    for shift, shade in ((0.0, "#1b1b1b"), (0.1, "#8a8a8a")):
        borders = []
        for n in sizes:
            cheaper = [cost("none", p, n, shift, fillers) < cost("siblings", p, n, 0.0, fillers)
                       for p in SOLVE_RATES]  # fmt: skip
            borders.append(rates[torch.tensor(cheaper)].max().item() if any(cheaper) else 0.0)
        words = "rewards 0 and 1" if not shift else f"rewards {shift:g} and {1 + shift:g}"
        lines += ax.plot(sizes, borders, "o-", ms=4, color=shade, label=words)
    arrow = {"arrowstyle": "-", "color": MUTED, "lw": 0.8}
    ax.annotate(
        "below: 'none' is cheaper", (2.6, 0.2), (4.2, 0.36), fontsize=9, color=MUTED,
        arrowprops=arrow,
    )  # fmt: skip
    ax.text(7, 0.6, "siblings are cheaper", fontsize=9, color=MUTED)
    ax.set(xlabel="completions n a prompt", ylabel="solve rate p", ylim=(-0.03, 1))
    ax.set_xlim(sizes[0] - 0.3, sizes[-1])
    label_lines(ax, lines)


def draw_ways(ax: Axes, rates: Sequence[Sequence[float]], ways: Sequence[str]) -> None:
    """Solve rates of two ways to work on two prompts, the whole of a `StrategyMixture`."""
    shades = ((MUTED, "white"), ("#b8b8b8", INK))
    for row, (name, values, (shade, ink)) in enumerate(zip(ways, rates, shades, strict=True)):
        places = [prompt + 0.36 * (row - 0.5) for prompt in range(len(values))]
        ax.bar(places, values, width=0.32, color=shade)
        for place, value in zip(places, values, strict=True):
            ax.text(place, value + 0.015, f"{value:g}", ha="center", fontsize=9)
        ax.text(places[0], 0.02, name, rotation=90, ha="center", va="bottom", color=ink,
                fontsize=9.5)  # fmt: skip
    ax.set_xticks([0, 1], ["middling prompt", "hard prompt"])
    ax.set(ylim=(0, 0.68), ylabel="solve rate")
    ax.grid(axis="x", visible=False)


def draw_push(ax: Axes, sizes: Sequence[int], pushes: dict[str, Sequence[float]]) -> None:
    """Expected gradient against the group size, in units of the true one."""
    colours = {"GRPO": colour_of("grpo"), "group mean": colour_of("dr_grpo")}
    ax.axhspan(-8, 0, color="#f3f3f3", zorder=0)
    ax.axhline(0, color=MUTED, lw=1)
    for name, values in pushes.items():
        ax.plot(sizes, values, "o-", ms=4, color=colours.get(name, COLOURS["siblings"]), label=name)
    ax.text(2, -3.3, "the wrong way", color=MUTED, fontsize=9)
    ax.set(xlabel="group size n", xlim=(1.5, sizes[-1] + 0.5), ylim=(-3.6, 1.7))
    ax.set_ylabel("expected gradient / true gradient")
    label_lines(ax)


def draw_concentration(ax: Axes, noise: Mapping[str, Float[Tensor, " T"]]) -> None:
    """Share of the score's noise in the noisiest tokens, a line per policy."""
    shades = {"untrained": "#8a8a8a", "base": colour_of("rloo")}
    lines = []
    for name, values in noise.items():
        held = values.sort(descending=True).values.cumsum(0) / values.sum()
        share = torch.arange(1, len(held) + 1) / len(held)
        lines += ax.plot(share, held, color=shades[name], label=name)
    ax.set(xlabel="share of the tokens, noisiest first", ylabel="share of the noise")
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    for line, place in zip(lines, (0.45, 0.12), strict=True):
        x, y = line.get_data()
        at = int(place * len(x))
        ax.annotate(
            str(line.get_label()), (x[at], y[at]), xytext=(7, -10), textcoords="offset points",
            color=readable(line.get_color()), fontsize=9,
        )  # fmt: skip


def draw_runs(ax: Axes, evaluations: pd.DataFrame, arms: Sequence[str], base: float) -> None:
    """One dot per run and a bar at the mean, a row per arm, without names: goes beside a map."""
    for row, arm in enumerate(arms):
        reached = evaluations.loc[evaluations["arm"] == arm, "pass@1"]
        colour = SIZE_COLOURS.get(arm) or colour_of(arm)
        ax.plot(reached, [row] * len(reached), "o", ms=6, color=colour, alpha=0.5, mew=0)
        ax.plot([reached.mean()] * 2, [row - 0.3, row + 0.3], color=colour, lw=2.5)
    ax.axvline(base, color=MUTED, lw=1, ls=(0, (4, 3)))
    ax.annotate("base", (base, -0.5), (4, -4), textcoords="offset points", va="top",
                color=MUTED, fontsize=9)  # fmt: skip
    ax.set_yticks(range(len(arms)), [])
    ax.set(ylim=(len(arms) - 0.5, -0.5), xlim=(base - 0.03, None), xlabel="pass@1, held out")
    ax.grid(axis="y", visible=False)


def opening() -> None:
    """First screen: a world of two prompts, the gradient of three estimators in it, and the map.

    All expectations are exact. Raises `ValueError` if the group mean does not keep a half of the
    gradient at n = 2, or GRPO does not turn round between six and seven.
    """
    use_style()
    ways = StrategyMixture(torch.tensor([[0.6, 0.01], [0.5, 0.09]]))
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    true = ways.gradient(half, torch.ones_like)[0]
    estimators = {
        "leave-one-out": leave_one_out, "group mean": group_center, "GRPO": group_normalize
    }  # fmt: skip
    sizes = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
    pushes = {
        name: [(ways.gradient(half, estimator_weight(a, n))[0] / true).item() for n in sizes]
        for name, a in estimators.items()
    }
    turn = dict(zip(sizes, pushes["GRPO"], strict=True))
    if abs(pushes["group mean"][0] - 0.5) > 1e-6 or not turn[6] > 0 > turn[7]:
        raise ValueError(f"the title does not hold: {pushes}")
    left, right, below = over_a_map(1, 1.7)
    draw_ways(left, ways.rates.tolist(), ("shortcut", "careful"))
    won, lost = (ways.rates[0] - ways.rates[1]).tolist()
    left.set_title(f"The shortcut wins {won:.2f}\nand loses {-lost:.2f}")
    chapter_map({"advantages": "siblings only", "loss": "one action"}, below)
    draw_push(right, sizes, pushes)
    right.set_title("The group mean loses half its signal\nat n = 2; GRPO turns round at n = 7")
    plt.show()


def one_action_each() -> None:
    """The four completions with RLOO's advantages, and what a whole answer is pushed."""
    siblings = (FOUR.rewards.sum() - FOUR.rewards) / 3
    pushes = (FOUR.rewards - siblings) / 4  # a token's, in a mean over four answers
    columns = {
        "answers": [f"{n} tokens" for n in FOUR.lengths],
        "rewards": [f"{r:g}" for r in FOUR.rewards],
        "advantages": [f"{a:+.2f}" for a in FOUR.rewards - siblings],
        "loss": [f"{n} × {p:+.3f}" for n, p in zip(FOUR.lengths, pushes, strict=True)],
    }
    notes = {"advantages": "siblings only", "loss": "one action"}
    schematic("RLOO: not in one's own baseline", {"advantages", "loss"}, columns, notes)
    plt.show()


def concentration(noise: Mapping[str, Float[Tensor, " T"]]) -> float:
    """Draw `draw_concentration`; the share of the base's noise in its noisiest tenth of tokens.

    Raises `ValueError` unless that is two fifths at least, and the base has less than three tenths
    of the noise of the untrained model.
    """
    top = noise["base"].sort(descending=True).values
    tenth = (top[: len(top) // 10].sum() / top.sum()).item()
    if tenth < 0.4 or noise["base"].sum() > 0.3 * noise["untrained"].sum():
        raise ValueError(f"the title does not hold: {tenth:.2f}")
    _, ax = plt.subplots(figsize=(5.4, 3.2))
    draw_concentration(ax, noise)
    ax.set_title("A trained model has its noise in a few tokens")
    plt.show()
    return tenth


def group_sizes(tuned: pd.DataFrame, final: pd.DataFrame, base: float) -> None:
    """What each group size was tried with, and its ten runs at the best rate.

    Raises `ValueError` unless every size chose the middle rate, and two siblings end last.
    """
    ends = final.groupby("arm")["pass@1"].mean()
    if final["lr"].nunique() > 1 or ends.idxmin() != "k = 2":
        raise ValueError(f"the titles do not hold: {ends.to_dict()}")
    _, axes = plt.subplots(1, 2, figsize=(8.2, 2.7))
    draw_map(axes[0], tuned, base)
    axes[0].set_title("All are best at the middle rate")
    draw_runs(axes[1], final, list(SIZE_COLOURS), base)
    axes[1].set_title("Two siblings fall short,\nfour are enough")
    plt.show()


def rows(tried: pd.DataFrame, reached: pd.DataFrame, base: float) -> None:
    """What each row of the table was tried with, and its runs, the best row first.

    Raises `ValueError` unless no baseline leads and the greedy answer is last.
    """
    best = reached.groupby("arm")["pass@1"].mean().sort_values(ascending=False).index
    if (best[0], best[-1]) != ("reinforce", "remax"):
        raise ValueError(f"the title does not hold: {list(best)}")
    _, axes = plt.subplots(1, 2, figsize=(9.2, 3.8), width_ratios=(1.3, 1))
    in_order = pd.concat([tried[tried["arm"] == arm] for arm in best]).replace({"arm": ROWS})
    draw_map(axes[0], in_order, base)
    axes[0].set_title("What each row was tried with …")
    draw_runs(axes[1], reached, list(best), base)
    axes[1].set_title("… 'none' leads, greedy is last")
    plt.show()
