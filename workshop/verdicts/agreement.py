"""Do the pages tell what the ledger holds, and one question alike?

Three checks of stored notebooks, each a list of what is wrong: intervals that nothing proves,
numbers of a scorecard that are not the ledger's, and lines of one table told by several chapters.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from workshop.shared.scorecard import NAMED, NUMBER, scored

Notebook = Mapping[str, Any]
INTERVAL = re.compile(rf"({NUMBER})\s*\[({NUMBER}),\s*({NUMBER})\]")
SPELT = re.compile(rf"([-+]?\d*\.\d+)[^\d\[\]]{{1,60}}?(?:\(|interval )({NUMBER}) to ({NUMBER})")
COLUMNS = re.compile(rf"(?<![\w.\[])({NUMBER})\s+({NUMBER})\s+({NUMBER})(?![\w.,\]])")
VALUE = re.compile(rf"{NUMBER} \[{NUMBER}, {NUMBER}\]|{NUMBER}")


def plain(text: str) -> str:
    """The text with ASCII signs and without the marks of mathematics."""
    return text.replace("−", "-").replace("$", "")


def prose(page: Notebook) -> str:
    """All that is written in a notebook."""
    cells = (cell for cell in page["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def shown(cell: Mapping[str, Any]) -> str:
    """What a stored cell has printed and displayed."""
    texts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        found = output.get("text") or data.get("text/markdown") or data.get("text/plain", "")
        texts.append("".join(found))
    return "\n".join(texts)


def printed(page: Notebook) -> str:
    return "\n".join(shown(cell) for cell in page["cells"])


def unproved(page: Notebook, book: pd.DataFrame) -> list[str]:
    """Intervals in the prose that are neither a claim's of the ledger nor in the page's outputs.

    A claim has two: at the rates that were chosen, and with the rates chosen again. To the digits
    that are written, and of either sign: "costs 0.13 [0.03, 0.23]" is −0.13.
    """
    there = [tuple(row) for row in book[["mean", "low", "high"]].to_numpy()]
    outputs = plain("\n".join([printed(page), *book["again"]]))
    for pattern in (INTERVAL, COLUMNS):
        there += [tuple(map(float, found)) for found in overlapping(pattern, outputs)]
    text = plain(prose(page))
    told = INTERVAL.findall(text) + SPELT.findall(text)
    return ["{} [{}, {}]".format(*one) for one in told if not any(same(one, o) for o in there)]


def overlapping(pattern: re.Pattern, text: str) -> Iterator[tuple[str, ...]]:
    """All matches, also those that begin within another."""
    at = 0
    while found := pattern.search(text, at):
        yield found.groups()
        at = found.end(1)


def same(told: Sequence[str], found: Sequence[float]) -> bool:
    """Whether three written numbers are these, rounded, or these with the other sign."""
    mean, low, high = found
    return any(all(map(rounds_to, told, one)) for one in ((mean, low, high), (-mean, -high, -low)))


def rounds_to(told: str, value: float) -> bool:
    digits = len(told.partition(".")[2])
    return abs(float(told) - value) <= 0.51 * 10**-digits


def stale(page: Notebook, card: Iterable[Mapping[str, str]]) -> list[str]:
    """Numbers of the ledger that a scorecard names and the stored page does not print."""
    cells = [cell for cell in page["cells"] if "scorecard(" in "".join(cell["source"])]
    stored = "\n".join(map(shown, cells))
    named = [
        match.group(0) for row in card for text in row.values() for match in NAMED.finditer(text)
    ]
    numbers = (scored([{"claim": name}])[0]["claim"] for name in named)
    return [
        f"{name}: {number}"
        for name, number in zip(named, numbers, strict=True)
        if number not in stored
    ]


def lines_of(page: Notebook, names: Iterable[str], asked: str) -> dict[str, list[str]]:
    """By name, the values in the lines that begin with it, where a cell's source has `asked`."""
    cells = [cell for cell in page["cells"] if asked in "".join(cell["source"])]
    lines = plain("\n".join(map(shown, cells))).splitlines()
    return {
        name: [
            value
            for line in lines
            if line.startswith(f"{name}  ")
            for value in VALUE.findall(line.removeprefix(name))
        ]
        for name in names
    }
