"""What readers asked of the book's claims, and what became of each: `python -m workshop.verdicts`.

A question's record holds what two readings of this book asked of it, the arms that decide it, the
section that tells it and words of that section. `wrong` compares it with the committed tables and
chapters.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache

import pandas as pd

from workshop.shared.bound import without_bindings
from workshop.shared.evidence import load_results
from workshop.shared.question import Asked
from workshop.shared.runs import PIPELINE
from workshop.shared.scorecard import markdown
from workshop.verdicts.agreement import shown
from workshop.verdicts.book import QUESTIONS
from workshop.verdicts.pages import PAGES

COLUMNS = ("asked as", "claim", "arms", "told in", "what the text says now")
FEW = 10


def census() -> list[tuple[str, Asked]]:
    """All that was asked, with the chapter that tells it now."""
    return [
        (chapter, one)
        for chapter, questions in QUESTIONS.items()
        for question in questions
        for one in question.asked
    ]


def wrong(chapter: str, asked: Asked) -> Iterator[str]:
    """What the committed tables and chapters do not have."""
    first = asked.ids[0]
    if bool(asked.runs) == bool(asked.how):
        yield f"{first}: either arms or how it was decided"
    for experiment, arms in asked.runs.items():
        if missing := sorted(set(arms) - arms_of(experiment)):
            yield f"{first}: {experiment} has no {missing}"
    sections = sections_of(chapter)
    if asked.heading not in sections:
        yield f"{first}: chapter {chapter} has no section {asked.heading!r}"
    elif words(asked.says) not in sections[asked.heading]:
        yield f"{first}: {asked.heading!r} does not say {asked.says!r}"


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
        for line in without_bindings("".join(cell["source"])).splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            found.setdefault(heading, []).append(line)
    return {name: words(" ".join(lines)) for name, lines in found.items()}


def words(text: str) -> str:
    """The text without emphasis, with single spaces."""
    return " ".join(text.replace("*", "").split())


def census_table(rows: Iterable[tuple[str, Asked]]) -> str:
    """A row per question, as Markdown."""
    return markdown(COLUMNS, [told(*row) for row in rows])


def told(chapter: str, one: Asked) -> tuple[str, ...]:
    runs = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in one.runs.items())
    where = f"{chapter}, {one.heading}"
    return ", ".join(one.ids), one.claim, runs or one.how, where, one.says


def few_seeds(book: pd.DataFrame) -> pd.DataFrame:
    """Claims with fewer than ten seeds, by chapter and experiment, and how many there are."""
    few = book[book["seeds"] < FEW]
    return few.groupby(["chapter", "experiment", "seeds"]).size().rename("claims").reset_index()
