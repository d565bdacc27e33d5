"""Chapter 12: claims, gradients compared, a grid of choices, prices of entropy, the law."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from rlbook.objectives import Method, group_center, group_normalize, leave_one_out
from rlbook.stats import t_interval
from rlbook.stats.differences import holm, paired_differences
from rlbook.training import Rollout, Trainer
from rlbook.viz.style import BAD, FAINT, GOOD, INK, MUTED, label_lines, use_style
from workshop.ch12.factorial import Factorial
from workshop.shared.evidence import (
    at_each_rate,
    by_arm,
    colour_of,
    draw_differences,
    ladder,
    load_results,
    short,
)
from workshop.shared.schematic import chapter_map, over_a_map
from workshop.shared.worlds.strategy_mixture import estimator_weight

Push = Callable[[Trainer, Method, Sequence[Rollout]], Float[Tensor, " P"]]
Slope = Callable[[Trainer, Sequence[Rollout]], Float[Tensor, " P"]]

WORLDS = {"sums": "#0072B2", "habits": "#B4491F"}


# What the grid crosses: a column, one of its choices, and the choice that it is compared with.
CONTRASTS = {
    "group σ, not none": ("normalisation", "group σ", "none"),
    "batch σ, not none": ("normalisation", "batch σ", "none"),
    "batch σ, not group σ": ("normalisation", "batch σ", "group σ"),
    "mean over tokens": ("average", "over tokens", "per answer"),
    "clip-higher": ("clip", "higher", "symmetric"),
    "overlong filter": ("overlong", "filtered", "wrong"),
}
# Policy and data, each with its colour.
CONDITIONS = {
    ("base", "easy"): "#56B4E9",
    ("base", "hard"): "#004488",
    ("trained", "easy"): "#E69F00",
    ("trained", "hard"): "#7a1032",
}
# The paper's claims: a contrast and where it is made; for a claim that the contrast is larger there
# than elsewhere, the other place.
PAPER = (
    ("group σ hurts on easy data", "group σ, not none", {"data": "easy"}, None),
    ("... more than on hard data", "group σ, not none", {"data": "easy"}, "hard"),
    ("batch σ is the better σ", "batch σ, not group σ", {}, None),
    ("mean over tokens helps a base", "mean over tokens", {"policy": "base"}, None),
    ("... more than a trained policy", "mean over tokens", {"policy": "base"}, "trained"),
    ("clip-higher helps a trained policy", "clip-higher", {"policy": "trained"}, None),
    ("... more than a base", "clip-higher", {"policy": "trained"}, "base"),
    ("the filter helps short answers", "overlong filter", {"data": "easy"}, None),
    ("... more than long ones", "overlong filter", {"data": "easy"}, "hard"),
)


def opening() -> None:
    """First screen: the same two switches judged by ten seeds each, one at a time; and the map.

    A bar per seed of `siblings`, held-out pass@1 with the switch minus without. Raises `ValueError`
    if the seeds do not contradict each other on σ, or more than two do on the mean over tokens.
    """
    use_style()
    right = load_results("siblings_eval").pivot(index="seed", columns="arm", values="pass@1")
    gaps = {
        "σ of the group: help or harm?": right["GRPO"] - right["GRPO, no σ"],
        "A mean over tokens: most seeds agree": right["PPO's loss, siblings"] - right["GRPO"],
    }
    sigma, tokens = gaps.values()
    if not (sigma.max() > 0.02 and sigma.min() < -0.02 and (tokens > 0).sum() >= len(tokens) - 2):
        raise ValueError(f"the titles do not hold: {sigma.tolist()}, {tokens.tolist()}")
    *axes, below = over_a_map(1, 1)
    chapter_map({"advantages": "divided by what?", "loss": "which mean?"}, below)
    for ax, (title, gap) in zip(axes, gaps.items(), strict=True):
        ax.bar(gap.index, gap, color=[GOOD if value > 0 else BAD for value in gap], width=0.7)
        ax.axhline(0, color=INK, lw=1)
        ax.set(xticks=gap.index, xlabel="seed", ylim=(-0.055, 0.1))
        ax.grid(axis="x", visible=False)
        ax.set_title(title)
    axes[0].set_ylabel("pass@1: with it, minus without")
    plt.show()


def turned(degrees: pd.DataFrame) -> None:
    """The angle of every switch, a dot per world.

    Raises `ValueError` unless three turn nothing and the mean per answer turns most on sums alone.
    """
    idle = degrees.loc[["batch σ", "GPG's α", "clip-higher"]]
    answers = degrees.loc["mean per answer"]
    if idle.max(axis=None) > 0.5 or degrees["sums"].idxmax() != "mean per answer":
        raise ValueError(f"the title does not hold: {degrees}")
    if not answers["sums"] > 25 > 10 > answers["habits"]:
        raise ValueError(f"a mean per answer turns by {answers.to_dict()} degrees")
    _, ax = plt.subplots(figsize=(6.6, 3))
    draw_angles(ax, {world: degrees[[world]].set_axis(["angle"], axis=1) for world in degrees})
    ax.set_title("Three switches turn nothing; an average turns most, where lengths differ")
    plt.show()


def entropy_costs(rows: Mapping[str, pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """What a step along each dial's push does to entropy in both worlds; means, in nats.

    `rows` as `first_order` gives them. Raises `ValueError` unless the plain step spends entropy on
    sums and earns some on habits, and a larger bonus holds more.
    """
    change = pd.DataFrame({world: summary(each)["entropy"] for world, each in rows.items()})
    sums = change["sums"]
    if not sums["no dial"] < 0 < change["habits"]["no dial"]:
        raise ValueError(f"the titles do not hold: {change}")
    if not sums["no dial"] < sums["bonus 0.03"] < sums["bonus 0.1"]:
        raise ValueError(f"a bonus does not act as it is dosed: {change}")
    _, axes = plt.subplots(1, 2, figsize=(9, 2.7), sharey=True)
    titles = {
        "sums": "Plain sums: a step spends entropy",
        "habits": "Habits: a step earns entropy",
    }
    for ax, (world, title) in zip(axes, titles.items(), strict=True):
        draw_entropy_change(ax, rows[world], names, title)
    plt.show()
    return change


def evidence(compared: pd.DataFrame) -> None:
    """The paper's claims as comparisons of this book; the title counts those that are real."""
    _, ax = plt.subplots(figsize=(7.2, 5.2))
    draw_claims(ax, compared)
    real = int(compared["real"].sum())
    ax.set_title(f"Of {len(compared)} comparisons, {real} differ by more than the seeds do")
    plt.show()


def on_the_ladder() -> None:
    """The ladder with LitePPO and GPG; raises `ValueError` if one is first or last in a world."""
    own = ("LitePPO", "GPG")
    for world in ("sums", "habits"):
        ends = load_results(f"ladder_{world}_eval").groupby("arm")["pass@1"].mean().sort_values()
        if {*ends.index[[0, -1]]} & {*own}:
            raise ValueError(f"the title does not hold on {world}: {ends.to_dict()}")
    ladder("LitePPO and GPG stand among the others", own)
    plt.show()


def crossed(base: pd.DataFrame, trained: pd.DataFrame) -> Factorial:
    """The grid as a design: its two tables, one per policy."""
    runs = pd.concat([base.assign(policy="base"), trained.assign(policy="trained")])
    factors = tuple(dict.fromkeys(column for column, *_ in CONTRASTS.values()))
    return Factorial(
        runs.rename(columns={"arm": "data"}), factors, ("policy", "data", "lr", "seed")
    )


def grid_effects(grid: Factorial, metric: str) -> pd.DataFrame:
    """Every contrast, over all conditions (policy and data "all") and in each of them.

    `real` is by Holm's correction over all rows.
    """
    places = [{}, *({"policy": policy, "data": data} for policy, data in CONDITIONS)]
    rows = [
        {"contrast": name, "policy": "all", "data": "all"}
        | where
        | grid.effect(metric, *contrast, **where)
        for name, contrast in CONTRASTS.items()
        for where in places
    ]
    return corrected(rows)


def paper_claims(grid: Factorial, metric: str) -> pd.DataFrame:
    """What the paper says of each choice, asked of the grid; `real` by Holm over all rows."""
    rows = []
    for words, name, where, other in PAPER:
        if other is None:
            found = grid.effect(metric, *CONTRASTS[name], **where)
        else:
            ((column, one),) = where.items()
            found = grid.interaction(metric, *CONTRASTS[name], by=(column, one, other))
        rows.append({"the paper": words, "measured": name} | found)
    return corrected(rows)


def corrected(rows: Sequence[dict]) -> pd.DataFrame:
    """The rows as a table, `real` by Holm's correction over all of them."""
    table = pd.DataFrame(rows).rename(columns={"seeds": "blocks"})
    return table.assign(real=holm(list(table["p"])))


def draw_grid(ax: Axes, effects: pd.DataFrame) -> None:
    """A row per contrast: over all conditions in black, below it each condition in its colour.

    Filled where zero is excluded after Holm's correction.
    """
    looks = {("all", "all"): INK} | CONDITIONS
    for row, name in enumerate(CONTRASTS):
        mine = effects[effects["contrast"] == name].set_index(["policy", "data"])
        for place, (condition, colour) in enumerate(looks.items()):
            one, y = mine.loc[condition], row + 0.15 * (place - 2)
            wide = condition == ("all", "all")
            ax.plot([one["low"], one["high"]], [y, y], color=colour, lw=3 if wide else 1.6)
            face = colour if one["real"] else "white"
            ax.plot(one["mean"], y, "o", ms=7 if wide else 5, color=colour, mfc=face, zorder=3)
    for (policy, data), colour in looks.items():
        label = "over all four" if policy == "all" else f"{policy}, {data}"
        ax.plot([], [], "o-", color=colour, label=label)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(CONTRASTS)), list(CONTRASTS))
    ax.set(ylim=(len(CONTRASTS) - 0.45, -0.55), xlabel="difference of pass@1, nothing cut off")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def one_exchanged(runs: pd.DataFrame, arms: Sequence[str], metric: str = "pass@1") -> pd.DataFrame:
    """Each arm minus LitePPO at each learning rate, paired by seed: a row per arm and rate."""
    runs = runs[runs["arm"].isin(["LitePPO", *arms])]
    return at_each_rate(runs, metric, "LitePPO").swaplevel().loc[list(arms)]


def draw_exchanged(axes: Sequence[Axes], table: pd.DataFrame, world: str) -> None:
    """`one_exchanged` in a world: a panel per learning rate, the rows in one order."""
    for ax, lr in zip(axes, sorted(set(table.index.get_level_values("lr"))), strict=True):
        draw_differences(ax, table.xs(lr, level="lr"), "LitePPO")
        ax.set_title(f"{world}, lr {short(lr)}", fontsize=10, weight="normal")


def last_steps(steps: pd.DataFrame, columns: Sequence[str], count: int = 3) -> pd.DataFrame:
    """Mean over the last steps of each run, a row per arm, rate and seed."""
    late = steps[steps["step"] > steps["step"].max() - count]
    return late.groupby(["arm", "lr", "seed"], sort=False)[list(columns)].mean().reset_index()


def draw_price(ax: Axes, ends: pd.DataFrame, arms: Sequence[str], lr: float) -> None:
    """Where each arm ends: entropy against accuracy, with intervals over seeds."""
    for arm in arms:
        runs = ends[(ends["arm"] == arm) & (ends["lr"] == lr)]
        (x, *across), (y, *up) = (t_interval(runs[name]) for name in ("entropy", "accuracy"))
        colour = colour_of(arm)
        ax.plot(across, [y, y], color=colour, lw=1.2)
        ax.plot([x, x], np.clip(up, 0, 1), color=colour, lw=1.2)
        ax.plot(x, y, "o", ms=7, color=colour, mec="white", zorder=3)
    ax.set(xlabel="entropy, nats per token", ylabel="accuracy")


def claim(
    tables: Mapping[str, pd.DataFrame], words: str, table: str, arm: str, against: str,
    metric: str = "pass@1", lr: float | None = None,
) -> dict:  # fmt: skip
    """One arm of a committed table minus another: mean, interval, p, smallest difference."""
    rows = tables[table]
    rows = rows[rows["arm"].isin([arm, against])]
    rows = rows if lr is None else rows[rows["lr"] == lr]
    (values,) = paired_differences(by_arm(rows, metric), against)
    where = table.removesuffix("_eval")
    return {"claim": words, "table": where, "seeds": rows["seed"].nunique()} | {
        name: values[name] for name in ("mean", "low", "high", "p", "detectable")
    }


def claims_of_the_book() -> pd.DataFrame:
    """What `Tricks or Traps` claims, as differences of the book's own runs, a row each."""
    names = ("siblings", "habits", "methods", "regions_minibatches", "rare_habits", "lite_trained",
             "tight_limit", "tight_limit_control", "lost_answers_control")  # fmt: skip
    tables = {f"{name}_eval": load_results(f"{name}_eval") for name in names}
    by_run = load_results("rare_opening").groupby(["arm", "lr", "seed"], as_index=False)
    tables["rare_opening"] = by_run.opens_rarely.mean()  # over the six batches of a run
    of = partial(claim, tables)
    wide, narrow, trained = "clip-higher 0.28", "clip 0.2", "lite_trained_eval"
    limit = "pass@1_limit_80"
    rows = [
        of("σ of the group, or none", "siblings_eval", "GRPO", "GRPO, no σ"),
        of("σ and average (GRPO against RLOO)", "habits_eval", "GRPO", "RLOO"),
        of("batch σ (LitePPO against Dr. GRPO)", "methods_eval", "lite_ppo", "dr_grpo"),
        of("σ of the group, most is right", trained, "group σ", "no σ", lr=1e-4),
        of("mean over tokens, or per answer", "siblings_eval", "PPO's loss, siblings", "GRPO"),
        of("the same, another run", "lost_answers_control_eval", "token mean", "mean per answer",
           lr=1.5e-4),
        of("the same, most is right", trained, "LitePPO", "mean per answer", lr=1e-4),
    ]  # fmt: skip
    for lr in (5e-5, 1e-4, 2e-4):
        rare = "rare_opening", wide, narrow, "opens_rarely"
        rows.append(of(f"clip-higher, a rare opening, lr {lr:.0e}", *rare, lr))
    rows += [
        of("clip-higher, rare rules", "rare_habits_eval", wide, narrow, lr=2e-4),
        of("clip-higher, plain sums", "regions_minibatches_eval", wide, narrow),
        of("clip-higher, most is right", trained, "clip-higher", "LitePPO", lr=1e-4),
        of("overlong filter, a tight limit lifted", "tight_limit_eval", "filter", "cliff", limit),
        of("overlong filter, room to write", "tight_limit_control_eval", "filter", "cliff", limit),
    ]
    for name, row, others in (
        ("LitePPO", "lite_ppo", (("GRPO", "grpo"), ("DAPO", "dapo"))),
        ("GPG", "gpg", (("RLOO", "rloo"), ("DAPO", "dapo"))),
    ):
        rows += [of(f"{name} against {label}", "methods_eval", row, o) for label, o in others]
    return pd.DataFrame(rows)


def draw_claims(ax: Axes, claims: pd.DataFrame) -> None:
    """One row per claim: difference and interval in points; grey where zero is not excluded."""
    for row, (_, one) in enumerate(claims.iterrows()):
        colour = (GOOD if one["mean"] > 0 else BAD) if one["real"] else FAINT
        ax.plot([one["low"], one["high"]], [row, row], color=colour, lw=3, zorder=2)
        ax.plot(one["mean"], row, "o", ms=7, color=colour, mec="white", zorder=3)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(claims)), [f"{c.claim}  ·  {c.table}" for c in claims.itertuples()])
    for label, real in zip(ax.get_yticklabels(), claims["real"], strict=True):
        label.set_color(INK if real else MUTED)
    ax.set(ylim=(len(claims) - 0.4, -0.6), xlabel="difference of pass@1")
    ax.grid(axis="y", visible=False)


def draw_weights(ax: Axes, n: int = 16) -> None:
    """How much a prompt of solve rate p counts, relative to one of ½, exactly."""
    p = torch.linspace(0.01, 0.99, 197, dtype=torch.float64)
    for name, estimator, colour in (
        ("group σ", group_normalize, colour_of("grpo")),
        ("no σ, batch σ, GPG", group_center, colour_of("lite_ppo")),
    ):
        weight = estimator_weight(estimator, n)
        ax.plot(p, weight(p) / weight(torch.tensor(0.5)), color=colour, label=name)
    ax.set(xlabel="solve rate of the prompt", ylabel="weight of ∇p, relative to p = ½", xlim=(0, 1))
    ax.set_ylim(0, None)
    label_lines(ax)


def first_order(
    push: Push, entropy_slope: Slope, world: Trainer, methods: Mapping[str, Method], pairs: int = 2
) -> pd.DataFrame:
    """What a small step along each method's push does, a row per method and pair of batches.

    The push comes from one batch; what it does to mean reward and to entropy is read off the
    slopes on *another*, so that nothing is judged by the sample it was made from.
    cosine    with the push of the first method
    length    relative to it
    gain      of the mean reward, per unit step
    entropy   its change per unit step, in nats per token
    """
    reward_only = Method("reward", "-", leave_one_out)
    rows = []
    for pair in range(pairs):
        one, two = world.collect(seed=2 * pair), world.collect(seed=2 * pair + 1)
        reward, entropy = push(world, reward_only, two), entropy_slope(world, two)
        first: Tensor | None = None
        for name, method in methods.items():
            step = push(world, method, one)
            first = step if first is None else first
            unit, reference = step / step.norm(), first / first.norm()
            rows.append(
                {
                    "arm": name,
                    "pair": pair,
                    "cosine": (unit @ reference).item(),
                    "length": (step.norm() / first.norm()).item(),
                    "entropy": (entropy @ unit).item(),
                    "gain": (reward @ unit).item(),
                }
            )
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the pairs of batches, a row per method."""
    return rows.groupby("arm", sort=False)[["cosine", "length", "gain", "entropy"]].mean()


def draw_angles(ax: Axes, tables: Mapping[str, pd.DataFrame]) -> None:
    """A row per method, a dot per world: how far its push points away from the first one's."""
    names = list(next(iter(tables.values())).index)
    for world, table in tables.items():
        ax.plot(table["angle"], range(len(names)), "o", ms=8, color=WORLDS[world], mec="white")
        ax.plot([], [], "o", color=WORLDS[world], label=world)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="degrees away from “no σ”")
    ax.legend(frameon=False, loc="upper right")


def draw_entropy_change(ax: Axes, rows: pd.DataFrame, names: Sequence[str], title: str) -> None:
    """What a unit step along each push does to entropy: a bar for the mean, a dot per pair."""
    values = summary(rows)["entropy"].loc[list(names)]
    each = rows.set_index("arm")["entropy"]
    ax.barh(range(len(names)), values, color=[BAD if v < 0 else GOOD for v in values], height=0.6)
    for row, name in enumerate(names):
        ax.plot(each.loc[name], [row] * len(each.loc[name]), "o", ms=4, color=INK)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.set(title=title, xlabel="nats per token and unit step", ylim=(len(names) - 0.4, -0.6))
    ax.locator_params(axis="x", nbins=5)
    ax.grid(axis="y", visible=False)


def fit_law(entropy: np.ndarray, accuracy: np.ndarray) -> tuple[float, float]:
    """(a, b) of R = −a e^H + b by least squares."""
    slope, b = np.polyfit(np.exp(entropy), accuracy, 1)
    return -float(slope), float(b)


def law_test(steps: pd.DataFrame, first: int, after: int) -> dict[str, float]:
    """The law fitted on the steps up to `first` and asked about those after `after`.

    Beside it what a straight line in the step, fitted on the same steps, says.
    """
    mean = steps.groupby("step")[["entropy", "accuracy"]].mean()
    early, late = mean[mean.index <= first], mean[mean.index > after]
    a, b = fit_law(early["entropy"].to_numpy(), early["accuracy"].to_numpy())
    line = np.polyfit(early.index, early["accuracy"], 1)
    return {
        "a": a,
        "b": b,
        "entropy first": mean["entropy"].iloc[0],
        "entropy last": mean["entropy"].iloc[-1],
        "late accuracy": late["accuracy"].mean(),
        "the law says": (b - a * np.exp(late["entropy"])).mean(),
        "a line says": np.polyval(line, late.index.to_numpy()).mean(),
    }


def draw_law(ax: Axes, steps: pd.DataFrame, first: int, colour: str) -> None:
    """Accuracy against entropy, step by step; the law through the early steps as a line."""
    mean = steps.groupby("step")[["entropy", "accuracy"]].mean()
    early = mean.index <= first
    a, b = fit_law(mean["entropy"][early].to_numpy(), mean["accuracy"][early].to_numpy())
    wide = np.ptp(mean["entropy"]) * 0.12
    x = np.linspace(mean["entropy"].min() - wide, mean["entropy"].max() + wide, 60)
    ax.plot(x, b - a * np.exp(x), color=MUTED, ls="--", lw=1.4)
    ax.plot(*mean[early].to_numpy().T, "o", color=colour, ms=6, mec="white")
    ax.plot(*mean[~early].to_numpy().T, "o", mfc="white", mec=colour, ms=6)
    ax.set(xlabel="entropy, nats per token", ylabel="accuracy", ylim=(0, 1))
