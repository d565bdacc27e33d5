"""Chapter 01: the four completions as paths through a tree, and temperature turned by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlbook.exact import Completions
from rlbook.stats import pass_at_k_curve
from rlbook.viz.style import BAD, FAINT, GOOD, INK, readable
from rlbook.viz.widgets import Explorer, choice, slider

TREE_CHARACTER = 0.054  # width of a character of the tree, in columns
MONO = {"family": "monospace", "fontsize": 8}


@dataclass(frozen=True)
class Place:
    """A prefix and the policy's logits for what may follow it."""

    prefix: str
    tokens: tuple[str, ...]
    logits: Float[Tensor, " V"]

    @classmethod
    @torch.no_grad()
    def of(cls, model, tokenizer, prefix: str) -> "Place":
        ids = tokenizer(prefix, return_tensors="pt").input_ids
        tokens = tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
        return cls(prefix, tokens, model(input_ids=ids).logits[0, -1].float())

    def probs(self, temperature: float = 1.0) -> Float[Tensor, " V"]:
        return (self.logits / temperature).softmax(-1)

    def top(self, count: int) -> list[tuple[str, float]]:
        """The most probable next tokens."""
        best = self.probs().topk(min(count, len(self.tokens)))
        return [
            (self.tokens[i], p)
            for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def temperature_explorer(
    places: Mapping[str, Place], correct: Mapping[float, np.ndarray], k: int = 8
) -> Explorer:
    """One next-token distribution and the whole pass@k curve, as the temperature turns.

    `correct[T]` is (prompts, samples), booleans, sampled at temperature T.
    """
    temperatures = sorted(correct)
    step = temperatures[1] - temperatures[0]

    def draw(fig: Figure, place: str, temperature: float, k: int) -> None:
        left, right = fig.subplots(1, 2, width_ratios=(1.1, 1))
        draw_next_token(left, places[place], temperature)
        draw_curves(right, correct, temperature, k)

    return Explorer(
        draw,
        hint="Turn T to 0.25: which openings are left? Then to 1.5, with a result of a step.",
        figsize=(7.8, 3.4),
        place=choice(list(places), label="after"),
        temperature=slider(temperatures[0], temperatures[-1], 1.0, step, label="temperature T"),
        k=slider(1, next(iter(correct.values())).shape[1], k, 1, label="k"),
    )


def draw_next_token(ax: Axes, place: Place, temperature: float, count: int = 6) -> None:
    """Bars at this temperature, outlines at temperature 1."""
    names = [name for name, _ in place.top(count)]
    count = len(names)
    rows = [place.tokens.index(name) for name in names]
    now, plain = place.probs(temperature)[rows].tolist(), place.probs()[rows].tolist()
    y = range(count)
    ax.barh(y, now, height=0.6, color=GOOD)
    ax.barh(y, plain, height=0.6, fill=False, edgecolor=INK, lw=0.9)
    for i, p in enumerate(now):
        ax.text(max(p, plain[i]) + 0.015, i, f"{p:.3f}", va="center", fontsize=8.5)
    ax.set_yticks(y, [name.strip() for name in names], **MONO)
    ax.set(
        xlim=(0, 1.15),
        ylim=(count - 0.4, -0.6),
        xlabel=f"probability at T = {temperature:g} (outline: T = 1)",
    )
    ax.set_xticks((0, 0.5, 1))
    ax.grid(axis="y", visible=False)
    ax.set_title(f"After {place.prefix}", fontsize=9.5)


def draw_curves(ax: Axes, correct: Mapping[float, np.ndarray], temperature: float, k: int) -> None:
    """pass@k at every temperature measured, this one on top."""
    nearest = min(correct, key=lambda t: abs(t - temperature))
    for t, right in correct.items():
        ks = np.arange(1, right.shape[1] + 1)
        curve = pass_at_k_curve(right.shape[1], right.sum(1), ks)
        chosen = t == nearest
        ax.plot(ks, curve, color=GOOD if chosen else FAINT, lw=2.2 if chosen else 1.2)
        if chosen:
            first, best = curve[0], curve[k - 1]
            ax.plot([1, k], [first, best], "o", color=GOOD)
    ax.set(xlabel="k", ylim=(0, 1.04), xlim=(0.4, ks[-1] + 0.6), ylabel="pass@k")
    ax.set_xticks([1, *ks[3::4]])
    ax.set_title(f"pass@1 = {first:.2f}, pass@{k} = {best:.2f}")


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
