"""A question of a chapter, one record of all that is run, claimed, drawn, printed and asked of it.

A chapter's are the `QUESTIONS` of `workshop/chNN/questions.py`; catalogue, ledger, scorecards and
census are read from there, so that a new question is written in one file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from workshop.shared.design import Experiment
from workshop.shared.told import Told
from workshop.shared.verdict import Claim


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a reading of the book asked of a claim, and what the text says now.

    ids      as it was asked: S a scorecard's row, T a title's, C two pages that disagreed
    claim    what was claimed
    heading  of the section that tells it; says: words of that section
    runs     arms by experiment; `how` it was decided where none was trained with seeds
    """

    ids: Sequence[str]
    claim: str
    heading: str
    says: str
    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    how: str = ""


@dataclass(frozen=True)
class Panel:
    """One comparison of a chapter's evidence: a row of `runs` per arm and seed, in drawn order.

    `holds` says whether the title is true of the arms' means: `ValueError` where it is not.
    """

    title: str
    runs: pd.DataFrame
    column: str
    unit: str
    colours: Mapping[str, str]
    limits: tuple[float, float] = (0.0, 1.0)
    holds: Callable[[pd.Series], bool] = lambda means: True

    def __post_init__(self) -> None:
        means = self.runs.groupby("arm", sort=False)[self.column].mean()
        if not self.holds(means):
            raise ValueError(f"the title {self.title!r} does not hold: {means.round(3).to_dict()}")


def no_claims(_: Told) -> Iterator[Claim]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a chapter asks and says.

    claim        the answer that is claimed, for which a scorecard has a row
    row          the row's other cells, `workshop.shared.scorecard.COLUMNS`; nothing: no row.
                 {claim | world} is the ledger's difference, {name} a number of the page itself
    experiments  what is trained for it, by the name of its tables; what several chapters read is
                 in `workshop.shared.experiments`
    told         the differences between arms that it rests on, in the order of the ledger
    panels       pictures of its evidence
    asked        what readings of the book asked of it
    """

    claim: str
    row: Mapping[str, str] = field(default_factory=dict)
    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    told: Callable[[Told], Iterator[Claim]] = no_claims
    panels: Callable[[], Iterable[Panel]] = tuple
    asked: Sequence[Asked] = ()
