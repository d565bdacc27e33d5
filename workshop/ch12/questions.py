"""Chapter 12: its questions, each with what is run, claimed, printed and asked of it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from workshop.ch12.experiments import (
    ASKED,
    DIALS,
    FIVE,
    HIGHER,
    LITE,
    NORMS,
    PER_ANSWER,
    TOKENS,
    WHOLE_BATCH,
    base_cell,
    base_switches,
    crossed,
    dialled,
    doses,
    exchanged,
    from_trained,
    head_room,
    trained_cell,
    with_room,
)
from workshop.shared.design import Experiment, no_columns
from workshop.shared.evidence import families, short
from workshop.shared.experiments import FEW, STEPS
from workshop.shared.question import Asked, Question
from workshop.shared.runs import HELD_OUT, Column, Load, Runs
from workshop.shared.scorecard import Questions
from workshop.shared.told import NOT_NAMED, OWN, PASS, SUMS, Told, rung, there
from workshop.shared.verdict import Claim
from workshop.shared.worlds import HABITS

FACTORS = ("normalisation", "average", "clip", "overlong")
ON_SUMS, TIGHT = "plain sums, own rates", "limit of 32 tokens, own rates"
CROSSED = "all choices crossed, the base, lr 2e-4"
GRID = "the base, all choices crossed, at 2e-4"
ON_HABITS, DIALLED = "habits, lr 3e-4", "plain sums, lr 1e-4"
ROOM = "a trained policy with more to learn, own rates"


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


def grid(told: Told, text: str, factor: str, level: str, rival: str) -> Iterator[Claim]:
    """A choice averaged over all the others, on easy and hard sums: a run is a seed of either."""
    worlds = (("tricks_grid", 1e-4), ("tricks_grid", 2e-4), ("tricks_grid_trained", 1e-4))
    for name, lr in worlds:
        policy = "a trained policy" if name.endswith("trained") else "the base"
        world = f"all choices crossed, {policy}, lr {short(lr)}"
        arm, against = (in_the_grid(told.load, name, factor, one, lr) for one in (level, rival))
        yield Claim(text=text, chapter=told.chapter, world=world, unit="pass@1", family="12",
                    arm=arm, against=against, null=against, at="stated", source=name)  # fmt: skip


def on_habits(told: Told, arms: Mapping[str, str], null: str | None = NOT_NAMED) -> Iterator[Claim]:
    for lr in (3e-4, 6e-4):
        for arm, text in arms.items():
            yield told(text, "habits", "lite_habits", arm, "LitePPO", lr=lr, null=null,
                       collapse=arm == "lowest 80 %")  # fmt: skip


def batch_sigma(told: Told) -> Iterator[Claim]:
    yield from grid(told, "σ of the batch against none", "normalisation", "batch σ", "none")


def group_sigma(told: Told) -> Iterator[Claim]:
    text = "σ of the group against none"
    for lr in (3e-4, 6e-4):
        yield told(text, "habits", "lite_habits", "group σ", "no σ", lr=lr)
    yield from grid(told, text, "normalisation", "group σ", "none")


def token_mean(told: Told) -> Iterator[Claim]:
    yield from grid(told, "a mean over tokens", "average", "over tokens", "per answer")


def clip_higher(told: Told) -> Iterator[Claim]:
    yield from grid(told, "clip-higher", "clip", "higher", "symmetric")


def overlong(told: Told) -> Iterator[Claim]:
    text = "the overlong filter, the limit lifted"
    yield from grid(told, text, "overlong", "filtered", "wrong")


def lite_ppo(told: Told) -> Iterator[Claim]:
    yield from rung(told, "LitePPO for GRPO", "LitePPO", "GRPO", null=None)
    how = (SUMS + OWN, "methods", "lite_ppo")
    yield told("LitePPO against GRPO", *how, "grpo", null=None, headline=True)
    yield told("LitePPO against DAPO", *how, "dapo", null=None)


def gpg(told: Told) -> Iterator[Claim]:
    yield from rung(told, "GPG for RLOO", "GPG", "RLOO", null=None)
    yield told("GPG against RLOO", SUMS + OWN, "methods", "gpg", "rloo")


def recipes(told: Told) -> Iterator[Claim]:
    """What filter and ramp cost two recipes that lose to their own losses on an equal budget."""
    for name in ("DAPO", "CISPO"):
        yield told(
            f"{name}'s filter and ramp", "plain sums, the ladder", "ladder_sums",
            name, f"{name}, no filter, no ramp", beside="recipes_sums",
        )  # fmt: skip


def some_tokens(told: Told) -> Iterator[Claim]:
    fifth = {"top 20 %": "the fifth of the tokens with most entropy"}
    yield from on_habits(told, fifth, "random 20 %")
    others = {"random 20 %": "a fifth drawn blindly", "lowest 80 %": "all tokens but that fifth"}
    yield from on_habits(told, others)


def batch_mean(told: Told) -> Iterator[Claim]:
    yield from on_habits(told, {"batch mean and σ": "the batch's mean for a baseline"}, None)


def dials(told: Told) -> Iterator[Claim]:
    texts = {"bonus": "a bonus of 0.2 on entropy", "adaptive": "entropy held by a controller"}
    texts |= {"Clip-Cov": "Clip-Cov", "KL-Cov": "KL-Cov by an absolute value"}
    texts |= {"KL-Cov, k3": "KL-Cov by a smooth estimate"}
    for lr in (1e-4, 2e-4):
        for arm, text in texts.items():
            yield told(text, SUMS, "entropy_dial", arm, "LitePPO", lr=lr)
    if there(told.load, "entropy_doses"):
        for lr in (3e-4, 6e-4):
            for arm in arms_of(told, "entropy_doses"):
                yield told(f"{arm}, a dial of entropy", "habits", "entropy_doses", arm, "LitePPO",
                           lr=lr)  # fmt: skip


def switches(told: Told) -> Iterator[Claim]:
    """LitePPO's choices exchanged, where something is left to learn and where little is."""
    worlds = (
        ("head_room", "a trained policy with more to learn, own rates", PASS),
        ("switches_easy", "easy sums under a limit, own rates", Column("pass@1_room")),
        ("switches_hard", "hard sums under a limit, own rates", Column("pass@1_room")),
    )
    for name, world, column in worlds:
        if there(told.load, name):
            for arm in arms_of(told, name):
                yield told(f"{arm}, for LitePPO", world, name, arm, "LitePPO", column,
                           unit="pass@1")  # fmt: skip
    for lr in (1e-4, 2e-4):
        for arm in ("no σ", "group σ", "mean per answer", "clip-higher"):
            yield told(f"{arm} where most is right already", "a trained policy", "lite_trained",
                       arm, "LitePPO", lr=lr)  # fmt: skip


def arms_of(told: Told, name: str) -> list[str]:
    """All arms of an experiment but LitePPO."""
    return [arm for arm in told.load(f"{name}_eval").arm.unique() if arm != "LitePPO"]


QUESTIONS = Questions(
    Question(
        claim="batch σ instead of none",
        row={
            "exact": "one factor for the batch; Adam undoes it",
            "control": f"{GRID}: {{σ of the batch against none | {CROSSED}}}",
            "paper": "the best normalisation",
        },
        experiments={
            "tricks_grid": crossed(
                "What is each choice worth, averaged over the others?", base_cell
            ),
            "tricks_grid_trained": crossed("... and where most is right already?", trained_cell),
        },
        told=batch_sigma,
        asked=(
            Asked(
                ids=("S12.1",),
                claim="no σ is found to matter, in 384 runs",
                heading="Deeper: Every comparison in numbers, and one choice of LitePPO exchanged",
                says="no exchange is worth more than 0.01",
                runs={
                    "tricks_grid": ["easy", "hard"],
                    "head_room": ["group σ", "no σ", "LitePPO"],
                    "habits_sigma": ["GRPO", "GRPO, no σ"],
                },
            ),
        ),
    ),
    Question(
        claim="σ of the group reweighs prompts",
        row={
            "exact": "both ends of the solve rate gain",
            "pressing": f"habits {{σ of the group against none | {ON_HABITS}}}",
            "control": f"{GRID}: {{σ of the group against none | {CROSSED}}}",
            "paper": "hurts on easy data",
        },
        told=group_sigma,
    ),
    Question(
        claim="mean over tokens",
        row={
            "exact": "turns the push where lengths differ",
            "pressing": "lost answers shrink (chapter 07)",
            "control": f"{GRID}: {{a mean over tokens | {CROSSED}}}; a trained policy, the "
            f"mean per answer: {{mean per answer, for LitePPO | {ROOM}}}",
            "paper": "helps raw bases",
        },
        told=token_mean,
        asked=(
            Asked(
                ids=("S12.3", "S12.4"),
                claim="mean over tokens: +5 on a base, none on a trained policy; clip-higher: none",
                heading="Deeper: All choices crossed: how does one read a factorial?",
                says="The trained policy learned nothing in these batches, so its half tells no "
                "choices apart.",
                runs={
                    "tricks_grid": ["easy", "hard"],
                    "tricks_grid_trained": ["easy", "hard"],
                    "head_room": ["mean per answer", "clip-higher"],
                },
            ),
        ),
    ),
    Question(
        claim="clip-higher",
        row={
            "exact": "idle on the first update",
            "pressing": "half time of a rare opening {clip-higher frees a rare token | rare "
            "opening, "
            "lr 1e-4}",
            "control": f"{GRID}: {{clip-higher | {CROSSED}}}; a trained policy: "
            f"{{clip-higher, for LitePPO | {ROOM}}}",
            "paper": "helps aligned models",
        },
        told=clip_higher,
    ),
    Question(
        claim="overlong filter",
        row={
            "exact": "idle where nothing is cut off",
            "pressing": f"once the limit is lifted {{the filter keeps it | {TIGHT}}}",
            "control": f"{GRID}: {{the overlong filter, the limit lifted | {CROSSED}}}",
            "paper": "helps short answers",
        },
        told=overlong,
    ),
    Question(
        claim="LitePPO beats GRPO and DAPO",
        row={
            "exact": "three of GRPO's choices changed",
            "control": f"GRPO: {{LitePPO against GRPO | {ON_SUMS}}}, "
            f"DAPO: {{LitePPO against DAPO | {ON_SUMS}}}",
            "paper": "beats both",
        },
        told=lite_ppo,
        asked=(
            Asked(
                ids=("S12.6",),
                claim="LitePPO beats GRPO, DAPO not",
                heading="The ladder",
                says="recipes of small choices",
                runs={
                    "methods": ["lite_ppo", "grpo", "dapo"],
                    "ladder_sums": ["LitePPO", "GRPO"],
                    "ladder_habits": ["LitePPO", "GRPO"],
                },
            ),
        ),
    ),
    Question(
        claim="α of GPG",
        row={
            "exact": "one factor for the batch; Adam undoes it",
            "control": f"RLOO: {{GPG against RLOO | {ON_SUMS}}}",
            "paper": "+4 points over no α",
        },
        told=gpg,
        asked=(
            Asked(
                ids=("S12.7",),
                claim="α of GPG: level with RLOO",
                heading="The ladder",
                says="no difference between GPG and RLOO",
                runs={
                    "methods": ["gpg", "rloo"],
                    "ladder_sums": ["GPG", "RLOO"],
                    "ladder_habits": ["GPG", "RLOO"],
                },
            ),
        ),
    ),
    Question(
        claim="a fifth of the tokens suffices",
        row={
            "exact": "no entropy, no gradient",
            "pressing": f"habits {{the fifth of the tokens with most entropy | {ON_HABITS}}}; "
            f"a blind fifth {{a fifth drawn blindly | {ON_HABITS}}}",
            "control": "sums: most of the direction; a blind fifth has less",
            "paper": "better than all tokens, 32B",
        },
        experiments={
            "lite_habits": Experiment(
                "Which choice of LitePPO matters where the base's mode is wrong?",
                tuple(
                    exchanged(
                        NORMS | {"batch mean and σ": replace(LITE, advantage=WHOLE_BATCH)} | TOKENS,
                        lr=(3e-4, 6e-4),
                        minibatches=1,
                        steps=20,
                        **HABITS,
                    )
                ),
                seeds=FIVE,
                chosen_by=None,
                measure=no_columns,
                watch=families,
                evaluation=ASKED,
            ),
        },
        told=some_tokens,
        asked=(
            Asked(
                ids=("S12.8",),
                claim="a fifth of the tokens suffices",
                heading="Deeper: 80/20, trained: does the fifth suffice?",
                says="A blind fifth costs ten to fifteen points",
                runs={"lite_habits": ["top 20 %", "random 20 %", "lowest 80 %", "LitePPO"]},
            ),
        ),
    ),
    Question(
        claim="holding entropy",
        row={
            "exact": "a bonus turns a step away from the reward",
            "pressing": f"habits: Clip-Cov {{Clip-Cov, a dial of entropy | {ON_HABITS}}}, "
            f"KL-Cov {{KL-Cov, a dial of entropy | {ON_HABITS}}}, "
            f"a bonus of 0.2 {{bonus, a dial of entropy | {ON_HABITS}}}",
            "control": f"Clip-Cov {{Clip-Cov | {DIALLED}}}, "
            f"KL-Cov {{KL-Cov by an absolute value | {DIALLED}}}, "
            f"a bonus of 0.2 {{a bonus of 0.2 on entropy | {DIALLED}}}",
            "paper": "gains at 7B and 32B",
        },
        experiments={
            "entropy_dial": Experiment(
                "What does each dial do to entropy, and what does that buy?",
                tuple(exchanged(DIALS, lr=(1e-4, 2e-4), minibatches=4, steps=12)),
                seeds=FIVE,
                chosen_by=None,
                world=dialled,
                measure=no_columns,
                evaluation=ASKED,
            ),
            "entropy_doses": Experiment(
                "What do the dials of entropy buy on habits, at two doses?",
                tuple(doses()),
                columns=STEPS,
                chosen_by=None,
                seeds=(0, 1, 2, 3, 4),
                world=dialled,
                measure=no_columns,
                evaluation=ASKED,
            ),
        },
        told=dials,
        asked=(
            Asked(
                ids=("S12.9",),
                claim="dials hold entropy and pay",
                heading="Deeper: Can entropy be held, and at what price?",
                says="Nor does it buy anything on habits",
                runs={
                    "entropy_dial": ["bonus", "adaptive", "Clip-Cov", "KL-Cov"],
                    "entropy_doses": ["bonus, half", "KL-Cov, half"],
                },
            ),
        ),
    ),
    Question(
        claim="R = −a e^H + b",
        row={
            "exact": "needs Cov > 0: a mode that is right",
            "pressing": "habits: wrong sign",
            "control": "sums: forecasts within a few points",
            "paper": "eleven models",
        },
        asked=(
            Asked(
                ids=("S12.10",),
                claim="R = −a e^H + b: sums yes, habits the wrong sign",
                heading="Deeper: Is there a law that trades entropy for accuracy?",
                says="So the law is a thermometer.",
                runs={"methods": ["lite_ppo", "ppo"], "habits": ["RLOO", "GRPO", "MaxRL"]},
            ),
        ),
    ),
    Question(
        claim="each choice of LitePPO is the better one",
        experiments={
            "lite_trained": Experiment(
                "Which choice of LitePPO matters where most answers are right already?",
                tuple(
                    exchanged(
                        NORMS | PER_ANSWER | HIGHER,
                        lr=(1e-4, 2e-4),
                        minibatches=8,
                        steps=8,
                        levels=(2, 3, 4),
                    )
                ),
                seeds=FIVE,
                chosen_by=None,
                world=from_trained,
                measure=no_columns,
                evaluation=ASKED,
            ),
            "head_room": Experiment(
                "Which choice of LitePPO matters to a policy that has learned, and can learn more?",
                tuple(head_room()),
                columns=STEPS,
                tuning_seeds=(100, 101),
                world=partial(from_trained, steps=10),
                measure=no_columns,
                evaluation=ASKED,
            ),
            **{
                f"switches_{name}": Experiment(
                    f"Which choice of LitePPO matters to the base on {name} sums under a limit?",
                    tuple(base_switches(levels, limit)),
                    columns=STEPS,
                    tuning_seeds=(100, 101),
                    chosen_by="pass@1_room",
                    measure=with_room,
                    evaluation=FEW,
                    planned=True,
                )
                for name, levels, limit in (("easy", (2, 3), 24), ("hard", (4, 5, 6), 40))
            },
        },
        told=switches,
        asked=(
            Asked(
                ids=("T12.1",),
                claim="of 19 comparisons 8 differ",
                heading="7 · Which of the paper's claims hold in this book's runs?",
                says="Holm's correction for all of them together",
                runs={
                    "siblings": ["GRPO", "GRPO, no σ"],
                    "rare_opening": ["clip-higher 0.28"],
                    "tight_limit": ["filter"],
                    "lite_habits": ["group σ"],
                },
            ),
        ),
    ),
    Question(
        claim="the batch's mean is a baseline as good as the group's",
        told=batch_mean,
        asked=(
            Asked(
                ids=("T12.2", "C12.42"),
                claim="the batch's mean: +.024 on habits, −.023 on sums",
                heading="Deeper: Every comparison in numbers, and one choice of LitePPO exchanged",
                says="this is a choice that has no sign of its own",
                runs={
                    "lite_habits": ["batch mean and σ", "LitePPO"],
                    "siblings": ["batch mean", "PPO's loss, siblings"],
                    "head_room": ["batch mean"],
                },
            ),
        ),
    ),
    Question(
        claim="filter and ramp cost DAPO and CISPO their place among the rows on sums",
        told=recipes,
    ),
)
