"""What chapter 12 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.evidence import short
from workshop.shared.runs import HELD_OUT, Column, Load, Runs
from workshop.shared.told import HABITS, NOT_NAMED, OWN, PASS, SUMS, Told, rung, there
from workshop.shared.verdict import Claim


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


ON_SUMS, TIGHT = "plain sums, own rates", "limit of 32 tokens, own rates"
CROSSED = "all choices crossed, the base, lr 2e-4"
ON_HABITS, DIALS = "habits, lr 3e-4", "plain sums, lr 1e-4"
ROOM = "a trained policy with more to learn, own rates"
SCORECARD = [  # numbers: `verdicts.table.scored`
    {
        "claim": "batch σ instead of none",
        "exact": "one factor for the batch; Adam undoes it",
        "control": f"the base, crossed: {{σ of the batch against none | {CROSSED}}}",
        "paper": "the best normalisation",
    },
    {
        "claim": "σ of the group reweighs prompts",
        "exact": "both ends of the solve rate gain",
        "pressing": f"habits {{σ of the group against none | {ON_HABITS}}}",
        "control": f"the base, crossed: {{σ of the group against none | {CROSSED}}}",
        "paper": "hurts on easy data",
    },
    {
        "claim": "mean over tokens",
        "exact": "turns the push where lengths differ",
        "pressing": "lost answers shrink (chapter 07)",
        "control": f"the base, crossed: {{a mean over tokens | {CROSSED}}}; a trained policy, the "
        f"mean per answer: {{mean per answer, for LitePPO | {ROOM}}}",
        "paper": "helps raw bases",
    },
    {
        "claim": "clip-higher",
        "exact": "idle on the first update",
        "pressing": "half time of a rare opening {clip-higher frees a rare token | rare opening, "
        "lr 1e-4}",
        "control": f"the base, crossed: {{clip-higher | {CROSSED}}}; a trained policy: "
        f"{{clip-higher, for LitePPO | {ROOM}}}",
        "paper": "helps aligned models",
    },
    {
        "claim": "overlong filter",
        "exact": "idle where nothing is cut off",
        "pressing": f"once the limit is lifted {{the filter keeps it | {TIGHT}}}",
        "control": f"the base, crossed: {{the overlong filter, the limit lifted | {CROSSED}}}",
        "paper": "helps short answers",
    },
    {
        "claim": "LitePPO beats GRPO and DAPO",
        "exact": "two of GRPO's choices changed",
        "control": f"GRPO: {{LitePPO against GRPO | {ON_SUMS}}}, "
        f"DAPO: {{LitePPO against DAPO | {ON_SUMS}}}",
        "paper": "beats both",
    },
    {
        "claim": "α of GPG",
        "exact": "one factor for the batch; Adam undoes it",
        "control": f"RLOO: {{GPG against RLOO | {ON_SUMS}}}",
        "paper": "+4 points over no α",
    },
    {
        "claim": "a fifth of the tokens suffices",
        "exact": "no entropy, no gradient",
        "pressing": f"habits {{the fifth of the tokens with most entropy | {ON_HABITS}}}; "
        f"a blind fifth {{a fifth drawn blindly | {ON_HABITS}}}",
        "control": "sums: most of the direction; a blind fifth has less",
        "paper": "better than all tokens, 32B",
    },
    {
        "claim": "holding entropy",
        "exact": "a bonus turns a step away from the reward",
        "pressing": f"habits: Clip-Cov {{Clip-Cov, a dial of entropy | {ON_HABITS}}}, "
        f"KL-Cov {{KL-Cov, a dial of entropy | {ON_HABITS}}}, "
        f"a bonus of 0.2 {{bonus, a dial of entropy | {ON_HABITS}}}",
        "control": f"Clip-Cov {{Clip-Cov | {DIALS}}}, "
        f"KL-Cov {{KL-Cov by an absolute value | {DIALS}}}, "
        f"a bonus of 0.2 {{a bonus of 0.2 on entropy | {DIALS}}}",
        "paper": "gains at 7B and 32B",
    },
    {
        "claim": "R = −a e^H + b",
        "exact": "needs Cov > 0: a mode that is right",
        "pressing": "habits: wrong sign",
        "control": "sums: forecasts within a few points",
        "paper": "eleven models",
    },
]
