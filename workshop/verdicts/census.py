"""What readers asked of the book's claims, and what became of each: `python -m workshop.verdicts`.

`data/verdict_census.toml` has a row per question: its ids in the two readings of this book, the
arms that decide it, the section that tells it and words of that section. `wrong` compares a row
with the committed tables and chapters.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pandas as pd

from rlbook.paths import data_dir
from workshop.shared.evidence import load_results
from workshop.shared.runs import PIPELINE
from workshop.verdicts.agreement import shown
from workshop.verdicts.pages import PAGES
from workshop.verdicts.table import markdown

COLUMNS = ("asked as", "claim", "arms", "told in", "what the text says now")
FEW = 10


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question to a claim.

    ids      as it was asked: S a scorecard's row, T a title's, C two pages that disagreed
    claim    what was claimed
    runs     arms by experiment; `how` it was decided where none was trained with seeds
    chapter  and heading of the section that tells it; says: words of that section
    """

    ids: Sequence[str]
    claim: str
    chapter: str
    heading: str
    says: str
    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    how: str = ""

    def wrong(self) -> Iterator[str]:
        """What the committed tables and chapters do not have."""
        if bool(self.runs) == bool(self.how):
            yield f"{self.ids[0]}: either arms or how it was decided"
        for experiment, arms in self.runs.items():
            if missing := sorted(set(arms) - arms_of(experiment)):
                yield f"{self.ids[0]}: {experiment} has no {missing}"
        sections = sections_of(self.chapter)
        if self.heading not in sections:
            yield f"{self.ids[0]}: chapter {self.chapter} has no section {self.heading!r}"
        elif words(self.says) not in sections[self.heading]:
            yield f"{self.ids[0]}: {self.heading!r} does not say {self.says!r}"


@cache
def arms_of(experiment: str) -> set[str]:
    table = load_results(experiment if experiment == PIPELINE else f"{experiment}_eval")
    return set(table["arm"].astype(str))


@cache
def sections_of(chapter: str) -> dict[str, str]:
    """What stands below each heading of a stored chapter, outputs too, with single spaces."""
    (path,) = PAGES.glob(f"{chapter}_*.ipynb")
    found: dict[str, list[str]] = {}
    heading = ""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            found.setdefault(heading, []).append(shown(cell))
            continue
        for line in "".join(cell["source"]).splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            found.setdefault(heading, []).append(line)
    return {name: words(" ".join(lines)) for name, lines in found.items()}


def words(text: str) -> str:
    """The text without emphasis, with single spaces."""
    return " ".join(text.replace("*", "").split())


def load_census() -> list[Asked]:
    data: dict[str, Any] = tomllib.loads((data_dir() / "verdict_census.toml").read_text())
    return [Asked(**row) for row in data["asked"]]


def census_table(census: Sequence[Asked]) -> str:
    """A row per question, as Markdown."""
    return markdown(COLUMNS, map(told, census))


def told(one: Asked) -> tuple[str, ...]:
    runs = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in one.runs.items())
    where = f"{one.chapter}, {one.heading}"
    return ", ".join(one.ids), one.claim, runs or one.how, where, one.says


def few_seeds(book: pd.DataFrame) -> pd.DataFrame:
    """Claims with fewer than ten seeds, by chapter and experiment, and how many there are."""
    few = book[book["seeds"] < FEW]
    return few.groupby(["chapter", "experiment", "seeds"]).size().rename("claims").reset_index()
