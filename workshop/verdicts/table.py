"""The ledger as a table of `data/results`, and what pages print of it.

`python -m workshop.verdicts` writes `verdicts.csv`: a row per claim, from the tables of all
experiments. Scorecards and the appendix read it.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from rlbook.manifest import SUFFIX, manifest, sha256, write_manifest
from rlbook.paths import data_dir
from rlbook.training import write_csv
from workshop.shared.evidence import load_results
from workshop.shared.scorecard import LEDGER, difference, markdown, power
from workshop.shared.verdict import Row, ledger, minus, told
from workshop.verdicts.book import claims
from workshop.verdicts.pages import place

COMMON = ("in", "claim", "world", "seeds", "difference [95 %]", "rates chosen again", "detectable")
VERDICT, OPEN = (*COMMON, "control", "rates"), (*COMMON, "lacks")


def write_ledger() -> Path:
    """Write the table and its manifest, with the hashes of the tables that it was made from."""
    facts, begun = manifest(), time.perf_counter()
    folder, read = data_dir() / "results", {}

    def load(name: str) -> pd.DataFrame:
        read[f"{name}.csv"] = sha256(folder / f"{name}.csv")
        return load_results(name)

    path = folder / f"{LEDGER}.csv"
    write_csv(path, [as_data(row) for row in ledger(claims(load=load))])
    facts |= {"made of": read, "seconds": round(time.perf_counter() - begun, 1)}
    write_manifest(path.with_name(f"{LEDGER}{SUFFIX}"), facts, [path])
    return path


def as_data(row: Row) -> dict[str, str | float | bool]:
    """A claim with what was found, for and against it."""
    claim, found = row.claim, row.found
    numbers = ("mean", "low", "high", "p", "detectable")
    return {
        "chapter": claim.chapter,
        "claim": claim.text,
        "world": claim.world,
        "experiment": claim.source,
        "arm": claim.arm.name,
        "against": claim.against.name,
        "unit": claim.unit,
        "seeds": found["seeds"],
        **{name: float(f"{found[name]:.5g}") for name in numbers},
        "real": row.real,
        "choice": claim.choice.state if claim.choice else "",
        "again": told(claim.choice.found._asdict()) if claim.choice else "",
        "control": told(minus(*claim.control)) if claim.control else "",
        "rates": row.rates,
        "from": "" if claim.arm.start is None else f"{claim.arm.way()}; {claim.against.way()}",
        "lacks": row.lacks,
        "gaps": "; ".join(row.gaps),
    }


def verdicts_table(table: pd.DataFrame) -> str:
    """The verdicts, as Markdown: the choice of rates, power and the control beside each."""
    rows = table[table["lacks"] == ""].to_dict("records")
    return markdown(VERDICT, ((*common(row), row["control"], row["rates"]) for row in rows))


def open_table(table: pd.DataFrame) -> str:
    """Differences that are no verdicts, as Markdown, with what each of them lacks: folded by
    chapter, under how many there are, and how many lack what.
    """
    lacking = table[table["lacks"] != ""]
    chapters = ((str(chapter), rows) for chapter, rows in lacking.groupby("chapter"))
    return "\n\n".join(folded(counted(chapter, rows), rows) for chapter, rows in chapters)


def folded(summary: str, rows: pd.DataFrame) -> str:
    """Rows of the table behind a line that opens them."""
    shown = markdown(OPEN, ((*common(row), row["lacks"]) for row in rows.to_dict("records")))
    return f"<details><summary>{summary}</summary>\n\n{shown}\n\n</details>"


def counted(chapter: str, rows: pd.DataFrame) -> str:
    """How many claims of a chapter stand without a verdict, and what they lack."""
    lacks = rows["lacks"].str.split(", ").explode().value_counts()
    most = "; ".join(f"{count} lack {what}" for what, count in lacks.items())
    return f"Chapter {chapter}: {len(rows)} differences ({most})"


def common(row: Mapping) -> tuple[str, ...]:
    page = place(row["chapter"], row["experiment"])
    where = f"[{row['chapter']}]({page})" if page else row["chapter"]
    told_as = row["claim"], row["world"], str(row["seeds"]), difference(row)
    again = f"{row['choice']}: {row['again']}" if row["choice"] else "stated"
    return where, *told_as, again, power(row)
