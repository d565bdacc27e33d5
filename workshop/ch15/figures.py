"""Chapter 15: credit on tokens, values along an answer, and how noisy each kind of credit is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from rlbook.evaluation import held_out_rollouts
from rlbook.exact import FOUR
from rlbook.grouping import group_by
from rlbook.objectives import leave_one_out
from rlbook.policy import load_policy
from rlbook.rewards.judges import habits_on_track
from rlbook.rewards.process import Steps, VerdictCredit, VineCredit
from rlbook.stats import t_interval
from rlbook.tasks import Problem
from rlbook.tasks.habits import FAMILIES, HabitsTask
from rlbook.training import Rollout, Trainer, collate, collect_rollouts
from rlbook.training.chat import decode
from rlbook.viz.style import BAD, GOOD, INK, MUTED, label_lines, use_style
from workshop.ch15.retokenization import Speller
from workshop.ch15.step_credit import (
    ChoiceTree,
    CreditMoments,
    credit_moments,
    exact_credit,
    prefix_values,
    vine_moments,
)
from workshop.ch15.tools import Calculator
from workshop.shared.evidence import ARM_COLOURS, learning_curves, load_results, short
from workshop.shared.schematic import chapter_map, over_a_map, schematic
from workshop.shared.texts import (
    WIDTH,
    TextPanel,
    answer_lines,
    before_after,
    heading,
    legend_of,
    log_prob_change,
    panel,
    push_rows,
    pushed_pieces,
)

KINDS = {
    "outcome": ARM_COLOURS["outcome"],
    "VinePPO, k = 1": "#f0a882",
    "VinePPO, k = 4": ARM_COLOURS["VinePPO, k = 2"],
    "exact": ARM_COLOURS["process"],
}
LIVE = {
    "outcome": ARM_COLOURS["outcome"],
    "your judge": ARM_COLOURS["process"],
    "outcome, tool repaired": ARM_COLOURS["outcome, tool repaired"],
    "your judge, priced": "#E69F00",
}
TASK = HabitsTask()
Credit = Callable[[Sequence[Rollout]], Mapping[str, Sequence[Sequence[float]]]]
NOTES = {"right": "right rule", "misconception": "misconception", "other": "neither rule"}


def opening() -> None:
    """First screen: outcome credit and a judge with a broken and a sound calculator, and the map.

    Share of right rules in `process_rewards` and `process_rewards_control` at 6e-4. Raises
    `ValueError` if the judge does not lead in every seed on the left, or leads on the right.
    """
    use_style()
    broken, sound, below = over_a_map(1, 1)
    titles = ("The calculator errs every second time", "The calculator is right")
    leads_at_the_end = []
    names = {"outcome": "one reward an answer", "process": "a judge of steps"}
    for ax, table, title in zip(
        (broken, sound), ("process_rewards", "process_rewards_control"), titles, strict=True
    ):
        log = load_results(table)
        runs = log[(log["lr"] == 6e-4) & log["arm"].isin(names)]
        learning_curves(runs, "share_right", ax, arms=list(names), labels=names, smooth=3)
        ax.set(ylim=(0, 1), xlabel="batches", title=title)
        end = runs[runs["step"] > runs["step"].max() - 5]
        ends = end.groupby(["seed", "arm"])["share_right"].mean().unstack()
        leads_at_the_end.append(ends["process"] - ends["outcome"])
    broken.set_ylabel("share of right rules")
    pressing, control = leads_at_the_end
    if pressing.min() < 0.02 or abs(control.mean()) > 0.03:
        raise ValueError(f"the judge leads by {pressing.min():.2f}, and by {control.mean():.2f}")
    chapter_map({"rewards": "for each step", "advantages": "one per step"}, below)
    plt.show()


def rule_of(rollout: Rollout) -> str:
    """The rule that an answer follows in its first step."""
    return TASK.label(rollout.problem, rollout.text, not rollout.truncated)


def one_of_each(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The first right answer, the first wrong one by the right rule, the first misconception.

    Answers that are right by luck, with a false result in between, are passed over.
    """
    found: dict[tuple[str, bool], Rollout] = {}
    for r in rollouts:
        clean = habits_on_track(r.problem, r.text.partition("</think>")[0])
        if clean == r.correct:
            found.setdefault((rule_of(r), r.correct), r)
    wanted = (("right", True), ("right", False), ("misconception", False))
    return [found[kind] for kind in wanted if kind in found]


def first_full_group(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The first group that has one of each."""
    groups = group_by(rollouts, lambda r: r.group).values()
    return next(list(g) for g in groups if len(one_of_each(g)) == 3)


def outcome_credit(rollouts: Sequence[Rollout]) -> list[list[float]]:
    """RLOO's advantage on each token of the answer, 0 on those that were not sampled."""
    rewards = torch.tensor([float(r.correct) for r in rollouts])
    groups = torch.tensor([r.group for r in rollouts])
    advantages = leave_one_out(rewards, groups).tolist()
    return masked(rollouts, [[a] * r.length for a, r in zip(advantages, rollouts, strict=True)])


def masked(rollouts: Sequence[Rollout], credit: Sequence[Sequence[float]]) -> list[list[float]]:
    """Credit without what falls on forced tokens: the trainer does not see that."""
    return [
        [0.0 if put else float(value) for value, put in zip(row, forced_of(r), strict=True)]
        for r, row in zip(rollouts, credit, strict=True)
    ]


def forced_of(rollout: Rollout) -> list[bool]:
    """Which tokens were forced; none where nothing was."""
    return rollout.forced or [False] * rollout.length


def show_credit(
    rollouts: Sequence[Rollout], credit: Sequence[Sequence[float]], tokenizer, name: str = "credit"
) -> TextPanel:
    """Answers to one prompt, their tokens tinted by the credit they get."""
    rows = push_rows(credit, rollouts)
    lines = [heading(rollouts[0].problem)]
    pieces = pushed_pieces(rows, rollouts, tokenizer, name)
    for rollout, parts in zip(rollouts, pieces, strict=True):
        lines += answer_lines(rollout, parts, WIDTH, note=NOTES[rule_of(rollout)])
    return panel([*lines, legend_of(rows, name)])


def show_of_group(
    shown: Sequence[Rollout], group: Sequence[Rollout], credit: Credit | None, tokenizer
) -> TextPanel:
    """Some answers of a group, tinted by what a reward gives their tokens beside all of it.

    `credit` None is the outcome: RLOO's advantage. The tool's tokens are not trained and stay
    white.
    """
    rows = masked(group, credit(group)["credit"]) if credit else outcome_credit(group)
    of = {id(r): row for r, row in zip(group, rows, strict=True)}
    return show_credit(shown, [of[id(r)] for r in shown], tokenizer)


def show_verdicts(rollouts: Sequence[Rollout], judged: VerdictCredit) -> None:
    """Print for each answer its rule, whether it is on track before each step, and its reward."""
    for r in rollouts:
        told = [int(word) for word in judged.verdicts(r)]
        print(f"{NOTES[rule_of(r)]:14} on track: {told}, then reward {int(r.correct)}")


def changes(gains: Sequence[Sequence[float]]) -> None:
    """The book's drawing with what each step of the four completions has changed."""
    carried = {
        "answers": [f"{len(row)} steps" for row in gains],
        "verdicts": ["right" if r else "wrong" for r in FOUR.rewards],
        "rewards": [f"{r:.0f}" for r in FOUR.rewards],
        "advantages": [quarters(row) for row in gains],
    }
    schematic("One number per step instead of one per answer", {"advantages"}, carried)
    plt.show()


def noise_by_length(rule: float, true: float) -> pd.DataFrame:
    """Noise of the gradient on the first choice with one to seven results behind it, drawn.

    Raises `ValueError` if the outcome's does not grow and the exact credit's does.
    """
    _, ax = plt.subplots(figsize=(6.8, 3.1))
    noise = draw_noise(ax, rule, true)
    if noise["outcome"].iloc[-1] < 20 * noise["exact"].iloc[-1] or np.ptp(noise["exact"]) > 0.01:
        raise ValueError(f"the title does not hold: {noise.iloc[-1].to_dict()}")
    ax.set_title("What comes later is noise to the outcome, not to exact credit")
    plt.show()
    return noise


def square(trained: Trainer, problem: Problem) -> TextPanel:
    """One problem before and after training with a broken calculator, three answers each."""
    base, words = load_policy("tiny-habits")
    asked = {"n": 3, "max_new_tokens": 48, "seed": 3}
    policies = (base, trained.model)
    was, now = (
        collect_rollouts(Calculator(policy, words, 0.5), words, TASK, [problem], **asked)
        for policy in policies
    )
    change = log_prob_change(was, *policies)
    return before_after(problem, was, now, change, words, push_name="change of log π")


def two_authors(rollout: Rollout, tokenizer) -> float:
    """Print an answer with the tool's tokens in brackets; the share of tokens with mask False."""
    pairs = zip(rollout.token_ids, forced_of(rollout), strict=True)
    texts = ((decode(tokenizer, [token]), put) for token, put in pairs)
    print("".join(f"[{text}]" if put else text for text, put in texts))
    own = collate([rollout]).mask[:, len(rollout.prompt_ids) :]
    return float((~own).float().mean())


def answers_of(tree: ChoiceTree, rewards: Float[Tensor, " K"]) -> pd.DataFrame:
    """Every answer of a tree of steps: its chance, its reward, the values and the credit."""
    values, credit = prefix_values(tree, rewards), exact_credit(tree, rewards)
    words = [
        " ".join(["right" if t else "wrong"] + ["✓" if x else "✗" for x in rest])
        for t, *rest in tree.tokens.tolist()
    ]
    table = {"chance": tree.probs, "reward": rewards}
    steps = range(tree.length)
    table |= {f"V{t}": values[:, t] for t in steps}
    table |= {f"A{t + 1}": credit[:, t] for t in steps}
    return pd.DataFrame({k: v.numpy() for k, v in table.items()}, index=words).round(2)


def ways(tree: ChoiceTree, rewards: Float[Tensor, " K"]) -> dict[str, CreditMoments]:
    """The moments of a gradient from one answer, for four ways to give credit."""
    surprise = (rewards - tree.expected_reward(rewards))[:, None].expand(tree.tokens.shape)
    return {
        "outcome": credit_moments(tree, surprise),
        "VinePPO, k = 1": vine_moments(tree, rewards, 1),
        "VinePPO, k = 4": vine_moments(tree, rewards, 4),
        "exact": credit_moments(tree, exact_credit(tree, rewards)),
    }


def draw_noise(ax: Axes, rule: float, true: float, longest: int = 7) -> pd.DataFrame:
    """Noise of the gradient on the first choice as more results follow it, by way of credit."""
    rows = {}
    for later in range(1, longest + 1):
        tree = ChoiceTree.of_steps(rule, *later * [true])
        for name, m in ways(tree, tree.all_right).items():
            rows[later, name] = float(m.variance[0] / m.mean[0].square())
    table = pd.Series(rows).unstack(1)[list(KINDS)]
    for name, colour in KINDS.items():
        ax.plot(table.index, table[name], "o-", ms=4, color=colour, label=name)
    ax.set(yscale="log", xlabel="results that still have to be right", ylabel="variance / mean²")
    ax.set_xticks(table.index)
    label_lines(ax)
    return table


def answers_spent(length: int, k: int) -> float:
    """Tokens written for one answer of `length` choices and k more from each prefix, in answers.

    From the prefix before choice t, the one of the prompt included, `length` − t are written.
    """
    return 1 + k * sum(length - t for t in range(length)) / length


def draw_values(ax: Axes, rollout: Rollout, values: dict[int, Sequence[float]], tokenizer) -> None:
    """The value of each prefix of an answer at the step boundaries, for several k."""
    steps = Steps.after(tokenizer)
    starts = [*steps.starts(rollout.token_ids), rollout.length]
    pieces = [
        tokenizer.decode(rollout.token_ids[a:b]).removeprefix("<think>")
        for a, b in pairwise(starts)
    ]
    labels = ["prompt", *(p.replace("</think>", "").split("<")[0] or "answer" for p in pieces)]
    places = np.arange(len(labels))
    many, *few = sorted(values, reverse=True)
    ax.step(places, values[many], where="mid", color=INK, lw=1.2, alpha=0.5)
    ax.plot(places, values[many], "o", color=INK, ms=6, label=f"k = {many}")
    for k in few:
        ax.plot(places, values[k], "x", color=BAD, ms=7, mew=2, label=f"k = {k}")
    ax.set_xticks(places, labels, rotation=55, ha="right", fontsize=8)
    ax.set(ylim=(-0.06, 1.06))
    ax.axhline(0, color=MUTED, lw=0.5)


def values_by_k(
    vine: VineCredit, rollouts: Sequence[Rollout], ks: Sequence[int]
) -> dict[int, list[list[float]]]:
    """Values of the prefixes of these answers from k answers each, the prompt's from the group."""
    return {k: replace(vine, k=k).values(rollouts) for k in ks}


def token_shares(
    rewards: Float[Tensor, "N T"], rollouts: Sequence[Rollout], steps: Steps
) -> pd.DataFrame:
    """What an implicit reward model says of each answer: of its first choice, and in all."""
    rows = []
    for row, r in zip(rewards.tolist(), rollouts, strict=True):
        start = len(r.prompt_ids)
        mine = row[start : start + r.length]
        numbers = steps.numbers(r.token_ids)
        first = sum(v for v, step in zip(mine, numbers, strict=True) if step == 0)
        rows.append({"rule": rule_of(r), "right": r.correct, "first": first, "all": sum(mine)})
    return pd.DataFrame(rows)


def separation(scores: pd.Series, positive: pd.Series) -> float:
    """Chance that a positive scores above a negative (AUC), ties counted half."""
    up, down = scores[positive].to_numpy(), scores[~positive].to_numpy()
    return float((up[:, None] > down).mean() + 0.5 * (up[:, None] == down).mean())


def rule_share(steps: pd.DataFrame, levels: Sequence[int], batches: tuple[int, int]) -> pd.Series:
    """Mean share of right rules in some batches, a number per arm, rate and seed."""
    rows = steps[steps.step.between(*batches)]
    columns = [f"right_rule_level_{level}" for level in levels]
    return rows.groupby(["arm", "lr", "seed"])[columns].mean().mean(axis=1)


def leads(steps: pd.DataFrame, batches: tuple[int, int], against: str = "outcome") -> pd.DataFrame:
    """By family and arm: share of right rules in some batches, minus that of `against`.

    Paired by rate and seed; mean and 95 % interval over these pairs.
    """
    rows = []
    for level, family in enumerate(list(FAMILIES)[:5], 1):
        share = rule_share(steps, [level], batches).unstack("arm")
        for arm in share.columns.drop(against):
            gap = t_interval((share[arm] - share[against]).dropna())
            rows.append(
                {
                    "family": family,
                    "arm": arm,
                    against: share[against].mean(),
                    "lead": gap.mean,
                    "low": gap.low,
                    "high": gap.high,
                }
            )
    return pd.DataFrame(rows)


def draw_leads(ax: Axes, table: pd.DataFrame, arms: Sequence[str]) -> None:
    """A row per family, a bar with its interval per arm."""
    families = list(dict.fromkeys(table.family))
    shifts = np.linspace(-0.22, 0.22, len(arms)) if len(arms) > 1 else [0.0]
    for shift, arm in zip(shifts, arms, strict=True):
        rows = table[table.arm == arm].set_index("family").loc[families]
        places = np.arange(len(families)) + shift
        ax.hlines(places, rows.low, rows.high, color=ARM_COLOURS[arm], lw=2.5)
        ax.plot(rows.lead, places, "o", ms=6, color=ARM_COLOURS[arm], mec="white", label=arm)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(families)), families)
    ax.set(ylim=(len(families) - 0.5, -0.5), xlabel="lead over outcome credit")
    ax.grid(axis="y", visible=False)


def spellings(speller: Speller) -> pd.DataFrame:
    """The likeliest token sequences with their text, the encoder's spelling, and the ratio."""
    tree = speller.tree
    pieces = (*speller.pieces, "■")
    rows = [
        {
            "tokens sampled": " ".join(pieces[t] for t in tree.sequences[i]),
            "text": speller.texts[i],
            "encoded again": " ".join(pieces[t] for t in speller.encode(speller.texts[i])),
            "π": float(tree.probs[i]),
            "ratio": float(speller.ratios[i]),
        }
        for i in tree.probs.argsort(descending=True)[:6].tolist()
    ]
    return pd.DataFrame(rows).round(3)


def draw_climbs(
    axes: Sequence[Axes], paths: Mapping[str, Sequence[Speller]], rewards: Float[Tensor, " K"]
) -> None:
    """What is earned, and how much of it is spelt as the encoder would, step by step."""
    colours = {"tokens sampled": GOOD, "text encoded again": BAD}
    for name, path in paths.items():
        earned = [float(s.tree.expected_reward(rewards)) for s in path]
        apart = [float(s.tree.probs[~s.sampled_as_encoded].sum()) for s in path]
        axes[0].plot(earned, color=colours[name], label=name)
        axes[1].plot(apart, color=colours[name], label=name)
    for ax in axes:
        ax.set(xlabel="exact gradient steps", ylim=(0, 1.03))
        label_lines(ax)


def tool_gradient(p: float = 0.2, known: tuple[float, float] = (0.7, 0.5)) -> pd.DataFrame:
    """What is climbed where a tool writes the result: truly, with its tokens masked, and without.

    The rule is right with probability p and decides the reward; `known`: the policy's own chance
    of the tool's result after the right rule and after the wrong one.
    """
    rule = torch.tensor(p, dtype=torch.float64).logit().requires_grad_()
    skill = torch.tensor(known, dtype=torch.float64).logit().requires_grad_()
    chances = torch.stack([rule.sigmoid(), 1 - rule.sigmoid()])
    weight = chances.detach() * (torch.tensor([1.0, 0.0]) - p)  # π(rule) (r − J)
    chosen, written = weight @ chances.log(), weight @ skill.sigmoid().log()
    climbed = {"∇J": chances[0], "masked": chosen, "unmasked": chosen + written}
    rows = {}
    for name, value in climbed.items():
        parts = torch.autograd.grad(value, (rule, skill), retain_graph=True, allow_unused=True)
        skills = parts[1] if parts[1] is not None else torch.zeros(2)
        rows[name] = [float(parts[0]), *(float(x) for x in skills)]
    columns = ["right rule", "result after the right rule", "result after the wrong rule"]
    return pd.DataFrame(rows, index=columns).T.round(3)


def rates_and_cost(steps: pd.DataFrame, batches: tuple[int, int]) -> pd.DataFrame:
    """By rate and arm: share of right rules in some batches, its lead, and how the runs end.

    The lead over outcome credit is paired by seed, with its 95 % interval. Tokens, in thousands,
    are those of a whole run, more answers from prefixes included; gradient (median norm) and the
    share of answers cut off are those of the last five batches.
    """
    by = ["lr", "arm"]
    share = steps[steps.step.between(*batches)].groupby([*by, "seed"]).share_right.mean()
    written = steps.groupby([*by, "seed"]).tokens_sampled.max().groupby(by).mean()
    end = steps[steps.step > steps.step.max() - 5].groupby(by)
    length, cut = end.grad_norm.median(), end.truncated.mean()
    rows = {}
    for (rate, arm), runs in share.groupby(by):
        gap = t_interval(runs.droplevel([0, 1]) - share[rate, "outcome"])
        text = "" if arm == "outcome" else f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        rows[f"lr {rate:g}", arm] = {
            "right rules": round(runs.mean(), 3),
            "over outcome": text,
            "thousand tokens": round(written[rate, arm] / 1000),
            "gradient": round(length[rate, arm], 1),
            "cut off": round(cut[rate, arm], 2),
        }
    return pd.DataFrame(rows).T


MEASURES = {
    "right_rule": "right rule",
    "pass@1_with_tool": "right answer",
    "pass@1_alone": "right answer,\ntool taken away",
    "right_given_rule_alone": "own arithmetic\nbehind a right rule",
}


def gaps_at_the_end(
    worlds: Mapping[str, pd.DataFrame], arm: str = "process", against: str = "outcome"
) -> pd.DataFrame:
    """Held-out differences of two arms by world, rate and measure, paired by seed, 95 % interval.

    One row each with mean, low, high and the number of pairs; `worlds`: evaluations by name.
    """
    rows = {}
    for world, evaluations in worlds.items():
        for rate, runs in evaluations.groupby("lr"):
            ends = runs.set_index(["arm", "seed"])[list(MEASURES)]
            gap = (ends.loc[arm] - ends.loc[against]).dropna()
            for measure in MEASURES:
                found = t_interval(gap[measure])
                ends_at = {"mean": found.mean, "low": found.low, "high": found.high}
                rows[world, rate, measure] = ends_at | {"pairs": len(gap)}
    return pd.DataFrame(rows).T.rename_axis(["world", "lr", "measure"])


def draw_gaps(axes: Sequence[Axes], gaps: pd.DataFrame) -> None:
    """A panel per measure: mean and interval at each rate, world by world."""
    lines = list(gaps.index.droplevel("measure").unique())
    worlds = list(dict.fromkeys(world for world, _ in lines))
    for ax, (measure, title) in zip(axes, MEASURES.items(), strict=True):
        for place, (world, rate) in enumerate(lines):
            row = gaps.loc[world, rate, measure]
            colour = (BAD, GOOD)[worlds.index(world)]
            ax.hlines(place, row.low, row.high, color=colour, lw=2.5)
            ax.plot(row["mean"], place, "o", ms=6, color=colour, mec="white")
        ax.axvline(0, color=INK, lw=1)
        ax.set_yticks(range(len(lines)), [f"{world}, {short(rate)}" for world, rate in lines])
        ax.set(ylim=(len(lines) - 0.5, -0.5), xlim=(-0.24, 0.24))
        ax.set_title(title, fontsize=9.5)
        ax.grid(axis="y", visible=False)


QUARTERS = {-3: "−¾", -2: "−½", -1: "−¼", 0: "0", 1: "+¼", 2: "+½", 3: "+¾", 4: "+1"}


def quarters(credit: Sequence[float], most: int = 5) -> str:
    """Multiples of a quarter in a row, the first few of them."""
    signs = [QUARTERS[round(4 * value)] for value in credit[:most]]
    return " ".join(signs + ["…"] * (len(credit) > most))


def record(gaps: pd.DataFrame) -> pd.DataFrame:
    """Judge less outcome credit in four measures, from `gaps_at_the_end`: drawn, and as numbers.

    Raises `ValueError` if the judge does not buy rules at both rates with the broken tool, or
    costs no arithmetic with the sound one at the higher rate.
    """
    bought = gaps.xs("right_rule", level="measure").loc["broken", "low"]
    if bought.min() < 0.05 or gaps.loc[("sound", 6e-4, "right_given_rule_alone"), "high"] > 0:
        raise ValueError(f"the title does not hold: {gaps.round(3)}")
    fig, axes = plt.subplots(1, 4, figsize=(10.4, 2.5), sharey=True)
    draw_gaps(axes, gaps)
    title = {"x": 0.01, "y": 1.1, "ha": "left", "weight": "bold", "fontsize": 11}
    fig.suptitle("A judge buys rules where the tool is broken, and can cost arithmetic", **title)
    plt.show()
    return gaps[["mean", "low", "high"]].round(3)


def stalls(paths: Mapping[str, Sequence[float]], places: int) -> None:
    """Steps an answer while the policy climbs, by whose word the worth is.

    Raises `ValueError` if the first does not end near the limit and the second near one step.
    """
    first, second = (path[-1] for path in paths.values())
    if not first > places - 1 > 2 > second:
        raise ValueError(f"the title does not hold: {first:.1f} and {second:.1f} steps")
    _, ax = plt.subplots(figsize=(6.4, 2.9))
    draw_stalls(ax, paths, places)
    ax.set_title("A judge's word pays for saying it again; what answers earned does not")
    plt.show()


def draw_stalls(ax: Axes, paths: Mapping[str, Sequence[float]], places: int) -> None:
    """Mean number of steps an answer, update by update, by whose word the worth is."""
    for (name, path), colour in zip(paths.items(), (BAD, GOOD), strict=True):
        ax.plot(path, color=colour, label=name)
    ax.axhline(places, color=MUTED, ls=":", lw=1)
    ax.set(xlabel="exact updates", ylabel="steps an answer", ylim=(0, places + 0.5))
    label_lines(ax)


def first_choices(rollouts: Sequence[Rollout], judged: Credit) -> pd.DataFrame:
    """What outcome and judge say of each answer's first choice, and the rule that it follows."""
    outcome, process = outcome_credit(rollouts), judged(rollouts)["credit"]
    return pd.DataFrame(
        {"rule": rule_of(r), "outcome": o[0], "process": p[0]}
        for r, o, p in zip(rollouts, outcome, process, strict=True)
    )


def alone(policy, rollouts: int = 512) -> dict[str, float]:
    """A policy without its tool: how often it is right, and how often if the rule is right."""
    answers = held_out_rollouts(policy, TASK, rollouts // 8, n=8, levels=(1, 2, 3, 4, 5))
    ruled = [r.correct for r in answers if rule_of(r) == "right"]
    return {
        "right": fmean(r.correct for r in answers),
        "right, given the right rule": fmean(ruled),
    }
