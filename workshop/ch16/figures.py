"""Chapter 16: episodes by author, worths of places, whose credit is near the truth, curves."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Sampler
from rlbook.rewards.turns import BATCH, GROUP, TOKENS, BesideCredit, GiGPOCredit, Key, PricedCredit
from rlbook.stats import t_interval
from rlbook.training import Rollout, collect_rollouts
from rlbook.viz.style import MUTED, use_style
from workshop.ch16.experiments import outcome_credit
from workshop.ch16.walker import correlations
from workshop.ch16.worlds import Guessing
from workshop.shared.evidence import load_results
from workshop.shared.schematic import chapter_map, over_a_map
from workshop.shared.texts import (
    WIDTH,
    Piece,
    Span,
    TextPanel,
    answer_lines,
    heading,
    panel,
    tint,
    token_texts,
)

COLOURS = {
    "outcome": "#1b1b1b",
    "paid by turn": "#E69F00",
    "GiGPO": "#D55E00",
    "place in the batch": "#56B4E9",
    "priced": "#0072B2",
    "exact": "#009E73",
}
KEYS: dict[str, Key] = {
    "the same tokens so far": TOKENS,
    "the same place, in the group": GROUP,
    "the same place, in the batch": BATCH,
}
NETWORKS = {
    "game": "turns_guess",
    "walk, one rule": "turns_one_rule",
    "walk with doors": "turns_doors",
}
OF_THE_POLICY, OF_THE_WORLD = 0.3, -0.3  # tints too pale for a mark below the text


def opening(world: Guessing, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """First screen: an episode by two authors, what credit for turns earns, and the map.

    The episode is the base's first that ends with a guess of what had been answered; the curves are
    `turns_walker`'s with doors and 16 episodes a batch. Raises `ValueError` if exact credit does
    not lead there in every seed.
    """
    use_style()
    game, walk, below = over_a_map(1.2, 1)
    problem = next(p for p in world.sample(4, 48) if p.level == max(world.levels))
    asked = {"n": 64, "max_new_tokens": 24, "turn_tokens": 4, "seed": 1}
    sampler = Sampler(model, tokenizer.eos_token_id)
    played = collect_rollouts(sampler, tokenizer, world, [problem], **asked)
    draw_episode(game, next(r for r in played if asks_again(r)), tokenizer)
    log = load_results("turns_walker")
    runs = log[(log.lr == 0.1) & (log.episodes == 16) & (log.world == "two rules")]
    draw_curves(walk, runs, ("outcome", "exact"))
    way = runs[runs.step > 0].groupby(["seed", "arm"])["arrived"].mean().unstack()
    if (lead := (way["exact"] - way["outcome"]).min()) < 0.02:
        raise ValueError(f"in one seed exact credit leads by {lead:.3f}")
    walk.set(ylabel="chance to arrive", title="A verdict an episode, or one a turn")
    names = ["one for the episode", "exact, for every turn"]
    walk.legend(walk.get_lines(), names, frameon=False, fontsize=8, loc="lower right")
    chapter_map({"answers": "turns, two authors", "advantages": "one for each turn"}, below)
    plt.show()


def draw_episode(ax: Axes, rollout: Rollout, tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokens of an episode by author, and under each turn how many numbers stay possible."""
    forced, possible = rollout.forced or [], possible_of(rollout)
    for x, (text, put) in enumerate(zip(token_texts(tokenizer, rollout), forced, strict=True)):
        box = {"facecolor": "#D55E00" if put else "#0072B2", "edgecolor": "none"}
        box["boxstyle"] = "square,pad=0.35"
        ax.text(x, 0 if put else 1, text, ha="center", va="center", color="white", bbox=box)
    for turn, (before, after) in enumerate(pairwise(possible)):
        first = rollout.turns.index(turn)
        said = "nothing learned" if before == after else f"{before} possible → {after}"
        ax.text(first - 0.4, 1.75, said, fontsize=8, color=MUTED)
    ax.set(xlim=(-1, rollout.length), ylim=(-0.6, 2.1), xticks=[], yticks=[0, 1])
    ax.set_yticklabels(["the world", "the policy"])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    high, hidden = rollout.problem.meta["high"], rollout.problem.meta["hidden"]
    ax.grid(visible=False)
    ax.set_title(f"A number is hidden, 1 to {high}: {hidden}")


def by_author(rollout: Rollout, tokenizer: PreTrainedTokenizerBase) -> list[Piece]:
    """The episode in pieces; what the world said stands in brackets as well."""
    forced = rollout.forced or [False] * rollout.length
    pieces = zip(token_texts(tokenizer, rollout), forced, strict=True)
    found = []
    for put, members in groupby(pieces, key=lambda pair: pair[1]):
        text = "".join(text for text, _ in members)
        found.append(Piece(f"[{text}]", OF_THE_WORLD, "the world's") if put
                     else Piece(text, OF_THE_POLICY, "the policy's"))  # fmt: skip
    return found


def show_episodes(rollouts: Sequence[Rollout], tokenizer: PreTrainedTokenizerBase) -> TextPanel:
    """Episodes under their prompts, tinted by who wrote what."""
    lines: list[list[Span]] = []
    for _, members in groupby(rollouts, key=lambda r: r.group):
        group = list(members)
        lines.append(heading(group[0].problem, f"hidden: {group[0].problem.meta['hidden']}"))
        for rollout in group:
            lines += answer_lines(rollout, by_author(rollout, tokenizer), WIDTH)
    policy, world = (Span(text, background=tint(strength)) for text, strength in (
        ("the policy's", OF_THE_POLICY), ("[the world's]", OF_THE_WORLD)))  # fmt: skip
    return panel([*lines, [policy, Span("  "), world]])


def guesses_of(rollout: Rollout) -> list[int]:
    """The numbers that an episode asked; 0 for what is none."""
    said = defaultdict(str)
    for turn, text in zip(rollout.turns, rollout.text, strict=False):
        said[turn] += text
    return [int(found[0]) if (found := re.match(r"\d\d", said[turn])) else 0 for turn in said]


def possible_of(rollout: Rollout) -> list[int]:
    """How many numbers were possible before each turn and at the end."""
    return [int(place.split()[0]) for place in rollout.places]


def wasted(rollouts: Sequence[Rollout]) -> float:
    """The share of guesses after which as many numbers were possible as before."""
    told = [
        after == before and not (r.correct and turn + 1 == r.turn_count)
        for r in rollouts
        for turn, (before, after) in enumerate(pairwise(possible_of(r)))
    ]
    return float(np.mean(told))


def asks_again(rollout: Rollout) -> bool:
    """Whether it is lost, and its last guess alone asks what had been answered before."""
    *before, last = [a == b for a, b in pairwise(possible_of(rollout))]
    return not rollout.correct and last and not any(before)


def shares_found(rollouts: Sequence[Rollout]) -> tuple[float, float, float]:
    """Shares of episodes that find the number, that do at once, and that a blind guess would."""
    found = [r.correct for r in rollouts]
    at_once = [r.correct and r.turn_count == 1 for r in rollouts]
    luck = [1 / r.problem.meta["high"] for r in rollouts]
    return float(np.mean(found)), float(np.mean(at_once)), float(np.mean(luck))


def telling(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Of the first group of the hardest level with a wasted guess and a find, one of each."""
    for _, members in groupby(rollouts, key=lambda r: r.group):
        group = list(members)
        losers = [r for r in group if not r.correct and wasted([r])]
        finders = [r for r in group if r.correct and r.turn_count > 2]
        if losers and finders and group[0].problem.level == max(Guessing().levels):
            return [losers[0], finders[0]]
    raise ValueError("no group has both: ask more often")


def worths_of(rollout: Rollout, world: Guessing) -> pd.DataFrame:
    """What each turn found, left and changed under the best play."""
    values = [world.worth(place, rollout.problem) for place in rollout.places]
    values[-1] = float(rollout.correct)
    rows = {
        "guess": guesses_of(rollout),
        "place before": rollout.places[:-1],
        "V before": values[:-1],
        "V after": values[1:],
        "change": np.diff(values),
    }
    return pd.DataFrame(rows).round(2)


def company(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """For each key the share of later turns that are compared with another episode's."""
    shares = {}
    for name, key in KEYS.items():
        visitors: dict[Any, set[int]] = defaultdict(set)
        later = [(i, key(r, t)) for i, r in enumerate(rollouts) for t in range(1, r.turn_count)]
        for episode, at in later:
            visitors[at].add(episode)
        shares[name] = float(np.mean([len(visitors[at]) > 1 for _, at in later]))
    return shares


def per_turn(rollouts: Sequence[Rollout], credit: Sequence[Sequence[float]]) -> list[float]:
    """The credit of each turn, from that of its tokens."""
    return [
        row[r.turns.index(turn)]
        for r, row in zip(rollouts, credit, strict=True)
        for turn in range(r.turn_count)
    ]


def nearness(rollouts: Sequence[Rollout], world: Guessing) -> dict[str, float]:
    """Correlation of each credit with what the turn changed under the best play."""
    true = [change for r in rollouts for change in worths_of(r, world)["change"]]
    ways: dict[str, Callable[..., Any]] = {
        "outcome": outcome_credit,
        "GiGPO": GiGPOCredit(),
        "place in the batch": BesideCredit(BATCH),
        "priced": PricedCredit(),
    }
    told = {name: per_turn(rollouts, way(rollouts)["credit"]) for name, way in ways.items()}
    return {name: float(np.corrcoef(row, true)[0, 1]) for name, row in told.items()}


def first_guesses(groups: Mapping[str, Sequence[Rollout]]) -> None:
    """`draw_first_guesses`; raises `ValueError` unless the last policy's are nearer the middle."""
    first, *_, last = (
        np.mean([abs(guesses_of(r)[0] / (r.problem.meta["high"] + 1) - 0.5) for r in rollouts])
        for rollouts in groups.values()
    )
    if last > first - 0.02:
        raise ValueError(f"distance of first guesses from the middle: {first:.2f}, now {last:.2f}")
    _, ax = plt.subplots(figsize=(6.4, 2.7))
    draw_first_guesses(ax, groups)
    ax.set_title("The first guess moves to the middle")
    plt.show()


def draw_first_guesses(ax: Axes, groups: Mapping[str, Sequence[Rollout]]) -> None:
    """Where the first guess falls, as a share of the range, for each policy."""
    edges = np.linspace(0, 1, 9)
    for name, colour in zip(groups, (MUTED, "#0072B2"), strict=True):
        first = [guesses_of(r)[0] / (r.problem.meta["high"] + 1) for r in groups[name]]
        ax.hist(first, edges, density=True, histtype="step", lw=2, color=colour, label=name)
    ax.axvline(0.5, color=MUTED, lw=0.8, ls=":")
    ax.set(xlabel="first guess ÷ (largest number + 1)", ylabel="density", xlim=(0, 1))
    ax.legend(frameon=False, fontsize=8)


def draw_bars(ax: Axes, values: Mapping[str, float]) -> None:
    """One bar for each name, its number beside it."""
    names = list(values)[::-1]
    colours = [COLOURS.get(name, "#a8a8a8") for name in names]
    ax.barh(names, [values[name] for name in names], color=colours)
    for row, name in enumerate(names):
        ax.text(values[name] + 0.02, row, f"{values[name]:.2f}", va="center", fontsize=8)
    ax.set(xlim=(0, 1.12))


def how_near(
    rollouts: Sequence[Rollout], world: Guessing
) -> tuple[dict[str, float], dict[str, float]]:
    """Turns with company, and how each credit correlates with the truth: in the game, in the walk.

    Raises `ValueError` unless priced places are nearer than outcomes in both.
    """
    in_game = nearness(rollouts, world)
    in_walk = {name: near for name, near in correlations("two rules").items() if name != "exact"}
    if min(near["priced"] - near["outcome"] for near in (in_game, in_walk)) < 0.1:
        raise ValueError(f"priced places are no nearer: {in_game}, {in_walk}")
    _, axes = plt.subplots(1, 3, figsize=(10.6, 2.3), layout="constrained")
    for ax, bars, title in zip(
        axes,
        (company(rollouts), in_game, in_walk),
        (
            "Game: turns with company",
            *(f"{it}: correlation with the truth" for it in ("Game", "Walk")),
        ),
        strict=True,
    ):
        draw_bars(ax, bars)
        ax.set_title(title, fontsize=9)
    plt.show()
    return in_game, in_walk


def draw_curves(ax: Axes, runs: pd.DataFrame, arms: Sequence[str]) -> None:
    """Mean chance to arrive over seeds, with its 95 % interval, by the batches made."""
    for arm in arms:
        table = runs[runs.arm == arm].pivot(index="step", columns="seed", values="arrived")
        found = [t_interval(row) for row in table.to_numpy()]
        low, high = ([getattr(one, side) for one in found] for side in ("low", "high"))
        ax.plot(table.index, table.mean(axis=1), color=COLOURS[arm], label=arm)
        ax.fill_between(table.index, low, high, color=COLOURS[arm], alpha=0.15, lw=0)
    ax.set(xlabel="batches", ylim=(0.15, 0.95))


def draw_walks(axes: Sequence[Axes], runs: pd.DataFrame, arms: Sequence[str], lr: float) -> None:
    """A panel for each world and size of batch, the small batches first."""
    shown = runs[runs.lr == lr].groupby(["episodes", "world"], sort=False)
    order = sorted(shown.groups, key=lambda key: (key[0], key[1] == "one rule"))
    for ax, (episodes, world) in zip(axes, order, strict=True):
        draw_curves(ax, shown.get_group((episodes, world)), arms)
        ax.set_title(f"{world}, batches of {episodes}", fontsize=9)
    axes[0].set_ylabel("chance to arrive")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")


def walks(runs: pd.DataFrame) -> pd.DataFrame:
    """Curves of four credits at the lower rate; returns `leads`.

    Raises `ValueError` unless at both rates, with doors, exact credit gains most and more than with
    one rule, pay by turn is second with few episodes, and prices gain in large batches alone.
    """
    lead = leads(runs)
    mean, high = lead["mean"], lead["high"]
    for lr in (0.1, 0.2):
        doors, plain, few = (
            mean[64, "two rules", lr], mean[64, "one rule", lr], mean[16, "two rules", lr]
        )  # fmt: skip
        holds = (
            few.nlargest(2).index.tolist() == ["exact", "paid by turn"],
            doors["exact"] > 2 * abs(plain["exact"]),
            doors["priced"] > 0,
            few["priced"] < 0,
            high[16, "two rules", lr, "place in the batch"] < 0,
        )
        if not all(holds):
            raise ValueError(f"the text does not hold at rate {lr}, {holds}: {mean}")
    _, axes = plt.subplots(1, 4, figsize=(11.6, 2.8), sharey=True, layout="constrained")
    draw_walks(axes, runs, ("outcome", "GiGPO", "priced", "exact"), lr=0.1)
    plt.show()
    return lead


def leads(runs: pd.DataFrame, against: str = "outcome") -> pd.DataFrame:
    """Each arm less `against`, paired by seed: the chance to arrive, averaged over the run."""
    way = runs[runs.step > 0].groupby(["episodes", "world", "lr", "seed", "arm"])["arrived"].mean()
    return minus(way, against)


def network_ends() -> pd.Series:
    """Of every run of a small network the share of held-out episodes that succeed at its end."""
    ends = pd.concat(
        load_results(f"{name}_eval").assign(world=world) for world, name in NETWORKS.items()
    )
    return ends.set_index(["world", "lr", "seed", "arm"])["pass@1"]


def minus(ends: pd.Series, against: str = "outcome") -> pd.DataFrame:
    """Each arm less `against`, with its interval over seeds; `ends` has them last in its index."""
    table = ends.unstack("arm")
    places = table.index.names[:-1]
    rows = {}
    for place, of_place in table.groupby(level=places, sort=False):
        for arm in table.columns.drop(against):
            found = t_interval((of_place[arm] - of_place[against]).dropna())
            rows[(*place, arm)] = {"mean": found.mean, "low": found.low, "high": found.high}
    return pd.DataFrame(rows).T.rename_axis([*places, f"minus {against}"])
