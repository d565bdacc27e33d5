"""Chapter 14: what length may cost, what data are worth, what a teacher saves."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from transformers import PreTrainedTokenizerBase

from rlbook.exact import FOUR
from rlbook.rewards import KimiLength, L1Exact, L1Max, LengthCost
from rlbook.tasks import Problem
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Rollout
from rlbook.training.rewards import Reward
from rlbook.viz.style import BAD, GOOD, MUTED, label_lines, use_style
from workshop.ch14.claims import taught
from workshop.shared.evidence import ARM_COLOURS, load_results
from workshop.shared.schematic import chapter_map, schematic
from workshop.shared.texts import (
    WIDTH,
    TextPanel,
    answer_lines,
    heading,
    legend_of,
    panel,
    pushed_pieces,
    right_of,
)

RULES: dict[str, Reward] = {
    "a price: 0.01 a token": LengthCost(0.01),
    "L1-Exact: 40 tokens": L1Exact(0.01, budget=40),
    "L1-Max: 40 tokens": L1Max(0.02, budget=40),
    "Kimi: among siblings": KimiLength(),
}
UPDATES = {
    "SFT on the teacher": ARM_COLOURS["SFT on the teacher"],
    "γ = 0": ARM_COLOURS["on-policy distillation"],
    "γ = 1": "#332288",
}


def an_answer(length: int, right: bool) -> Rollout:
    """An answer of which nothing matters but its length and the verdict."""
    return Rollout(
        problem=Problem("one prompt", "37+8=?", "45"),
        group=0,
        prompt_ids=[1],
        token_ids=[2] * length,
        logps=[0.0] * length,
        versions=[0] * length,
        finish_reason="stop",
        text="",
        correct=right,
    )


def worth(rule: Reward, answers: Sequence[Rollout]) -> list[float]:
    """What each answer of a group earns, all parts together."""
    return np.sum(list(rule(answers).values()), axis=0).tolist()


def draw_rules(axes: Sequence[Axes], lengths: Sequence[int] = range(8, 81)) -> list[str]:
    """What right and wrong answers earn by length, a panel per rule.

    Returns the rules that pay a wrong answer the same at any length.
    """
    level = []
    for ax, (name, rule) in zip(axes, RULES.items(), strict=True):
        for right, colour, label in ((True, GOOD, "right"), (False, BAD, "wrong")):
            ends = [an_answer(min(lengths), True), an_answer(max(lengths), True)]
            earned = [worth(rule, [an_answer(n, right), *ends])[0] for n in lengths]
            ax.plot(lengths, earned, color=colour, label=label)
        if np.ptp(earned) == 0:  # the last are those of wrong answers
            level.append(name)
        ax.axhline(0, color="#9a9a9a", lw=0.8)
        ax.set(ylim=(-0.9, 1.6), xlabel="tokens")
        ax.set_title(name, fontsize=9.5)
    axes[0].set_ylabel("reward")
    label_lines(axes[0])
    return level


LIVE = {"0.02 a token": "#D55E00", "no price": "#1b1b1b"}
PRICED = {"at once": "#D55E00", "after 12 batches": "#0072B2", "no price": "#1b1b1b"}
TAUGHT = {
    "RL": ARM_COLOURS["RL"],
    "RL, MaxRL": ARM_COLOURS["MaxRL"],
    "48 examples": "#882255",
    "SFT on the teacher": ARM_COLOURS["SFT on the teacher"],
    "on-policy distillation": ARM_COLOURS["on-policy distillation"],
}
BREVITY = {
    "no price": "#1b1b1b",
    "0.02 a token": "#D55E00",
    "ShorterBetter": "#0072B2",
    "Kimi, after a warm-up": "#882255",
    "L1-Max, 24 tokens": "#009E73",
    "falling limit": "#E69F00",
    "Concise RL, eight problems": "#8c8c8c",
}
BESIDE = {  # where a rule's name stands: tokens saved, accuracy won
    "0.02 a token": (-8.6, 0.036),
    "ShorterBetter": (-2.6, 0.004),
    "Kimi, after a warm-up": (-8.6, -0.066),
    "L1-Max, 24 tokens": (-9.0, -0.018),
    "falling limit": (-2.6, 0.03),
    "Concise RL, eight problems": (-6.4, -0.088),
}


def opening() -> None:
    """First screen: a price at once and late, four ways to spend 2,560 answers, and the map.

    A dot per run of `late_price`, `distillation` and `teacher_null`. Raises `ValueError` if the
    early price does not cost accuracy in every run, the late one does, or RL passes a pupil.
    """
    use_style()
    prices = load_results("late_price_eval")
    pupils = taught(load_results("distillation_eval"), load_results("teacher_null_eval"))
    right = prices.set_index(["arm", "seed"])["pass@1"].unstack("arm")
    ends = pupils.set_index(["arm", "seed"])["pass@1_habits"].unstack("arm")
    behind = ends[["SFT on the teacher", "on-policy distillation"]].min(axis=1) - ends["RL"]
    late = right["after 12 batches"] - right["no price"]
    if (right["at once"] > right["no price"] - 0.3).any() or late.min() < -0.1 or behind.min() < 0:
        raise ValueError(f"titles do not hold: {late.min():+.2f} late, pupils {behind.min():+.2f}")
    _, (cloud, dots) = plt.subplots(1, 2, figsize=(9.2, 3.1), width_ratios=(1, 1.1))
    for arm, colour in PRICED.items():
        runs = prices[prices["arm"] == arm]
        cloud.scatter(runs["length"], runs["pass@1"], color=colour, s=22, alpha=0.7, lw=0)
    cloud.text(14.5, 0.29, "0.02 a token, at once", color=PRICED["at once"], va="center")
    cloud.text(34.2, 0.70, "after 12 batches", color=PRICED["after 12 batches"], ha="right")
    cloud.text(34.2, 0.86, "no price", color=PRICED["no price"], ha="right")
    cloud.set(
        xlim=(8, 40), ylim=(0, 1), xlabel="tokens an answer", ylabel="right answers, held out"
    )
    cloud.set_title("A price from the start buys guesses")
    for row, (arm, colour) in enumerate(TAUGHT.items()):
        dots.scatter(ends[arm], [row] * len(ends), color=colour, s=22, alpha=0.7, lw=0)
    dots.set_yticks(range(len(TAUGHT)), list(TAUGHT))
    dots.set(xlim=(0, 1), ylim=(len(TAUGHT) - 0.5, -0.5), xlabel="right answers, six kinds of sums")
    dots.set_title("A teacher's pupils know more than RL")
    chapter_map({"rewards": "less for a long answer", "advantages": "a number per token"})
    plt.show()


def two_rules(
    rules: Mapping[str, Sequence[float]], advantages: Mapping[str, Sequence[float]]
) -> None:
    """The four completions with two rules' rewards and advantages; both must like B best."""
    if {int(np.argmax(values)) for values in advantages.values()} != {1}:
        raise ValueError("the title says that both like B best")
    carried = {
        "answers": [f"{n} tokens" for n in FOUR.lengths.tolist()],
        "verdicts": ["right" if ok else "wrong" for ok in FOUR.rewards.tolist()],
        "rewards": [f"{a:+.1f} · {b:+.1f}" for a, b in zip(*rules.values(), strict=True)],
        "advantages": [f"{a:+.2f} · {b:+.2f}" for a, b in zip(*advantages.values(), strict=True)],
    }
    notes = dict.fromkeys(("rewards", "advantages"), " · ".join(rules))
    schematic("Both rules like the lucky guess best", {"rewards"}, carried, notes)
    plt.show()


def brevity(table: pd.DataFrame, budgets: Sequence[int]) -> None:
    """Tokens saved and accuracy won beside no price, with 95 % intervals; use under a budget.

    `table` is `claims.padded()`. Raises `ValueError` if not four rules of five are free, or one
    does not answer more within a tight budget.
    """
    rules = table.drop(index=["no price", "Concise RL, eight problems"])
    free = (rules["won low"] < 0) & (rules["won high"] > 0)
    if not ((rules["saved low"] > 0).all() and free.sum() == 4 and len(rules) == 5):
        raise ValueError(f"the title does not hold: {free.to_dict()}")
    within = table.filter(like="right_within_")  # the tight ones of the budgets
    gained = within.loc[rules.index] - within.loc["no price"]
    if gained.min(axis=None) < 0.1:
        raise ValueError(f"the title does not hold: {gained.to_dict()}")
    runs, start = load_results("length_padded_eval"), load_results("length_padded_start")
    _, (saved, used) = plt.subplots(1, 2, figsize=(9.6, 3.7), width_ratios=(1.15, 1))
    saved.axhline(0, color=MUTED, lw=0.8)
    saved.axvline(0, color=MUTED, lw=0.8)
    for name, place in BESIDE.items():
        row, colour = table.loc[name], BREVITY[name]
        at = (-row["saved"], row["won"])
        saved.plot(
            [-row["saved high"], -row["saved low"]], [at[1]] * 2, color=colour, lw=1, alpha=0.6
        )
        saved.plot([at[0]] * 2, [row["won low"], row["won high"]], color=colour, lw=1, alpha=0.6)
        saved.plot(*at, "o", color=colour, ms=6)
        line = {"arrowstyle": "-", "color": colour, "lw": 0.6}
        saved.annotate(name, at, place, color=colour, fontsize=8.5, arrowprops=line, va="center")
    saved.set(xlim=(-9.2, 3), ylim=(-0.1, 0.05))
    saved.set(xlabel="tokens an answer, minus no price", ylabel="accuracy, minus no price")
    saved.set_title("Five rules shorten, four at no cost that shows")
    columns = [f"right_within_{n}" for n in budgets]
    for name, colour in BREVITY.items():
        means = runs.loc[runs["arm"] == name, columns].mean()
        used.plot(range(len(budgets)), means, color=colour, label=name)
    used.plot(range(len(budgets)), start[columns].iloc[0], color=MUTED, ls=":", label="start")
    used.set_xticks(range(len(budgets)), [str(n) for n in budgets])
    used.set(xlabel="budget in use, tokens", ylabel="share of right answers", ylim=(0, 1))
    used.set_title("It pays where the budget is tight")
    used.legend(loc="upper left", fontsize=7.5)
    plt.show()


def by_family(
    pupils: pd.DataFrame, base: Mapping[str, float], teacher: Mapping[str, float]
) -> None:
    """Held-out accuracy by kind of sum: a line per arm of `claims.taught`, base and teacher.

    Raises `ValueError` if a run of RL has more right squares than a run of the pupils or examples.
    """
    squares = pupils.groupby("arm")["pass@1_level_6"].agg(["min", "max"])
    rl = [arm for arm in squares.index if arm.startswith("RL")]
    if squares.loc[rl, "max"].max() >= squares.drop(index=rl)["min"].min():
        raise ValueError(f"the title does not hold: {squares}")
    columns = [f"pass@1_level_{level}" for level in range(1, len(FAMILIES) + 1)]
    _, ax = plt.subplots(figsize=(8.4, 3.4))
    for name, row in (("teacher", teacher), ("base", base)):
        style = {"color": MUTED, "ls": ":" if name == "base" else "--", "lw": 1.4}
        ax.plot([row[column] for column in columns], label=name, **style)
    for name, colour in TAUGHT.items():
        ax.plot(
            pupils.loc[pupils["arm"] == name, columns].mean().to_numpy(), color=colour, label=name
        )
    ax.set_xticks(range(len(columns)), list(FAMILIES))
    ax.set(ylim=(0, 1), ylabel="right answers, held out")
    ax.set_title("What is rare is where a teacher, or 48 examples, make the difference")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plt.show()


def draw_limits(ax: Axes, table: pd.DataFrame) -> None:
    """Share of right answers by the number of tokens allowed: cut off, or interrupted."""
    styles = {"cut off": (0, (4, 3)), "interrupted": "-"}
    for (policy, how), rows in table.groupby(["policy", "how"], sort=False):
        colour = MUTED if policy == "base" else GOOD
        label = f"{policy}, {how}"
        ax.plot(rows["tokens"], rows["right"], color=colour, ls=styles[str(how)], label=label)
    ax.set(xlabel="tokens of thought allowed", ylabel="share of right answers", ylim=(0, 1))
    label_lines(ax)


def flops(arm: str, tokens: pd.Series | float, student: int, teacher: int) -> pd.Series | float:
    """Floating-point operations that an arm spends on answers of so many tokens.

    2N to write or read a token with N parameters, 6N to train on it.
    """
    per_token = {
        "RL": 8 * student,
        "SFT on the teacher": 6 * student + 2 * teacher,
        "on-policy distillation": 8 * student + 2 * teacher,
    }
    return tokens * per_token[arm]


def spent_by(rows: pd.DataFrame, student: int, teacher: int) -> pd.Series:
    """Billions of operations that an arm's runs have spent by each step, at their mean length."""
    answers = 64 * rows["step"]
    return flops(str(rows["arm"].iloc[0]), answers * rows["length"], student, teacher) / 1e9


def draw_students(ax: Axes, steps: pd.DataFrame, x: Callable[[pd.DataFrame], pd.Series]) -> None:
    """Held-out accuracy by what has been spent, mean and 95 % range of the mean over seeds."""
    held = steps.dropna(subset=["heldout"])
    for name, rows in held.groupby("arm", sort=False):
        spent = x(rows)
        by = rows.assign(spent=spent).groupby("step")
        mean, half = by["heldout"].mean(), 1.96 * by["heldout"].sem()
        at, colour = by["spent"].mean(), ARM_COLOURS[str(name)]
        ax.plot(at, mean, color=colour, marker="o", ms=3.5, label=str(name))
        ax.fill_between(
            at, (mean - half).clip(0), (mean + half).clip(upper=1), color=colour, alpha=0.15, lw=0
        )
    ax.set(ylabel="held-out accuracy", ylim=(0, 1))
    label_lines(ax)


def family_table(rows: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """`pass@1_level_1` … as a table with a column per family, and their mean."""
    columns = {f"pass@1_level_{level}": name for level, name in enumerate(FAMILIES, 1)}
    table = pd.DataFrame(rows).T[list(columns)].rename(columns=columns)
    return table.assign(mean=table.mean(axis=1)).astype(float)


def draw_copycats(ax: Axes, paths: Mapping[str, Sequence[float]]) -> None:
    """Share of answers that the teacher hardly ever gives, along three updates."""
    for name, path in paths.items():
        ax.plot(path, color=UPDATES[name], label=name)
    ax.set(xlabel="exact gradient steps", ylabel="share of ab and ba", ylim=(0, 0.6))
    label_lines(ax)


def show_opinions(
    rollouts: Sequence[Rollout], tokenizer: PreTrainedTokenizerBase, teacher: Reward
) -> TextPanel:
    """Answers under their prompts, each token tinted by what the teacher thinks of it."""
    (rows,) = teacher(rollouts).values()
    pieces = pushed_pieces(rows, rollouts, tokenizer, "log π_T − log π_θ")
    lines, group = [], None
    for rollout, parts in zip(rollouts, pieces, strict=True):
        if rollout.group != group:
            group = rollout.group
            members = [r for r in rollouts if r.group == group]
            lines += [[], heading(rollout.problem, right_of(members))]
        lines += answer_lines(rollout, parts, WIDTH)
    return panel([*lines[1:], legend_of(rows, "weight")])


def count_families(problems: Mapping[str, Sequence[Problem]]) -> pd.DataFrame:
    """How many problems of each family there are, in a column per selection."""
    names = dict(enumerate(FAMILIES, 1))
    counts = {
        column: pd.Series([names[p.level] for p in chosen]).value_counts()
        for column, chosen in problems.items()
    }
    return pd.DataFrame(counts).reindex(FAMILIES).fillna(0).astype(int)


def draw_choices(ax: Axes, evaluations: pd.DataFrame, base: Mapping[str, float]) -> None:
    """Held-out accuracy by family: the mean of each arm's runs, with a dot per run; the base."""
    columns = [f"pass@1_level_{level}" for level in range(1, len(FAMILIES) + 1)]
    places = np.arange(len(columns))
    ax.plot(places, [base[c] for c in columns], color=MUTED, ls=":", lw=1.4, label="base")
    for name, runs in evaluations.groupby("arm", sort=False):
        colour = ARM_COLOURS[str(name)]
        ax.plot(places, runs[columns].mean(), color=colour, label=str(name))
        for place, column in zip(places, columns, strict=True):
            ax.scatter([place] * len(runs), runs[column], s=7, color=colour, alpha=0.45, lw=0)
    ax.set_xticks(places, list(FAMILIES))
    ax.set(ylim=(-0.02, 1.02), xlim=(-0.2, len(columns) - 0.8), ylabel="share of right answers")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
