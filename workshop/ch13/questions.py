"""Chapter 13: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rlbook.tasks.habits import FAMILIES
from workshop.ch13.entropy_tuning import EntropyFineTuning
from workshop.ch13.experiments import (
    FIVE,
    LOGGED,
    ONE_UPDATE,
    SEEN,
    TRIED,
    Untrained,
    as_it_is,
    at_both_rates,
    certain,
    coins,
    cold,
    entropy_tuning,
    label_free,
    many_tries,
    one_prompt,
    published_coins,
    rewarded,
    self_certain,
    spurious,
)
from workshop.ch13.real_model import REAL_MODEL
from workshop.shared.design import Experiment
from workshop.shared.evidence import family_rates, short
from workshop.shared.experiments import FEW
from workshop.shared.question import Asked, Question
from workshop.shared.runs import Column, Load, Runs, runs_of
from workshop.shared.scorecard import Questions
from workshop.shared.told import ALL_LEVELS, SUMS, Told, there
from workshop.shared.verdict import Claim
from workshop.shared.worlds import HABITS


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


RATES = (1.5e-4, 3e-4)
COMMON: dict[str, Any] = {"collapse": True, "unit": "pass@1"}


def for_a_verifier(told: Told, text: str, arm: str) -> Iterator[Claim]:
    for lr in RATES:
        yield told(text, "habits", "label_free", arm, "verifier", ALL_LEVELS, lr=lr, null=None,
                   control="label_free_control", **COMMON)  # fmt: skip


def votes(told: Told) -> Iterator[Claim]:
    yield from for_a_verifier(told, "a majority vote", "majority vote")
    for lr in RATES:
        for level, where in ((1, "where the mode is right"), (3, "where it is wrong")):
            column, world = Column(f"pass@1_level_{level}"), f"habits, {list(FAMILIES)[level - 1]}"
            yield told(f"a majority vote, {where}", world, "label_free", "majority vote",
                       "verifier", column, lr=lr, null=None, collapse=True)  # fmt: skip


def sureness(told: Told) -> Iterator[Claim]:
    yield from for_a_verifier(told, "confidence as the reward", "confidence")
    for lr in RATES:
        yield told("minimised entropy, for a verifier", "habits", "entropy_tuning", "EM-FT, habits",
                   "verifier", ALL_LEVELS, beside="label_free", null=None, lr=lr,
                   **COMMON)  # fmt: skip
    yield from against_the_cold(told)


def coins_and_clips(told: Told) -> Iterator[Claim]:
    clipped = ("coin, 8 updates, clip", "coin, 8 updates, no clip")
    for lr in RATES:
        yield told("a clip on coins, 8 updates", "habits", "spurious", *clipped, ALL_LEVELS,
                   control="spurious_control", lr=lr, **COMMON)  # fmt: skip
        for clip in ("clip 0.2", "clip-higher 0.28"):
            yield told(f"{clip} on coins, 1,024 answers a batch", SUMS, "published_coins",
                       f"coin, {clip}", "coin, no trust region", ALL_LEVELS, lr=lr,
                       **COMMON)  # fmt: skip


def form(told: Told) -> Iterator[Claim]:
    arms = ("format only", "coin, one update", ALL_LEVELS)
    for lr in RATES:
        yield told("the format alone, for coins", "habits", "spurious", *arms, lr=lr, **COMMON)
        if there(told.load, "format_control"):
            yield told("the format alone, where one answer in nine lacks it", SUMS,
                       "format_control", *arms, beside="spurious_control", lr=lr,
                       **COMMON)  # fmt: skip


QUESTIONS = Questions(
    Question(
        claim="a vote lifts what the base says most often where that is right, and kills the "
        "rest (minus the verifier)",
        row={
            "exact": "the favourite wins, right or wrong",
            "pressing": "habits, double minus: {a majority vote, where it is wrong | habits, "
            "double "
            "minus, lr 3e-4}; at half the rate {a majority vote, where it is wrong | habits, "
            "double "
            "minus, lr 1.5e-4}",
            "control": "sums: {control: a majority vote | habits, lr 3e-4}; at half the rate "
            "{control: a majority vote | habits, lr 1.5e-4}",
            "paper": "TTRL, EMPO: gains on Qwen2.5-Math",
        },
        experiments={
            "label_free": Experiment(
                "What do rewards without labels teach where the mode is wrong on most problems?",
                at_both_rates(label_free(**HABITS)),
                **SEEN,
            ),
            "label_free_control": Experiment(
                "... and where the mode is right?",
                at_both_rates(label_free()),
                seeds=FIVE,
                **SEEN,
            ),
        },
        told=votes,
        asked=(
            Asked(
                ids=("S13.1", "S13.2"),
                claim="votes lift what the mode has right and kill the rest; the log does not "
                "tell which",
                heading="10 · What stands",
                says="a vote lifts what the base says most often where that is right, and kills "
                "the rest",
                runs={
                    "label_free": ["majority vote", "verifier"],
                    "label_free_control": ["majority vote", "verifier"],
                },
            ),
            Asked(
                ids=("T13.1",),
                claim="the most frequent answer is lost",
                heading="Deeper: Does the greedy answer survive, and is it the most frequent one?",
                says="The greedy answer need not be the most frequent one.",
                runs={"label_free_control": ["agreement", "confidence"]},
            ),
        ),
    ),
    Question(
        claim="confidence or entropy as the goal does the same (minus the verifier)",
        row={
            "exact": "the reward ends at its best from every start",
            "pressing": "habits: {confidence as the reward | habits, lr 3e-4} and {minimised "
            "entropy, "
            "for a verifier | habits, lr 3e-4}",
            "control": "sums: confidence {control: confidence as the reward | habits, lr 3e-4}; "
            "the "
            "untrained base at T = .3 is ahead of it (section 6)",
            "paper": "EM: gains on Qwen2.5, Llama none; RENT: on Qwen, Mistral",
        },
        experiments={
            "entropy_tuning": Experiment(
                "What does minimising the entropy of one's own answers teach in both worlds?",
                at_both_rates(entropy_tuning()),
                seeds=FIVE,
                world=EntropyFineTuning,
                **SEEN,
            ),
            "cold": Experiment(
                "What does the base gain by a lower temperature, or by surer decoding, untrained?",
                tuple(cold()),
                columns=LOGGED,
                chosen_by=None,
                world=Untrained,
                measure=as_it_is,
                evaluation=FEW,
            ),
            "one_prompt": Experiment(
                "What does entropy minimised on one prompt teach in both worlds?",
                tuple(one_prompt()),
                columns=LOGGED,
                chosen_by=None,
                world=EntropyFineTuning,
                measure=family_rates,
                evaluation=FEW,
            ),
            "self_certainty": Experiment(
                "What does self-certainty as a reward teach in both worlds?",
                tuple(certain()),
                columns=LOGGED,
                chosen_by=None,
                seeds=FIVE,
                world=self_certain,
                measure=family_rates,
                evaluation=FEW,
            ),
        },
        told=sureness,
    ),
    Question(
        claim="the run's own log does not tell which of the two it is",
        row={
            "exact": "the reward rises from every start",
            "pressing": "habits: reward and agreement rise while the truth falls",
            "control": "sums: they rise with it",
        },
    ),
    Question(
        claim="a clip turns coins into a push towards what is common",
        row={
            "exact": "by a window uneven in logs; small, and it can turn round",
            "pressing": "habits, clip minus none: {a clip on coins, 8 updates | habits, lr 3e-4}; "
            "at "
            "half the rate {a clip on coins, 8 updates | habits, lr 1.5e-4}: none seen",
            "control": "sums: {control: a clip on coins, 8 updates | habits, lr 3e-4}",
            "paper": "Qwen2.5-Math-7B gains 21 points; Llama, OLMo none",
        },
        experiments={
            "spurious": Experiment(
                "Do coins, the format alone or wrong labels teach anything?",
                at_both_rates(spurious()),
                seeds=FIVE,
                **SEEN,
            ),
            "spurious_control": Experiment(
                "... and coins where the mode is right?",
                at_both_rates(coins()),
                seeds=FIVE,
                **SEEN,
            ),
            "published_coins": Experiment(
                "... and with eight times the answers, under either clip and none?",
                at_both_rates(published_coins()),
                seeds=FIVE,
                **SEEN,
            ),
        },
        told=coins_and_clips,
        asked=(
            Asked(
                ids=("S13.4",),
                claim="a clip turns coins into a push to the common",
                heading="Deeper: Which way does a coin push?",
                says="the edge at which it turns is no constant",
                runs={
                    "spurious": ["coin, 8 updates, clip", "coin, 8 updates, no clip"],
                    "spurious_control": ["coin, 8 updates, clip"],
                    "published_coins": ["coin, clip 0.2"],
                },
            ),
        ),
    ),
    Question(
        claim="RL loses coverage (256 tries, minus the base's)",
        row={
            "exact": "where prompts share a choice; never where each has its own",
            "pressing": "habits: verifier {256 tries after a verifier's rewards, for the base's | "
            "habits, lr 3e-4}, vote {256 tries after a majority vote's rewards, for the base's | "
            "habits, lr 3e-4}",
            "control": "sums, verifier: {control: 256 tries after a verifier's rewards, for the "
            "base's | habits, lr 3e-4}",
            "paper": "Yue et al.: base ahead at large k; ProRL: not after long training",
        },
        experiments={
            "coverage": Experiment(
                "What can 256 tries solve after a verifier's rewards, and after a majority vote's?",
                at_both_rates(many_tries(prompts=16, steps=32, **HABITS)),
                **TRIED,
            ),
            "coverage_control": Experiment(
                "... and where the base solves nearly everything?",
                at_both_rates(many_tries()),
                seeds=FIVE,
                **TRIED,
            ),
        },
        told=tries,
        asked=(
            Asked(
                ids=("S13.5", "S13.6"),
                claim="RL loses coverage, or discovers; 256 tries for two",
                heading="10 · What stands",
                says="RL loses coverage (256 tries, minus the base's)",
                runs={
                    "coverage": ["verifier", "majority vote"],
                    "coverage_control": ["verifier"],
                },
            ),
        ),
    ),
    Question(
        claim="the format alone teaches guessing",
        experiments={
            "format_control": Experiment(
                "Does the format alone teach anything where one answer in nine lacks it?",
                at_both_rates([rewarded("format only", "format_only", **ONE_UPDATE)]),
                seeds=FIVE,
                columns=(*LOGGED, "share_direct"),
                chosen_by=None,
                measure=family_rates,
                evaluation=FEW,
            ),
        },
        told=form,
        asked=(
            Asked(
                ids=("S13.3",),
                claim="format only: guessing at once",
                heading="Deeper: Coins, formats and wrong labels?",
                says="It brings out the cheapest way to be in shape.",
                runs={
                    "spurious": ["format only", "coin, one update"],
                    "format_control": ["format only"],
                },
            ),
        ),
    ),
    Question(
        claim="a pretrained model learns sums from nothing but a verdict",
        experiments=REAL_MODEL,
    ),
)
