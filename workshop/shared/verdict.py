"""A verdict is built with its defence or not at all.

A `Claim` is one arm minus another, with as much of its defence as there is; a `Verdict` is a claim
without a gap. `ledger` corrects families of claims and is what scorecards and appendix print.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from rlbook.stats.differences import holm, paired_differences
from rlbook.stats.intervals import Interval
from workshop.shared.choice import Choice, choice
from workshop.shared.evidence import short
from workshop.shared.runs import HELD_OUT, PREFIXES, Runs

HEADLINE, ROW = 10, 5  # seeds
UNEQUAL = 1.05  # answers written in the arms of a fair comparison, one over the other
TIE = 1e-4  # between the scores of two rates: five digits are stored
NOT_ITS_OWN = 0.15  # between a policy and the answers said to be its own, before any update


class Refused(ValueError):
    """A claim that is no verdict; `gaps` lists all that is missing, each beginning with what."""

    def __init__(self, claim: "Claim", gaps: Sequence[str]):
        self.gaps = tuple(gaps)
        lines = "\n".join(f"  - {gap}" for gap in gaps)
        super().__init__(f"{claim.text!r} (chapter {claim.chapter}) is no verdict:\n{lines}")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`arm` minus `against`, paired by seed, and what a rival would ask for.

    text      what is claimed; it names the rate if `at` is "stated"
    world     where; unit: of the difference; source: the experiment
    null      the arm without the cause that the text names: `against`, if only that differs
    control   the pair where the trouble is absent, read in the same column
    family    claims that are corrected together; chapter and subject
    at        "own best": each arm at the best of its rates; "stated": at the rate in the text
    says      the number that a page prints
    headline  it is a chapter's last word: ten seeds; else five
    collapse  it is about a policy that dies, which else is no comparison
    """

    text: str
    chapter: str
    world: str
    unit: str
    family: str
    arm: Runs
    against: Runs
    null: Runs | None = None
    control: tuple[Runs, Runs] | None = None
    at: Literal["own best", "stated"] = "own best"
    says: float | None = None
    headline: bool = False
    collapse: bool = False
    source: str = ""

    @cached_property
    def found(self) -> dict[str, Any]:
        """Mean, interval, p, seeds and detectable difference of arm minus against."""
        return minus(self.arm, self.against)

    @cached_property
    def choice(self) -> Choice | None:
        """Whether that survives the choice of the rates; None where none was chosen."""
        arm, against = self.arm, self.against
        if self.at == "stated" or not (arm.rates and against.rates):
            return None
        printed = Interval(*(self.found[name] for name in Interval._fields))
        return choice(arm.rates, against.rates, printed, (arm.name, against.name))

    def verdict(self) -> "Verdict":
        """The verdict; raises `Refused`, which lists all that is missing."""
        return Verdict(**{field.name: getattr(self, field.name) for field in fields(self)})

    def gaps(self) -> Iterator[str]:
        """All that is missing, each in a line that begins with what."""
        yield from self.of_writers()
        yield from self.of_rates()
        yield from self.of_choice()
        yield from self.of_starts()
        yield from self.of_arms()
        found = self.found
        wanted = HEADLINE if self.headline else ROW
        if found["seeds"] < wanted:
            what = "headline" if self.headline else "row"
            yield f"seeds: {found['seeds']}, and a {what} has {wanted}"
        if self.says is not None and not found["low"] <= self.says <= found["high"]:
            yield f"number: the text says {self.says:+.3g}, these runs {told(found)}"

    def of_writers(self) -> Iterator[str]:
        """Were held-out answers marked, by the policy itself, and as many written?"""
        pair = self.arm, self.against
        for runs in pair:
            if runs.writer not in (HELD_OUT, PREFIXES):
                yield f"writer: {runs.name!r} is marked on {runs.writer}, not on held-out answers"
            if runs.first is None or runs.start is None:
                continue
            if abs(runs.first - runs.start) > NOT_ITS_OWN:
                before = f"{runs.first:.3f} before any update, its policy {runs.start:.3f}"
                yield f"writer: {runs.name!r} has {before}: these are not its answers"
        few, many = sorted(pair, key=lambda runs: runs.written)
        if many.written > UNEQUAL * few.written:
            each = ", ".join(f"{runs.name!r} {runs.written:,.0f}" for runs in pair)
            yield f"budget: answers written: {each}"

    def of_rates(self) -> Iterator[str]:
        """Was each arm tried at several rates, and is it told at the one that is meant?"""
        for runs in (self.arm, self.against):
            if len(runs.tried) < 2:
                yield f"rates: {runs.name!r} was run at {runs.rate:g} alone"
            elif self.at == "own best" and runs.tried[runs.rate] < runs.tried[runs.best] - TIE:
                yield f"rates: {runs.name!r} is best at {runs.best:g}, told at {runs.rate:g}"
        rate = short(self.arm.rate)
        if self.at == "stated" and rate not in self.text + self.world:
            yield f"rates: told at {rate}, which neither the claim nor its world says"

    def of_choice(self) -> Iterator[str]:
        """Does the verdict stand whichever seeds choose the rates?"""
        if self.choice and self.choice.state != "robust":
            missing = ", ".join(self.choice.not_run)
            not_run = f"; not run: {missing}" if missing else ""
            again = told(self.choice.found._asdict())
            yield f"choice: {self.choice.state}: with rates chosen again {again}{not_run}"

    def of_starts(self) -> Iterator[str]:
        """Was anything learned, and has an arm died? A claim about a collapse needs neither."""
        pair = self.arm, self.against
        if any(runs.start is None for runs in pair):
            yield "start: where these runs begin is not known"
            return
        if self.collapse:
            return
        if not any(runs.gain().low > 0 for runs in pair):
            yield f"start: nothing was learned: {', '.join(runs.way() for runs in pair)}"
            return
        if died := [runs.way() for runs in pair if runs.gain().high < 0]:
            yield f"start: a run that dies is no comparison: {', '.join(died)}"

    def of_arms(self) -> Iterator[str]:
        """Is there an arm without the named cause, does it leave the cause standing, a control?"""
        found = self.found
        if self.null is None:
            yield "null: no arm without the named cause"
        elif clear(found) and not clear(cause := minus(self.arm, self.null)):
            yield f"null: minus {self.null.name!r} it is {told(cause)}: the cause is not shown"
        if self.control is None:
            yield "control: the pair was not run where the trouble is absent"


@dataclass(frozen=True, kw_only=True)
class Verdict(Claim):
    """A claim without a gap; `Refused` where it has some."""

    def __post_init__(self) -> None:
        if gaps := list(self.gaps()):
            raise Refused(self, gaps)


@dataclass(frozen=True)
class Row:
    """A claim in its ledger: what was found, and whether that stands after Holm in its family."""

    claim: Claim
    found: Mapping[str, Any]
    real: bool
    gaps: tuple[str, ...]

    @property
    def lacks(self) -> str:
        """What is missing, a word each."""
        return ", ".join(dict.fromkeys(gap.split(":")[0] for gap in self.gaps))

    @property
    def rates(self) -> str:
        """The rates of the two arms, an edge of what was tried named."""
        return "; ".join(
            f"{short(runs.rate)}{', edge' if runs.edge else ''}"
            for runs in (self.claim.arm, self.claim.against)
        )


def ledger(claims: Sequence[Claim]) -> list[Row]:
    """A row per claim; `real` if it survives Holm's correction for its whole family.

    A family is corrected for all that is claimed in it, whatever else a claim lacks.
    """
    found = [claim.found for claim in claims]
    real = [False] * len(claims)
    for family in dict.fromkeys(claim.family for claim in claims):
        kin = [i for i, claim in enumerate(claims) if claim.family == family]
        for i, rejected in zip(kin, holm([found[i]["p"] for i in kin]), strict=True):
            real[i] = rejected
    return [Row(claim, found[i], real[i], tuple(claim.gaps())) for i, claim in enumerate(claims)]


def minus(arm: Runs, against: Runs) -> dict[str, Any]:
    """`paired_differences` of two arms; of an arm and itself, nothing."""
    if arm is against:
        raise ValueError(f"{arm.name!r} against itself")
    pair = {"arm": arm.values, "against": against.values}
    return paired_differences(pair, "against")[0]


def clear(found: Mapping[str, Any]) -> bool:
    """Whether an interval leaves zero out."""
    return found["low"] > 0 or found["high"] < 0


def told(found: Mapping[str, Any]) -> str:
    """A difference with its interval."""
    return f"{found['mean']:+.2g} [{found['low']:+.2g}, {found['high']:+.2g}]"
