"""The book's claims from training, chapter by chapter, each with the defence that it has."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pandas as pd

from rlbook.tasks.habits import FAMILIES
from workshop.evidence import load_results, short
from workshop.verdicts.runs import HALF, HELD_OUT, PIPELINE, Column, Load, Runs, runs_of
from workshop.verdicts.verdict import Claim

SUMS, HABITS = "plain sums", "habits"
OWN = ", own rates"
PASS = Column("pass@1")
EACH_FAMILY = Column("pass@1_habits")
ALL_LEVELS = Column("pass@1_level_*")
HALF_TIME = Column("opens_rarely", half_time=True, prefixes=True)
LATE = Column("accuracy", steps=(16, 20))
LOST = Column("length_lost", steps=(20, 20), learned=LATE)
NOT_NAMED = "against"  # the null: nothing but the named cause differs between the two arms
DIFFERENT = (("MaxRL finds rare rules sooner", 4), ("... the rarer the rule, the more", 5))
DIFFERENT += (("... and what is known pays meanwhile", 1),)


class Told:
    """Builds the claims of one chapter, from tables that are read once.

    Called with a text, a world, an experiment and two of its arms. `null` is an arm of the same
    experiment, or `NOT_NAMED`; `control` an experiment with both arms, or (experiment, arm,
    against) where they have other names there.
    """

    def __init__(self, chapter: str, load: Load = load_results):
        self.chapter, self.load = chapter, load

    def __call__(
        self,
        text: str,
        world: str,
        experiment: str,
        arm: str,
        against: str,
        column: Column = PASS,
        *,
        lr: float | None = None,
        against_lr: float | None = None,
        beside: str | None = None,
        null: str | None = NOT_NAMED,
        control: str | tuple[str, str, str] | None = None,
        unit: str = "",
        **more: Any,
    ) -> Claim:
        def runs(name: str, label: str, rate: float | None) -> Runs:
            return runs_of(name, label, column, rate, self.load)

        rival = runs(beside or experiment, against, against_lr or lr)
        where = (control, arm, against) if isinstance(control, str) else control
        return Claim(
            text=text,
            chapter=self.chapter,
            world=f"{world}, lr {short(lr)}" if lr else world,
            unit=unit or column.name.replace("_*", ""),
            family=more.pop("family", self.chapter),
            arm=runs(experiment, arm, lr),
            against=rival,
            null=rival if null == NOT_NAMED else null and runs(experiment, null, lr),
            control=where and tuple(runs(where[0], label, lr) for label in where[1:]),
            at=more.pop("at", "stated" if lr else "own best"),
            source=experiment,
            **more,
        )


def rung(
    told: Told, text: str, arm: str, against: str, null: str | None = NOT_NAMED
) -> Iterator[Claim]:
    """A claim of the ladder in both of its worlds, that of sums being the control of habits."""
    for name, world, control in (
        ("ladder_habits", HABITS, "ladder_sums"),
        ("ladder_sums", SUMS, None),
    ):
        yield told(
            text, f"{world}, the ladder", name, arm, against, null=null, control=control,
            headline=True,
        )  # fmt: skip


def there(load: Load, name: str) -> bool:
    """Whether an experiment has been run to its end."""
    try:
        return len(load(f"{name}_eval")) > 0 and len(load(f"{name}_start")) > 0
    except FileNotFoundError:
        return False


def baselines(told: Told) -> Iterator[Claim]:
    yield from rung(told, "a batch mean for no baseline", "REINFORCE, batch mean", "REINFORCE")
    average = "REINFORCE, moving average"
    yield from rung(told, "an average that starts at the mean", average, "REINFORCE")
    how = (SUMS + OWN, "baselines")
    yield told("one point more for every answer costs", *how, "none, 1/2", "none, 0/1")
    yield told("a batch mean against no baseline", *how, "batch mean", "none, 0/1", null=None)


def reuse(told: Told) -> Iterator[Claim]:
    yield from rung(told, "PPO for REINFORCE", "PPO", "REINFORCE", null=None)
    clipped, free = "16 minibatches, clip 0.2", "16 minibatches, no trust region"
    how = (SUMS + OWN, "reuse")
    yield told("sixteen updates pay, with a clip", *how, clipped, "one update", null=free)
    yield told("sixteen without a clip", *how, free, "one update")
    yield told("four passes or one", *how, "4 passes of 4, clip 0.2", clipped)
    yield told(
        "λ = 0.95 against 1", SUMS + OWN, "siblings", "PPO, critic, λ = 0.95", "PPO, critic, λ = 1"
    )
    yield from clip_where_nothing_is_rare(told, "a clip", "clip 0.2", "no trust region")


def clip_where_nothing_is_rare(told: Told, name: str, arm: str, against: str) -> Iterator[Claim]:
    for use, words in (("minibatches", "16 minibatches"), ("stale", "sampler 4 batches old")):
        world = f"{SUMS}{OWN}, {words}"
        yield told(f"{name} where nothing is rare", world, f"regions_{use}", arm, against)


def rlhf(told: Told) -> Iterator[Claim]:
    world, name = "habits, 1000 pairs", "overoptimisation"
    yield told("a reward model instead of the verifier", world, name, "1000 pairs", "verifier")
    leash = "1000 pairs, β = 0.1"
    yield told("... and what a leash of 0.1 gives back", world, name, leash, "1000 pairs")
    yield told("a leash of 0.3, for one of 0.1", world, "short_leash", "1000 pairs, β = 0.3", leash,
               beside=name)  # fmt: skip
    yield told("half the rate, twice the steps", world, f"{name}_slow", "1000 pairs", "1000 pairs",
               beside=name)  # fmt: skip
    if there(told.load, "fresh_pairs"):
        yield told("pairs of the policy as it is, for pairs of the base", world, "fresh_pairs",
                   "its own pairs, five times", "the base's pairs, five times")  # fmt: skip
    if there(told.load, "told_directly"):
        yield told("right answers that somebody wrote, for PPO with a verifier", "habits",
                   "told_directly", "256 written answers", "verifier", beside=name,
                   null=None)  # fmt: skip
        yield told("DPO, for PPO under a leash of 0.1, the same pairs", world,
                   "told_directly", "DPO on 1000 pairs", leash, beside=name, null=None)  # fmt: skip
    yield told("four passes over 1000 pairs, for one over 4000", world, "passes",
               "1000 pairs, four passes", "4000 pairs", beside=name)  # fmt: skip
    yield told("four passes over 1000 pairs, for one", world, "passes",
               "1000 pairs, four passes", "1000 pairs, one pass")  # fmt: skip
    misled = "misled annotators, β = 0.1"
    yield told("annotators who share a misconception", world, "misled", misled, leash, beside=name)


def grpo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "GRPO for PPO", "GRPO", "PPO", null=None)
    yield from rung(told, "σ and nothing else", "GRPO", "GRPO, no σ")
    if there(told.load, "habits_sigma"):
        habits = ("habits, forty batches, own rates", "habits_sigma", "GRPO", "GRPO, no σ")
        yield told("σ and nothing else", *habits, control="ladder_sums")
    how = (SUMS + OWN, "siblings")
    critic, siblings = "PPO, critic, λ = 1", "PPO's loss, siblings"
    yield told("siblings against a critic", *how, siblings, critic)
    yield told("siblings against the batch mean", *how, siblings, "batch mean")
    yield told("a mean per answer costs", *how, "GRPO", siblings)
    yield told("a KL penalty", *how, "GRPO + KL", "GRPO")
    habits = ("habits, own rates", "habits", "GRPO", "RLOO", ALL_LEVELS)
    yield told("σ brings rare rules forward", *habits, null=None)


def rloo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "siblings for no baseline", "RLOO", "REINFORCE")
    yield from rung(told, "128 prompts for 16 of eight", "REINFORCE++", "RLOO", null=None)
    yield told("groups of two against eight", SUMS + OWN, "group_sizes", "k = 2", "k = 8")
    yield told("groups of four against eight", SUMS + OWN, "group_sizes", "k = 4", "k = 8")
    how = (SUMS + OWN, "methods")
    yield told("no baseline leads siblings", *how, "reinforce", "rloo", null=None)
    yield told("a greedy answer for a baseline", *how, "remax", "rloo")


def dr_grpo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "Dr. GRPO for GRPO", "Dr. GRPO", "GRPO", null=None)
    yield told("σ where nothing is hard", SUMS + OWN, "siblings", "GRPO", "GRPO, no σ")
    averages = (
        ("dividing by its length lets a lost answer grow", "mean per answer"),
        ("a mean over the prompt does so too", "prompt mean"),
        ("a mean over all tokens, less", "token mean"),
    )
    for lr in (1.5e-4, 3e-4):
        for text, arm in averages:
            yield told(text, "answers that start lost", "lost_answers", arm, "constant", LOST,
                       lr=lr, unit="tokens")  # fmt: skip
        plain = ("lost_answers_control", "mean per answer", "constant")
        length = Column("length", learned=PASS)
        yield told(
            "where none starts lost, the answers", SUMS, *plain, length, lr=lr, unit="tokens"
        )
        yield told("... and their accuracy", SUMS, *plain, lr=lr)


def dapo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DAPO for GRPO", "DAPO", "GRPO", null=None)
    if there(told.load, "equal_answers"):
        yield told("dynamic sampling, at equal answers", "3 of 4 prompts unsolvable, own rates",
                   "equal_answers", "+ dynamic sampling", "GRPO", Column("pass@1_solvable"),
                   unit="pass@1", headline=True)  # fmt: skip
    higher = ("clip-higher 0.28", "clip 0.2")
    yield from clip_where_nothing_is_rare(told, "clip-higher", *higher)
    yield from rare(told, "clip-higher frees a rare token", "clip-higher on a rare rule", *higher)
    at_once, room = Column("answers_at_once", learned=Column("pass@1_limit_80")), "pass@1_limit_80"
    how = ("limit of 32 tokens, own rates", "tight_limit")
    loose = {"control": "tight_limit_control"}
    yield told("the ramp gives up thinking", *how, "ramp", "cliff", at_once, unit="share",
               collapse=True, **loose)  # fmt: skip
    yield told("what that costs when there is room", *how, "ramp", "cliff", Column(room),
               collapse=True, headline=True, unit="pass@1", **loose)  # fmt: skip
    yield told("the filter keeps it", *how, "filter", "cliff", Column(room), unit="pass@1", **loose)
    hard = ("3 of 4 prompts unsolvable, own rates", "unsolvable", "+ dynamic sampling")
    solvable = Column("pass@1_solvable")
    yield told("dynamic sampling, at equal updates", *hard, "GRPO", solvable, unit="pass@1")
    twice = "GRPO, twice the batches"
    yield told("... against twice the updates", *hard, twice, solvable, unit="pass@1")
    yield told("all of it together", SUMS + OWN, "methods", "dapo", "grpo", null=None)
    if recorded(told.load, "all_troubles", arms=6, least=5):
        yield from parts_of_dapo(told)


def parts_of_dapo(told: Told) -> Iterator[Claim]:
    """DAPO for GRPO, and DAPO for DAPO without a part, where each part has its trouble."""
    rivals = {
        "all of DAPO, for GRPO": "GRPO",
        "DAPO's window, in its company": "DAPO, clip 0.2",
        "dynamic sampling, in its company": "DAPO, silent groups kept",
        "the token mean, in its company": "DAPO, mean per answer",
        "the ramp, in its company": "DAPO, no ramp",
    }
    for limit, where in ((32, "under its limit"), (80, "with room")):
        world = f"all of DAPO's troubles, asked {where}, own rates"
        for text, against in rivals.items():
            yield told(text, world, "all_troubles", "DAPO", against,
                       Column(f"pass@1_limit_{limit}"), family="all of DAPO", unit="pass@1",
                       null=None if against == "GRPO" else NOT_NAMED, collapse=True,
                       headline=True)  # fmt: skip


def rare(told: Told, opening: str, rule: str, arm: str, against: str) -> Iterator[Claim]:
    """A rare opening's half time at three rates, and a rare right rule at two."""
    for lr in (5e-5, 1e-4, 2e-4):
        where = ("rare opening", "rare_opening")
        yield told(opening, *where, arm, against, HALF_TIME, lr=lr, unit="batches")
    for lr in (1e-4, 2e-4):
        column = Column("right_rule_level_5")
        yield told(rule, "habits, 16 minibatches", "rare_habits", arm, against, column, lr=lr,
                   unit="share")  # fmt: skip


def masks(told: Told, arm: str, against: str, text: str) -> Iterator[Claim]:
    """The four worlds of one experiment, new tokens of an exact sampler being the control."""
    worlds = (
        ("mask_old", "tokens 8 updates old"),
        ("mask_rough", "a rough sampler"),
        ("mask_old_rough", "old tokens of a rough sampler"),
    )
    control = "mask_new" if recorded(told.load, "mask_new") else None
    for name, world in worlds:
        if recorded(told.load, name):
            how = (f"{world}, own rates", name, arm, against)
            yield told(text, *how, control=control, family="masks")


def recorded(load: Load, name: str, arms: int = 5, least: int = 2) -> bool:
    """Whether every arm of an experiment has been run with so many seeds."""
    try:
        seeds = load(f"{name}_eval").groupby("arm")["seed"].nunique()
    except FileNotFoundError:
        return False
    return len(seeds) == arms and seeds.min() >= least


def cispo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "CISPO for DAPO", "CISPO", "DAPO", null=None)
    yield from rung(told, "GSPO at its own width, for DAPO", "GSPO", "DAPO", null=None)
    for name, arm in (("CISPO", "CISPO"), ("GSPO at its own width", "GSPO")):
        yield from clip_where_nothing_is_rare(told, name, arm, "clip 0.2")
    texts = "a clipped weight frees it sooner", "CISPO on a rare rule"
    yield from rare(told, *texts, "CISPO", "clip 0.2")
    for lr in (5e-5, 1e-4, 2e-4):
        yield told("CISPO's cap itself does nothing here", "rare opening", "rare_opening", "CISPO",
                   "no trust region", HALF_TIME, lr=lr, unit="batches")  # fmt: skip
    yield told("GSPO against DAPO", SUMS + OWN, "methods", "gspo", "dapo", null=None)
    yield from masks(told, "clip at μ", "CISPO", "a clip held to the sampler, for a capped weight")
    yield from masks(told, "CISPO", "no region", "the cap itself")


def maxrl(told: Told) -> Iterator[Claim]:
    yield from rung(told, "MaxRL for RLOO", "MaxRL", "RLOO", null=None)
    if there(told.load, "habits_sigma"):
        rows = ("MaxRL, mean over tokens", "RLOO, mean over tokens")
        yield told("MaxRL's weight and nothing else", "habits, forty batches, own rates",
                   "habits_sigma", *rows, control=("ladder_sums", "MaxRL", "RLOO"),
                   headline=True)  # fmt: skip
    for lr in (3e-4, 6e-4):
        how = ("habits_rates", "MaxRL", "RLOO")
        for text, level in DIFFERENT:
            world = f"habits, {list(FAMILIES)[level - 1]}, steps 6–15"
            column = Column(f"accuracy_level_{level}", steps=(6, 15))
            yield told(text, world, *how, column, lr=lr, null=None, unit="accuracy")
        square = Column("greedy_level_6", learned=Column("pass@1_level_*"))
        yield told("... and its mode on the rarest has changed", "habits, square", *how, square,
                   lr=lr, null=None, unit="greedy")  # fmt: skip
    yield told("MaxRL on habits", "habits, own rates", "habits", "MaxRL", "RLOO", null=None,
               control=("methods", "maxrl", "rloo"))  # fmt: skip
    for lr in (0.03, 0.1):
        how = ("a shared opening", "shared_choice")
        for text, column, arm in (
            ("MaxRL keeps what RLOO gives up", "pass@64", "MaxRL"),
            ("GRPO keeps some of it", "pass@64", "GRPO"),
            ("... and pays in one try", "pass@1", "MaxRL"),
        ):
            judged = Column(column, learned=PASS)
            yield told(text, *how, arm, "RLOO", judged, lr=lr, null=None)


def dppo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "DPPO for DAPO", "DPPO", "DAPO", null=None)
    yield from clip_where_nothing_is_rare(told, "DPPO", "DPPO", "clip 0.2")
    texts = "a divergence mask frees it as soon", "DPPO on a rare rule"
    yield from rare(told, *texts, "DPPO", "clip 0.2")
    yield from masks(
        told, "DPPO", "clip at μ", "a divergence for a ratio, both held to the sampler"
    )
    held = "a clip held to the sampler, for one held to the trainer"
    yield from masks(told, "clip at μ", "clip at π_old", held)


def tricks(told: Told) -> Iterator[Claim]:
    yield from rung(told, "LitePPO for GRPO", "LitePPO", "GRPO", null=None)
    yield from rung(told, "GPG for RLOO", "GPG", "RLOO", null=None)
    yield from switches(told)
    for lr in (3e-4, 6e-4):
        for text, arm, null in (
            ("the batch's mean for a baseline", "batch mean and σ", None),
            ("the fifth of the tokens with most entropy", "top 20 %", "random 20 %"),
            ("a fifth drawn blindly", "random 20 %", NOT_NAMED),
            ("all tokens but that fifth", "lowest 80 %", NOT_NAMED),
        ):
            yield told(text, HABITS, "lite_habits", arm, "LitePPO", lr=lr, null=null,
                       collapse=arm == "lowest 80 %")  # fmt: skip
        yield told("σ of the group against none", HABITS, "lite_habits", "group σ", "no σ", lr=lr)
    dials = {"bonus": "a bonus of 0.2 on entropy", "adaptive": "entropy held by a controller"}
    dials |= {"Clip-Cov": "Clip-Cov", "KL-Cov": "KL-Cov by an absolute value"}
    dials |= {"KL-Cov, k3": "KL-Cov by a smooth estimate"}
    for lr in (1e-4, 2e-4):
        for arm, text in dials.items():
            yield told(text, SUMS, "entropy_dial", arm, "LitePPO", lr=lr)
    for lr in (1e-4, 2e-4):
        for arm in ("no σ", "group σ", "mean per answer", "clip-higher"):
            yield told(f"{arm} where most is right already", "a trained policy", "lite_trained",
                       arm, "LitePPO", lr=lr)  # fmt: skip
    how = (SUMS + OWN, "methods")
    yield told("LitePPO against GRPO", *how, "lite_ppo", "grpo", null=None, headline=True)
    yield told("LitePPO against DAPO", *how, "lite_ppo", "dapo", null=None)
    yield told("GPG against RLOO", *how, "gpg", "rloo")
    yield from grid(told)


def switches(told: Told) -> Iterator[Claim]:
    """LitePPO's choices exchanged, where something is left to learn; dials of entropy at a dose."""
    worlds = (
        ("head_room", "a trained policy with more to learn, own rates", PASS),
        ("switches_easy", "easy sums under a limit, own rates", Column("pass@1_room")),
        ("switches_hard", "hard sums under a limit, own rates", Column("pass@1_room")),
    )
    for name, world, column in worlds:
        if there(told.load, name):
            arms = [arm for arm in told.load(f"{name}_eval").arm.unique() if arm != "LitePPO"]
            for arm in arms:
                yield told(f"{arm}, for LitePPO", world, name, arm, "LitePPO", column,
                           unit="pass@1")  # fmt: skip
    if there(told.load, "entropy_doses"):
        arms = [a for a in told.load("entropy_doses_eval").arm.unique() if a != "LitePPO"]
        for lr in (3e-4, 6e-4):
            for arm in arms:
                yield told(f"{arm}, a dial of entropy", HABITS, "entropy_doses", arm, "LitePPO",
                           lr=lr)  # fmt: skip


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


FACTORS = ("normalisation", "average", "clip", "overlong")
GRID = (
    ("σ of the group against none", "normalisation", "group σ", "none"),
    ("σ of the batch against none", "normalisation", "batch σ", "none"),
    ("a mean over tokens", "average", "over tokens", "per answer"),
    ("clip-higher", "clip", "higher", "symmetric"),
    ("the overlong filter, the limit lifted", "overlong", "filtered", "wrong"),
)


def grid(told: Told) -> Iterator[Claim]:
    """A choice averaged over all the others, on easy and hard sums: a run is a seed of either."""
    worlds = (("tricks_grid", 1e-4), ("tricks_grid", 2e-4), ("tricks_grid_trained", 1e-4))
    for name, lr in worlds:
        policy = "a trained policy" if name.endswith("trained") else "the base"
        world = f"all choices crossed, {policy}, lr {short(lr)}"
        for text, factor, arm, against in GRID:
            pair = [in_the_grid(told.load, name, factor, level, lr) for level in (arm, against)]
            yield Claim(text=text, chapter="12", world=world, unit="pass@1", family="12",
                        arm=pair[0], against=pair[1], null=pair[1], at="stated",
                        source=name)  # fmt: skip


def in_the_grid(load: Load, name: str, factor: str, level: str, lr: float) -> Runs:
    """One level of a factor of the grid at one rate, mean over what it is crossed with."""
    runs, log = load(f"{name}_eval"), load(name)
    mine = runs[runs[factor] == level]
    means = mine.groupby(["lr", "arm", "seed"])["pass@1_room"].mean()
    values = {tuple(map(str, key)): value for key, value in means.loc[lr].items()}
    each = log.groupby(["arm", "lr", "seed", *FACTORS])["completions"].sum().mean()
    start = load(f"{name}_start")["pass@1_room"].mean()
    tried = means.groupby("lr").mean().to_dict()
    return Runs(level, values, HELD_OUT, float(each), tried, lr, float(start))


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


def efficiency(told: Told) -> Iterator[Claim]:
    how, alone = ("habits, own rates", "distillation"), {"null": None, "unit": "pass@1"}
    teacher, opd = "SFT on the teacher", "on-policy distillation"
    yield told("imitating a teacher, against RL", *how, teacher, "RL", EACH_FAMILY, **alone)
    yield told("on-policy distillation, against RL", *how, opd, "RL", EACH_FAMILY, **alone)
    if there(told.load, "teacher_null"):
        null = ("habits, own rates", "teacher_null")
        yield told("RL at its best", *null, "RL, MaxRL", "RL", EACH_FAMILY, **alone)
        yield told("48 examples by themselves, for RL", *null, "48 examples", "RL", EACH_FAMILY,
                   collapse=True, **alone)  # fmt: skip
    if there(told.load, "late_price"):
        for arm in ("at once", "after 12 batches"):
            yield told(f"a price {arm}, for no price", SUMS + OWN, "late_price", arm, "no price",
                       collapse=True)  # fmt: skip
    if there(told.load, "length_padded"):
        arms = told.load("length_padded_eval").arm.unique()
        for arm in (arm for arm in arms if arm != "no price"):
            padded = ("padded answers" + OWN, "length_padded", arm, "no price")
            yield told(f"{arm}, for accuracy", *padded)
            mean = Column("over_budgets")
            yield told(f"{arm}, over budgets", *padded, mean, unit="right")
    if recorded(told.load, "pupils", arms=7):
        habits = ("habits" + OWN, "pupils")
        yield told("γ = 1, for γ = 0", *habits, "γ = 1", "γ = 0", EACH_FAMILY, unit="pass@1")
        for arm in ("distilled, then RL", "imitated, then RL", "squares begun, RL"):
            yield told(f"{arm}, for RL", *habits, arm, "RL", EACH_FAMILY, beside="teacher_null",
                       **alone)  # fmt: skip
        shown = "48 examples, then RL"
        yield told("RL behind 48 examples, for them alone", *habits, shown, "48 examples",
                   EACH_FAMILY, collapse=True, **alone)  # fmt: skip
    small = ("habits, a student of a sixth", "small_student")
    for text, arm, lr in (("imitation", teacher, 2e-3), ("on-policy distillation", opd, 2e-3)):
        yield told(
            f"{text}, against RL", *small, arm, "RL", EACH_FAMILY, lr=lr, against_lr=1.2e-3, **alone
        )
    for lr in (1.5e-4, 3e-4):
        for arm in ("0.005 a token", "0.02 a token", "L1-Max, 32 tokens", "Kimi, among siblings"):
            yield told(f"{arm}, for accuracy", SUMS, "length_control", arm, "no price", lr=lr,
                       collapse=True)  # fmt: skip
    for lr in (3e-4, 6e-4):
        data = {"lr": lr, "unit": "pass@1"}
        for arm in ("easy first", "brackets only", "four problems"):
            yield told(f"{arm}, for all families", HABITS, "data_choice", arm, "all families",
                       EACH_FAMILY, **data)  # fmt: skip
        yield told("a window of pass rates", HABITS, "data_choice", "pass rate 0.2 to 0.8",
                   "as many, any", EACH_FAMILY, **data)  # fmt: skip
        for arm in ("LIMR's third", "the third of most variance", "all 96"):
            yield told(f"{arm}, for any third", HABITS, "chosen_after_a_run", arm, "any third",
                       EACH_FAMILY, **data)  # fmt: skip
        for arm in ("cold start, then RL", "R1's four stages"):
            yield told(f"{arm}, for RL alone", HABITS, "r1_stages", arm, "RL alone", EACH_FAMILY,
                       lr=lr, null=None, unit="pass@1")  # fmt: skip
    for lr in (1e-5, 2e-5):
        yield told("right or wrong, for the form alone", "SmolLM2", "smollm2", "verifier",
                   "format only", Column("after_*"), lr=lr, unit="of 8")  # fmt: skip


def credit(told: Told) -> Iterator[Claim]:
    tool = Column("pass@1_with_tool")
    texts = {"process": "a verdict on each step", "step groups": "siblings at the same place"}
    texts |= {"VinePPO, k = 2": "Monte-Carlo values of prefixes", "PRIME": "a judge from outcomes"}
    for lr in (3e-4, 6e-4):
        for arm, text in texts.items():
            sound = "process_rewards_control" if arm in ("process", "step groups") else None
            sound = "sound_credit" if arm == "PRIME" else sound
            yield told(text, "habits, an unreliable tool", "process_rewards", arm, "outcome", tool,
                       lr=lr, control=sound, unit="pass@1",
                       null=None if arm == "PRIME" else NOT_NAMED)  # fmt: skip
        yield told("the tool's tokens trained as well", "habits, an unreliable tool", "tool_tokens",
                   "tool tokens trained", "outcome", tool, lr=lr, beside="process_rewards",
                   control="sound_credit", unit="pass@1")  # fmt: skip
    if there(told.load, "prime_whitened"):
        for lr in (3e-4, 6e-4):
            for text, rival in (
                ("PRIME whitened, for PRIME", "PRIME"),
                ("PRIME whitened, for outcomes", "outcome"),
            ):
                yield told(text, "habits, an unreliable tool", "prime_whitened", "PRIME, whitened",
                           rival, tool, lr=lr, beside="process_rewards", unit="pass@1",
                           null=NOT_NAMED if rival == "PRIME" else None)  # fmt: skip
    if there(told.load, "process_rewards_above"):
        yield told("a verdict on each step", "habits, an unreliable tool", "process_rewards_above",
                   "process", "outcome", tool, lr=8.5e-4, unit="pass@1")  # fmt: skip


def scalerl(told: Told) -> Iterator[Claim]:
    yield from rung(told, "ScaleRL for GRPO", "ScaleRL", "GRPO", null=None)
    last = Column("pass@1", steps=(80, 80))
    for rate, slower in (("4e-4", ""), ("2e-4", HALF)):
        for text, arm, against, null in (
            ("tokens up to 2 updates old", "PipelineRL-2", "PipelineRL-0", NOT_NAMED),
            ("tokens up to 8 updates old", "PipelineRL-8", "PipelineRL-0", NOT_NAMED),
            ("DAPO's clip for CISPO, up to 2 old", "DAPO's clip", "PipelineRL-2", NOT_NAMED),
            ("DAPO's clip for CISPO, up to 8 old", "DAPO's clip, k = 8", "PipelineRL-8", "cap"),
        ):
            cap = "cap 1.26, k = 8" if null == "cap" and not slower else NOT_NAMED
            half = None if slower else (PIPELINE, arm + HALF, against + HALF)
            yield told(text, f"{SUMS}, a pipeline, lr {rate}", PIPELINE, arm + slower,
                       against + slower, last, null=cap, control=half, at="stated")  # fmt: skip
    yield from masks(told, "clip at μ", "no region", "a clip held to the sampler, for no region")


CHAPTERS: dict[str, Callable[[Told], Iterator[Claim]]] = {
    "02": baselines,
    "03": reuse,
    "04": rlhf,
    "05": grpo,
    "06": rloo,
    "07": dr_grpo,
    "08": dapo,
    "09": cispo,
    "10": maxrl,
    "11": dppo,
    "12": tricks,
    "13": reality,
    "14": efficiency,
    "15": credit,
    "16": scalerl,
}


def claims(chapters: Sequence[str] = tuple(CHAPTERS), load: Load = load_results) -> list[Claim]:
    """What these chapters claim from training."""
    read = cache(load)
    return [one for chapter in chapters for one in CHAPTERS[chapter](Told(chapter, read))]
