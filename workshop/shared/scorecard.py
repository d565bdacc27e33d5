"""A chapter's last table: its claims, with the numbers that the ledger has of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Self

import pandas as pd
from IPython.display import Markdown

from workshop.shared.evidence import load_results
from workshop.shared.question import Question
from workshop.shared.verdict import told

LEDGER = "verdicts"
COLUMNS = {
    "claim": "claim",
    "exact": "exact",
    "pressing": "trained where its problem is strong",
    "control": "trained on the control",
    "pretrained": "a pretrained model on sums (chapter 13), five seeds at two rates",
    "paper": "paper",
}
NOTE = (
    "In brackets: the 95 % interval over seeds. **Bold**: *robust*, it stands after Holm's "
    "correction for the number of claims and, where learning rates were chosen, with them chosen "
    "again. *Rate open*: with rates chosen again the sign may turn. *Falls*: with rates chosen "
    "again the verdict is another. –: not asked."
)
NUMBER = r"[-+]?\d*\.?\d+(?:e[-+]\d+)?"
AGAIN = ("again_mean", "again_low", "again_high")
NAMED = re.compile(r"\{(?:(control|detectable): )?([^|{}]+?) \| ([^|{}]+?)\}")
OF_THE_PAGE = re.compile(r"\{(\w+)\}")


class Questions(tuple[Question, ...]):
    """The questions of a chapter, in the order of its scorecard."""

    def __new__(cls, *questions: Question) -> Self:
        return super().__new__(cls, questions)

    def scorecard(self, **page: object) -> Markdown:
        """What the chapter claims, and what became of it in each kind of evidence.

        A row has the cells of `COLUMNS`; what was not looked at is shown as "–", and a column that
        no row has is left out. `NOTE` follows where the ledger speaks. `page` has the numbers that
        the page's own cells have found, by the name that a row has in braces: text, or a difference
        with its interval. Raises `ValueError` for an unknown column, a number that is
        missing and one that no row has.
        """
        rows, wanted = rows_of(self), set()
        for row in rows:
            if unknown := row.keys() - COLUMNS.keys():
                raise ValueError(f"no column {sorted(unknown)}; a scorecard has {list(COLUMNS)}")
            wanted |= {name for text in row.values() for name in OF_THE_PAGE.findall(text)}
        if wanted != page.keys():
            missing, idle = sorted(wanted - page.keys()), sorted(page.keys() - wanted)
            raise ValueError(f"numbers of the page: rows miss {missing}, no row has {idle}")

        def number(match: re.Match[str]) -> str:
            found = page[match[1]]
            return told(found) if isinstance(found, Mapping | pd.Series) else str(found)

        filled = [key for key in COLUMNS if any(key in row for row in rows)]
        cells = [
            [OF_THE_PAGE.sub(number, row.get(key, "–")) for key in filled] for row in scored(rows)
        ]
        table = markdown([COLUMNS[key] for key in filled], cells)
        ledger = any(NAMED.search(text) for row in rows for text in row.values())
        return Markdown(f"{table}\n\n{NOTE}" if ledger else table)


def rows_of(questions: Iterable[Question]) -> list[dict[str, str]]:
    """The rows of those that have one, numbers by name."""
    return [{"claim": one.claim, **one.row} for one in questions if one.row]


def scored(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows with the numbers of the claims that they name.

    `{clip-higher frees a rare token | rare opening, lr 1e-4}` stands for the difference of that
    claim in that world, `{control: … | …}` for the same where the trouble is absent,
    `{detectable: … | …}` for what would have been found. Raises `ValueError` for a claim that is
    not in the ledger.
    """

    def number(match: re.Match[str]) -> str:
        which, text, world = match.groups()
        row = ledger(text, world)
        return {"control": row["control"], "detectable": power(row)}.get(which, difference(row))

    return [{key: NAMED.sub(number, text) for key, text in row.items()} for row in rows]


@cache
def load_ledger() -> pd.DataFrame:
    """The committed ledger: a row per claim, chapters as text."""
    table = load_results(LEDGER).fillna("")
    return table.assign(chapter=table["chapter"].map("{:02d}".format))


def ledger(claim: str, world: str) -> pd.Series:
    """A claim's row of the committed ledger, with `word`: robust, open, falls, or rates stated.

    A difference that does not stand after the correction is not robust, its word is "uncorrected".

    With rates chosen again the difference is `again_mean`, between `again_low` and `again_high`.
    Raises `ValueError` naming the worlds of a claim that has none of this name.
    """
    rows = load_ledger()
    told = rows[rows["claim"] == claim].set_index("world", drop=False)
    if world not in told.index:
        raise ValueError(f"no claim {claim!r} in {world!r}; it is told in {list(told.index)}")
    row = told.loc[world]
    again = dict(zip(AGAIN, map(float, re.findall(NUMBER, row["again"])), strict=False))
    word = row["choice"] or "rates stated"
    word = "uncorrected" if word == "robust" and not row["real"] else word
    return pd.concat([row, pd.Series({"word": word, **again})])


def difference(row: Mapping) -> str:
    """Mean with interval and unit, in bold where it stands after Holm's correction.

    Not in bold, and said so, where it does not survive the choice of its rates.
    """
    text = f"{told(row)} {row['unit']}".strip()
    match row["choice"]:
        case "open":
            return f"{text} (rate open)"
        case "falls":
            return f"{text} (falls: {row['again']} with rates chosen again)"
    return f"**{text}**" if row["real"] else text


def power(row: Mapping) -> str:
    """The difference that would have been found."""
    return f"{row['detectable']:.2g}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
