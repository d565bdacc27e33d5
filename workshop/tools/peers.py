"""Names of other trainers that the book writes, and whether those trainers still have them.

Tables of the chapters have columns headed "TRL 1.16" and "verl 0.9.1". Every code span in such a
column is a name (`epsilon_high`, `RLOOTrainer`), a value (`"cispo"`) or both (`loss_type="cispo"`).
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from rlbook.paths import data_dir

PROGRAM = Path(__file__).with_name("trl_names.py")
SPAN = re.compile(r"`([^`]+)`")
NAME = r"[A-Za-z_][\w.]*"
ASSIGNED = re.compile(rf"({NAME})\s*[=:]\s*(.+)")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$")
PLAIN = frozenset({"True", "False", "None", "true", "false", "null"})


@dataclass(frozen=True)
class Mention:
    """A code span in a column about a trainer; `name` or `value` is "" where it has none."""

    notebook: str
    span: str
    name: str
    value: str


def mentions(folder: str | Path, heading: str) -> Iterator[Mention]:
    """What the columns with this heading name, over all notebooks of a folder."""
    for path in sorted(Path(folder).glob("*.ipynb")):
        for header, row in rows(path):
            for title, cell in zip(header, row, strict=False):
                if title == heading:
                    yield from (
                        Mention(path.name, span, *split(span)) for span in SPAN.findall(cell)
                    )


def rows(path: str | Path) -> Iterator[tuple[list[str], list[str]]]:
    """(header, row) of every row of every Markdown table of a notebook."""
    for cell in nbformat.read(path, as_version=4).cells:
        header: list[str] = []
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if not line.lstrip().startswith("|"):
                header = []
            elif not header:
                header = cells(line)
            elif set(line) - set("|-: "):
                yield header, cells(line)


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table; an escaped bar is no border."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def split(span: str) -> tuple[str, str]:
    """(name, value) of `name`, `name(…)`, `"value"`, `name=value` or `name: value`.

    Both are "" for what is none of these: a number, a formula, a flag of a command line.
    """
    if assigned := ASSIGNED.fullmatch(span):
        name, value = assigned.groups()
        return name, "" if NUMBER.fullmatch(value) or value in PLAIN else value.strip("\"'")
    if span[:1] in "\"'":
        return "", span.strip("\"'")
    name = span.partition("(")[0]
    return (name, "") if re.fullmatch(r"[A-Za-z_][\w.-]*", name) else ("", "")


def trl_names(python: str) -> dict:
    """What the TRL of this interpreter has: `fields` with defaults, `names`, `words`, `version`."""
    done = subprocess.run([python, str(PROGRAM)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peers() -> dict:
    """`data/peers.toml`: what the book says of other trainers besides its tables."""
    return tomllib.loads((data_dir() / "peers.toml").read_text())


def missing_in_trl(mention: Mention, trl: dict) -> str:
    """What TRL does not have of a mention; "" where it has all."""
    known = {*trl["fields"], *trl["names"], *trl["words"]}
    parts = [mention.name, mention.value]
    return ", ".join(p for p in parts if p and p not in known and p.rpartition(".")[2] not in known)


def missing_in_verl(mention: Mention, verl: dict) -> str:
    """What is not listed of verl; a name counts by its last part: `policy_loss.loss_mode`."""
    known = {key.rpartition(".")[2] for key in verl["keys"]}
    known |= {*verl["values"], *verl.get("recipe", ())}
    parts = [mention.name.rpartition(".")[2], mention.value]
    return ", ".join(part for part in parts if part and part not in known)
