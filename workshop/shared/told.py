"""How claims are built: a text, a world, two arms, and the defence that each has."""

from collections.abc import Iterator
from typing import Any

from workshop.shared.evidence import load_results, short
from workshop.shared.runs import Column, Load, Runs, runs_of
from workshop.shared.verdict import Claim

SUMS, HABITS = "plain sums", "habits"
OWN = ", own rates"
PASS = Column("pass@1")
ALL_LEVELS = Column("pass@1_level_*")
HALF_TIME = Column("opens_rarely", half_time=True, prefixes=True)
NOT_NAMED = "against"  # the null: nothing but the named cause differs between the two arms


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


def pretrained(
    told: Told, text: str, experiment: str, arm: str, against: str, beside: str | None = None
) -> Iterator[Claim]:
    """Chapter 13's pretrained model on sums of two numbers, at both of its rates."""
    for lr in (1.5e-5, 3e-5):
        yield told(text, "a pretrained model", experiment, arm, against, Column("pass@1_1"), lr=lr,
                   beside=beside, null=None, unit="pass@1", family="pretrained")  # fmt: skip


def told_pretrained(pair: str, text: str) -> str:
    """What a scorecard's row says of that: the pair of arms, and its difference at both rates."""
    worlds = ("a pretrained model, lr 1.5e-5", "a pretrained model, lr 3e-5")
    return f"{pair}: " + " and ".join(f"{{{text} | {world}}}" for world in worlds)


def there(load: Load, name: str) -> bool:
    """Whether an experiment has been run to its end."""
    try:
        return len(load(f"{name}_eval")) > 0 and len(load(f"{name}_start")) > 0
    except FileNotFoundError:
        return False


def clip_where_nothing_is_rare(told: Told, name: str, arm: str, against: str) -> Iterator[Claim]:
    for use, words in (("minibatches", "16 minibatches"), ("stale", "sampler up to 3 batches old")):
        world = f"{SUMS}{OWN}, {words}"
        yield told(f"{name} where nothing is rare", world, f"regions_{use}", arm, against)


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
