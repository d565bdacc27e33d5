"""Chapter 01: a tree of tokens, two small worlds and how they cool, troubles measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.exact import FOUR, Completions
from rlbook.grouping import group_by, mean
from rlbook.paths import data_dir
from rlbook.policy import Sampler, logprobs
from rlbook.stats import wilson_interval
from rlbook.tasks import SumsTask, Task, is_lost
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Engine, Rollout, RunConfig, collate, collect_rollouts
from rlbook.viz import LivePlot
from rlbook.viz.style import (
    BAD,
    FAINT,
    GOOD,
    INK,
    MUTED,
    label_lines,
    luminance,
    readable,
    use_style,
)
from workshop.ch01.worlds import Run, World
from workshop.shared.schematic import chapter_map, schematic
from workshop.shared.worlds import RareOpening, RoughSampler, StartsLost, Unsolvable, tight_limit
from workshop.shared.worlds.shared_choice import shared_choice

TREE_CHARACTER = 0.054  # width of a character of the tree, in columns
MONO = {"family": "monospace", "fontsize": 8}
WAYS = {  # of asking a policy
    "greedy": MUTED,
    "one sample": BAD,
    "majority of 16": "#009E73",
    "any of 16": GOOD,
}
ARMS = {"only the right ones": GOOD, "chosen blindly": MUTED}
KINDS = {  # of answers: by strategy in sums, by rule in habits
    "direct": "#E69F00",
    "terse": "#882255",
    "verbose": "#009E73",
    "ramble": "#D55E00",
    "careful": "#0072B2",
    "broken": MUTED,
    "truncated": FAINT,
    "misconception": BAD,
    "right": GOOD,
    "other": FAINT,
}


@dataclass(frozen=True)
class Place:
    """A prefix and the policy's logits for what may follow it."""

    prefix: str
    tokens: tuple[str, ...]
    logits: Float[Tensor, " V"]

    @classmethod
    @torch.no_grad()
    def of(cls, model, tokenizer, prefix: str) -> "Place":
        """The place after a prefix of a text."""
        ids = tokenizer(prefix, return_tensors="pt").input_ids
        tokens = tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
        return cls(prefix, tokens, model(input_ids=ids).logits[0, -1].float())

    def probs(self, temperature: float = 1.0) -> Float[Tensor, " V"]:
        """Distribution of the next token at a temperature."""
        return (self.logits / temperature).softmax(-1)

    def top(self, count: int) -> list[tuple[str, float]]:
        """The most probable next tokens."""
        best = self.probs().topk(min(count, len(self.tokens)))
        return [
            (self.tokens[i], p)
            for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def opening() -> None:
    """The first screen: eight answers before training and after it, and the map of the chapter."""
    use_style()
    _, (top, bottom) = plt.subplots(2, 1, figsize=(11.6, 4.1), height_ratios=(2.7, 1.3))
    top.imshow(plt.imread(data_dir() / "results" / "eight_answers.png"), aspect="auto")
    top.axis("off")
    words = {"answers": "sampled", "verdicts": "by a program", "loss": "imitate what is right"}
    chapter_map(words, bottom)
    plt.show()


def two_worlds(ways: pd.DataFrame, habit_ways: pd.DataFrame) -> None:
    """The share right by kind of problem in three ways of asking, sums beside habits.

    Raises `ValueError` where the titles would not be true of the tables.
    """
    sums, habits = (table.drop(columns="all").loc["greedy"] for table in (ways, habit_ways))
    if sums.min() < 0.85 or habits.loc[3:].max() > 0:
        raise ValueError("greedy answers are not right in sums, or not wrong in late families")
    _, (left, ax) = plt.subplots(1, 2, figsize=(8.2, 3), width_ratios=(1, 1.35))
    draw_ways(left, ways.drop(columns="all"), [str(n) for n in sums.index], labels=False)
    left.set(title="Sums: the likeliest answer is right", xlabel="operands")
    names = [name.replace(" ", "\n") for name in FAMILIES]
    draw_ways(ax, habit_ways.drop(columns="all"), names, labels=False)
    ax.legend(loc="upper right")
    ax.set_title("Habits: from the third family on it is wrong")
    ax.tick_params(axis="x", labelsize=7.5)
    plt.show()


def four_paths() -> None:
    """The four completions as paths through a tree of prefixes."""
    _, ax = plt.subplots(figsize=(8.2, 3.3))
    draw_prefix_tree(ax, FOUR)
    ax.set_title("Four answers are four paths through a tree of prefixes", x=0.0)
    plt.show()


def keeping_right() -> None:
    """The book's drawing of a training step, with the weights of this chapter's loss."""
    kept = (FOUR.lengths * FOUR.rewards).int().tolist()  # tokens of right answers
    carried = {
        "answers": [f"{n} tokens" for n in FOUR.lengths],
        "verdicts": ["right" if reward else "wrong" for reward in FOUR.rewards],
        "rewards": [f"{reward:.0f}" for reward in FOUR.rewards],
        "loss": [f"{n} × 1/{sum(kept)}" if n else "–" for n in kept],
        "weights": ["likelier" if n else "" for n in kept],
    }
    notes = {"answers": "sampled", "verdicts": "by a program", "loss": "keep the right"}
    schematic(
        "Sample, judge, imitate what is right", set(notes), carried, notes, {"advantages": "02"}
    )
    plt.show()


def watch_rounds(
    runs: Mapping[Run, Iterator[Mapping[str, float]]], trained: Mapping[Run, World], rounds: int = 4
) -> None:
    """Make all runs side by side and draw the share right of each world, a line per arm."""
    live = LivePlot(
        "habits",
        "sums",
        colours=ARMS,
        title="Share right among fresh samples after 0 to 3 rounds, a line for each run",
        limits={"sums": (0, 0.8), "habits": (0, 0.8)},
    )
    live.side_by_side(runs, trained, total=rounds, lines={run: run[1] for run in runs})


def only_colder(
    cooling: pd.DataFrame,
    results: pd.DataFrame,
    colder: Mapping[str, Mapping[float, Sequence[float]]],
    reward: str = "only the right ones",
) -> None:
    """The base at every temperature beside the trained models, in both worlds.

    Raises `ValueError` where the titles would not be true of the tables.
    """
    gain = results.groupby(["world", "arm"])["one sample"].mean()
    if cooling.habits[:1.0].max() > gain["habits", reward] - 0.15:
        raise ValueError("cooling helps habits as well")
    if not cooling.sums.is_monotonic_decreasing:
        raise ValueError("cooling does not help sums")
    _, axes = plt.subplots(1, 2, figsize=(8.2, 3.2), sharey=True)
    titles = {
        "habits": "Where the mode is wrong, only training helps",
        "sums": "Where it is right, cooling helps too",
    }
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        mine = results[results.world == name].groupby("arm", sort=False)
        learned = {arm: {1.0: list(runs["one sample"])} for arm, runs in mine}
        likeliest = {0.0: list(mine.get_group(reward)["greedy"])}
        learned[reward] = likeliest | dict(colder[name]) | learned[reward]
        draw_cooling(ax, cooling[name][:1.0], learned, ARMS)
        ax.set_title(title, fontsize=10)
    plt.show()


def draw_ways(ax: Axes, ways: pd.DataFrame, names: Sequence[str], labels: bool = True) -> None:
    """A line per way of asking (`WAYS`), a column of the table per kind of problem."""
    for way, values in ways.iterrows():
        ax.plot(range(len(names)), values, "o-", color=WAYS[str(way)], label=way, ms=4.5)
    ax.set_xticks(range(len(names)), names)
    ax.set(ylim=(-0.04, 1.06), ylabel="share right")
    if labels:
        label_lines(ax)


def draw_cooling(
    ax: Axes,
    base: pd.Series,
    learned: Mapping[str, Mapping[float, Sequence[float]]],
    colours: Mapping[str, str],
) -> None:
    """The base's accuracy at every temperature; beside it the runs of each arm and their mean."""
    ax.plot(base.index, base, "o-", color=INK, ms=4.5)
    ends = {"the base": (float(base.iloc[-1]), INK)}
    for name, at in learned.items():
        means = {temperature: float(np.mean(values)) for temperature, values in at.items()}
        ax.plot(list(means), list(means.values()), "-", color=colours[name], lw=1.6)
        for temperature, values in at.items():
            here = [temperature] * len(values)
            ax.plot(here, values, "D", color=colours[name], ms=4.5, mec="white")
        ends[name] = (means[max(means)], colours[name])
    for (name, (_, colour)), height in zip(
        ends.items(), apart([height for height, _ in ends.values()], 0.085), strict=True
    ):
        ax.text(1.05, height, name, va="center", fontsize=8.5, color=readable(colour))
    ax.set(xlim=(-0.05, 1.62), ylim=(-0.03, 1.06), xlabel="temperature of sampling (0: greedy)")
    ax.set_ylabel("share right")
    ax.set_xticks((0, 0.5, 1.0))


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved up until neighbours are a gap apart, in the order given."""
    placed = dict[int, float]()
    for i in sorted(range(len(heights)), key=lambda i: heights[i]):
        placed[i] = max([heights[i], *(height + gap for height in placed.values())])
    return [placed[i] for i in range(len(heights))]


def what_was_kept(shares: Mapping[str, pd.DataFrame], kept: str) -> None:
    """Shares of every kind of answer in both worlds, before rounds of imitation and after.

    Raises `ValueError` unless `kept` halves the guesses in sums, and puts the right rule before the
    misconception in habits, where the base has them the other way round.
    """
    guesses, rules = shares["sums"]["direct"], shares["habits"]
    leads = rules["right"] > rules["misconception"]
    if guesses[kept] > guesses["base"] / 2 or not leads[kept] or leads["base"]:
        raise ValueError(f"the titles do not hold: {guesses.to_dict()}, {leads.to_dict()}")
    _, axes = plt.subplots(1, 2, figsize=(8.6, 2.8), width_ratios=(1.5, 1))
    titles = {
        "sums": "Sums: guesses make way for written steps",
        "habits": "Habits: the other rule leads",
    }
    for ax, (world, title) in zip(axes, titles.items(), strict=True):
        draw_shares(ax, shares[world])
        ax.set_title(title)
    axes[1].set_yticklabels([])
    plt.show()


def draw_shares(ax: Axes, shares: pd.DataFrame) -> None:
    """Stacked bars of `KINDS`, a row of the table each, with the larger shares as numbers."""
    left = np.zeros(len(shares))
    for kind in (kind for kind in KINDS if kind in shares):
        values = shares[kind].to_numpy()
        ax.barh(shares.index, values, 0.62, left, color=KINDS[kind], edgecolor="white", label=kind)
        for row in np.flatnonzero(values > 0.07):
            x = left[row] + values[row] / 2
            ax.text(x, row, f"{values[row]:.2f}", ha="center", va="center", fontsize=8,
                    color=ink_on(KINDS[kind]))  # fmt: skip
        left += values
    ax.set(xlim=(0, 1), xticks=(), ylim=(len(shares) - 0.5, -0.5))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4, handlelength=0.8)
    ax.grid(visible=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on a colour."""
    return INK if luminance(np.array(to_rgb(colour))) > 0.3 else "white"


def draw_strategies(ax: Axes, card: Mapping[str, Any], names: Sequence[str]) -> None:
    """Accuracy by operands of some strategies, from the card, with Wilson's 95 % intervals.

    The card has each strategy's share of all answers; its share at each level is taken to be that.
    """
    settings = card["settings"]
    answers = settings["per_level"] * settings["samples"]
    for i, name in enumerate(names):
        part = card["strategies"][name]
        levels = np.array([int(level) for level in part["accuracy_by_level"]])
        rates = np.array(list(part["accuracy_by_level"].values()))
        n = round(part["share"] * answers)
        _, low, high = wilson_interval(np.round(rates * n), n)
        x = levels + 0.09 * (i - (len(names) - 1) / 2)
        ax.plot(x, rates, "o-", ms=4, color=KINDS[name], label=f"{name} ({part['share']:.0%})")
        ax.vlines(x, low, high, color=KINDS[name], lw=1, alpha=0.7)
    ax.set(ylim=(0, 1), xlabel="operands", ylabel="share right", xticks=levels)
    label_lines(ax)


def draw_prefix_tree(ax: Axes, four: Completions) -> None:
    """Completions as paths from the prompt; every token with its probability under π_old.

    Repeats of one token share a node.
    """
    paths = [
        [
            ("".join(tokens), tuple(p for _, p in part))
            for tokens, part in _runs(zip(row, probs, strict=True))
        ]
        for row, probs in zip(four.tokens, four.probs_old, strict=True)
    ]
    order = sorted(range(len(paths)), key=lambda i: [_first(paths, p) for p in _prefixes(paths[i])])
    height = {path: -line for line, path in enumerate(order)}
    depth = max(map(len, paths))

    def node(prefix: list) -> float:
        return float(
            np.mean([height[i] for i, p in enumerate(paths) if p[: len(prefix)] == prefix])
        )

    ax.text(-0.06, node([]), four.prompt, ha="right", va="center", **MONO, weight="bold")
    drawn = set()
    for i, path in enumerate(paths):
        for d, (text, probs) in enumerate(path):
            if tuple(path[: d + 1]) in drawn:
                continue
            drawn.add(tuple(path[: d + 1]))
            before, here = node(path[:d]), node(path[: d + 1])
            ax.plot([d, d + 0.22, d + 0.92], [before, here, here], color=FAINT, lw=1, zorder=0)
            ax.plot([d + 0.22, d + 0.92], [here, here], color=GOOD, lw=0.6 + 4 * min(probs))
            ax.text(d + 0.24, here + 0.12, text.strip(), va="bottom", **{**MONO, "fontsize": 7})
            label = " ".join(f"{p:.2f}".lstrip("0") for p in probs)
            ax.text(d + 0.24, here - 0.13, label, va="top", fontsize=8, color=readable(GOOD))
        total, right = np.prod(four.probs_old[i]), four.reward_values[i] > 0
        colour = readable(GOOD if right else BAD)
        ax.text(
            len(path) - 0.65 + TREE_CHARACTER * len(path[-1][0]), height[i],
            f"{four.names[i][0]}: {'right' if right else 'wrong'}\nπ = {total:.3f}",
            va="center", fontsize=9, color=colour,
        )  # fmt: skip
    ax.set(xlim=(-0.85, depth + 1), ylim=(-len(paths) + 0.45, 0.6))
    ax.axis("off")


def _prefixes(path: list) -> list[list]:
    return [path[: length + 1] for length in range(len(path))]


def _first(paths: list[list], prefix: list) -> int:
    """Index of the first path that starts so."""
    return next(i for i, path in enumerate(paths) if path[: len(prefix)] == prefix)


def _runs(pairs) -> list[tuple[list[str], list[tuple[str, float]]]]:
    """Consecutive equal tokens together."""
    groups = (list(group) for _, group in groupby(pairs, key=lambda pair: pair[0]))
    return [([text for text, _ in group], group) for group in groups]


def measured_troubles(
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase], prompts: int = 32, n: int = 8
) -> pd.DataFrame:
    """Six worlds of `worlds.troubles`: what presses there, and how much of it plain sums have."""
    model, tokenizer = policy
    sums, builtin = SumsTask(), Sampler(model, tokenizer.eos_token_id)
    rough = RoughSampler(tokenizer)
    rough.load_weights(model)

    def sampled(task: Task, engine: Engine = builtin, levels=None, **how: Any) -> list[Rollout]:
        problems = task.sample(1, prompts, levels)
        return collect_rollouts(engine, tokenizer, task, problems, n, seed=1, **how)

    limit = tight_limit(RunConfig())
    tight = sampled(sums, levels=limit.data.levels, max_new_tokens=limit.rollout.max_new_tokens)
    plain, lost = sampled(sums), sampled(sums, StartsLost(model, tokenizer))
    hard, opened, rounded = sampled(Unsolvable()), sampled(RareOpening()), sampled(sums, rough)
    shared, _ = shared_choice((deepcopy(model), tokenizer))
    rows = {
        "starts lost": ("answers that say hmm", said_lost(plain), said_lost(lost), "07"),
        "tight limit": ("answers cut off", cut_off(plain), cut_off(tight), "08"),
        "unsolvable prompts": ("groups without a difference", silent(plain), silent(hard), "08"),
        "rare opening": ("answers that are right", accuracy(plain), accuracy(opened), "08, 09, 11"),
        "one shared choice": ("numbers that may move", free(model), free(shared), "10"),
        "rough sampler": (
            "|log π − log μ| of a token", mismatch(model, plain), mismatch(model, rounded), "11",
        ),
    }  # fmt: skip
    columns = ["measured", "plain sums", "in its world", "chapter"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    table[columns[1:3]] = table[columns[1:3]].map(lambda x: f"{x:,.0f}" if x >= 10 else f"{x:.3f}")
    return table


def said_lost(rollouts: Iterable[Rollout]) -> float:
    """Share of answers that say they are lost."""
    return mean(is_lost(r.text) for r in rollouts)


def cut_off(rollouts: Iterable[Rollout]) -> float:
    """Share of answers that the limit cut off."""
    return mean(r.truncated for r in rollouts)


def accuracy(rollouts: Iterable[Rollout]) -> float:
    """Share of right answers."""
    return mean(r.correct for r in rollouts)


def silent(rollouts: Iterable[Rollout]) -> float:
    """Share of groups whose answers are all right or all wrong."""
    groups = group_by(rollouts, lambda r: r.group).values()
    return mean(len({r.correct for r in group}) == 1 for group in groups)


def free(model: PreTrainedModel) -> int:
    """Numbers that training may move."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def mismatch(model: PreTrainedModel, rollouts: Sequence[Rollout]) -> float:
    """Mean |log π − log μ| of a token: the model's own word against the sampler's."""
    batch = collate(rollouts)
    gap = logprobs(model, batch.ids, batch.mask) - batch.logp_sampler
    return gap[batch.mask].abs().mean().item()
