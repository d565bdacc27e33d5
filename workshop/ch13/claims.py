"""What chapter 13 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pandas as pd

from rlbook.tasks.habits import FAMILIES
from workshop.shared.evidence import short
from workshop.shared.runs import Column, Load, Runs, runs_of
from workshop.shared.told import ALL_LEVELS, HABITS, SUMS, Told, there
from workshop.shared.verdict import Claim


def reality(told: Told) -> Iterator[Claim]:
    votes = (("majority vote", "a majority vote"), ("confidence", "confidence as the reward"))
    for lr in (1.5e-4, 3e-4):
        for level, where in ((1, "where the mode is right"), (3, "where it is wrong")):
            column, world = Column(f"pass@1_level_{level}"), f"habits, {list(FAMILIES)[level - 1]}"
            yield told(f"a majority vote, {where}", world, "label_free", "majority vote",
                       "verifier", column, lr=lr, null=None, collapse=True)  # fmt: skip
        for arm, text in votes:
            yield told(text, HABITS, "label_free", arm, "verifier", ALL_LEVELS, lr=lr, null=None,
                       control="label_free_control", collapse=True, unit="pass@1")  # fmt: skip
        common = {"lr": lr, "collapse": True, "unit": "pass@1"}
        coin, many = "coin, one update", "coin, 8 updates, no clip"
        yield told("the format alone, for coins", HABITS, "spurious", "format only", coin,
                   ALL_LEVELS, **common)  # fmt: skip
        if there(told.load, "format_control"):
            yield told("the format alone, where one answer in nine lacks it", SUMS,
                       "format_control", "format only", coin, ALL_LEVELS,
                       beside="spurious_control", **common)  # fmt: skip
        yield told("a clip on coins, 8 updates", HABITS, "spurious", "coin, 8 updates, clip", many,
                   ALL_LEVELS, control="spurious_control", **common)  # fmt: skip
        for clip in ("clip 0.2", "clip-higher 0.28"):
            yield told(f"{clip} on coins, 1,024 answers a batch", SUMS, "published_coins",
                       f"coin, {clip}", "coin, no trust region", ALL_LEVELS, **common)  # fmt: skip
        yield told("minimised entropy, for a verifier", HABITS, "entropy_tuning", "EM-FT, habits",
                   "verifier", ALL_LEVELS, beside="label_free", null=None, **common)  # fmt: skip
    yield from against_the_cold(told)
    yield from tries(told)


def against_the_cold(told: Told) -> Iterator[Claim]:
    """Rewards without labels, for the base that is only sampled at a lower temperature."""
    if not (there(told.load, "cold") and there(told.load, "one_prompt")):
        return
    arms = [(arm, ("label_free", arm), ("label_free_control", arm))
            for arm in ("majority vote", "agreement", "confidence")]  # fmt: skip
    for text, name, arm in (
        ("minimised entropy", "entropy_tuning", "EM-FT"),
        ("minimised entropy, of one prompt", "one_prompt", "one prompt"),
    ):
        arms.append((text, (name, f"{arm}, habits"), (name, f"{arm}, sums")))
    if there(told.load, "self_certainty"):
        sure = tuple(("self_certainty", f"self-certainty, {world}") for world in ("habits", "sums"))
        arms.append(("self-certainty as the reward", *sure))
    for text, habits, sums in arms:
        pairs = [
            beside_the_cold(runs_of(*where, ALL_LEVELS, 3e-4, told.load), world, told.load)
            for where, world in ((habits, "habits"), (sums, "sums"))
        ]
        yield Claim(text=f"{text}, for the untrained base at T = .3", chapter="13",
                    world="habits, lr 3e-4", unit="pass@1", family="13", arm=pairs[0][0],
                    against=pairs[0][1], null=pairs[0][1], control=pairs[1], at="stated",
                    collapse=True, source=habits[0])  # fmt: skip


def beside_the_cold(runs: Runs, world: str, load: Load) -> tuple[Runs, Runs]:
    """A trained policy, and the base at T = .3, which has no rate and writes nothing to learn."""
    drawn = runs_of("cold", f"T = 0.3, {world}", ALL_LEVELS, None, load).values
    values = {seed: drawn[seed] for seed in runs.values}
    return runs, replace(runs, name="the base, T = .3", values=values, ends=values)


def tries(told: Told) -> Iterator[Claim]:
    """Problems solved within 256 tries, by the trained policy and by the base."""
    solved = Column("solved_*")
    for lr in (1.5e-4, 3e-4):
        for arm in ("verifier", "majority vote"):
            pairs = [
                beside_its_base(runs_of(name, arm, solved, lr, partial(with_solved, told.load)))
                for name in ("coverage", "coverage_control")
            ]
            yield Claim(text=f"256 tries after a {arm}'s rewards, for the base's", chapter="13",
                        world=f"habits, lr {short(lr)}", unit="solved", family="13",
                        arm=pairs[0][0], against=pairs[0][1], null=pairs[0][1], control=pairs[1],
                        at="stated", collapse=True, source="coverage")  # fmt: skip


def beside_its_base(runs: Runs) -> tuple[Runs, Runs]:
    """A policy after training, and the same before."""
    base = dict.fromkeys(runs.values, runs.start)
    return runs, replace(runs, name="the base", values=base, ends=base)


def with_solved(load: Load, name: str) -> pd.DataFrame:
    """A table of right answers of 256, with the share of each level's problems that has one."""
    table = load(name)
    counts = table.filter(regex=r"^right_\d+_\d+$")
    levels = dict.fromkeys(column.split("_")[1] for column in counts)
    solved = {f"solved_{n}": (counts.filter(like=f"right_{n}_") > 0).mean(axis=1) for n in levels}
    return table.assign(**solved)


SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "a vote lifts what the base says most often where that is right, and kills the "
        "rest (minus the verifier)",
        "exact": "the favourite wins, right or wrong",
        "pressing": "habits, double minus: {a majority vote, where it is wrong | habits, double "
        "minus, lr 3e-4}; at half the rate {a majority vote, where it is wrong | habits, double "
        "minus, lr 1.5e-4}",
        "control": "sums: {control: a majority vote | habits, lr 3e-4}; at half the rate "
        "{control: a majority vote | habits, lr 1.5e-4}",
        "paper": "TTRL, EMPO: gains on Qwen2.5-Math",
    },
    {
        "claim": "confidence or entropy as the goal does the same (minus the verifier)",
        "exact": "the reward ends at its best from every start",
        "pressing": "habits: {confidence as the reward | habits, lr 3e-4} and {minimised entropy, "
        "for a verifier | habits, lr 3e-4}",
        "control": "sums: confidence {control: confidence as the reward | habits, lr 3e-4}; the "
        "untrained base at T = .3 is ahead of it (section 6)",
        "paper": "RENT, EM: gains on Qwen2.5; Llama none",
    },
    {
        "claim": "the run's own log does not tell which of the two it is",
        "exact": "the reward rises from every start",
        "pressing": "habits: reward and agreement rise while the truth falls",
        "control": "sums: they rise with it",
    },
    {
        "claim": "a clip turns coins into a push towards what is common",
        "exact": "by a window uneven in logs; small, and it can turn round",
        "pressing": "habits, clip minus none: {a clip on coins, 8 updates | habits, lr 3e-4}; at "
        "half the rate {a clip on coins, 8 updates | habits, lr 1.5e-4}: less is lost",
        "control": "sums: {control: a clip on coins, 8 updates | habits, lr 3e-4}",
        "paper": "Qwen2.5-Math-7B gains 21 points; Llama, OLMo none",
    },
    {
        "claim": "RL loses coverage (256 tries, minus the base's)",
        "exact": "where prompts share a choice; never where each has its own",
        "pressing": "habits: verifier {256 tries after a verifier's rewards, for the base's | "
        "habits, lr 3e-4}, vote {256 tries after a majority vote's rewards, for the base's | "
        "habits, lr 3e-4}",
        "control": "sums, verifier: {control: 256 tries after a verifier's rewards, for the "
        "base's | habits, lr 3e-4}",
        "paper": "Yue et al.: base ahead at large k; ProRL: not after long training",
    },
)
