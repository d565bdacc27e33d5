"""Each "none" and "–" about another trainer has what shows it in `data/absent.toml`."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from rlbook.interop import PEERS
from rlbook.paths import data_dir
from workshop.tools.peers import rows

ROOT = Path(__file__).parents[3]
ABSENT = tomllib.loads((data_dir() / "absent.toml").read_text(encoding="utf-8"))
COLUMN = re.compile(r"(?:in )?(TRL|verl|SkyRL|prime-rl)\b")
NONE = re.compile(r"(–|none|no|not|gone)(?![\w-])|.*(\byourself$| / –$|; not in the wheel$)")
LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")


def says_none(cell):
    return NONE.match(cell) is not None


def cells(folder):
    """(trainer, "notebook: row") of every cell of such a column that says so."""
    found = set()
    for path in sorted(Path(folder).glob("*.ipynb")):
        number = path.stem.partition("_")[0]
        notebook = number if number.isdigit() else path.stem
        for header, row in rows(path):
            for title, cell in zip(header, row, strict=False):
                if (column := COLUMN.match(title)) and says_none(cell):
                    name = LINK.sub(r"\1", row[0])
                    found.add((column[1].lower(), f"{notebook}: {name}"))
    return found


HELD = {(peer, c) for peer, es in ABSENT.items() for e in es.values() for c in e["cells"]}


def test_every_cell_that_says_none_has_its_entry():
    assert cells(ROOT / "chapters") - HELD == set(), "list it in data/absent.toml"


def test_every_entry_has_its_cell():
    assert HELD - cells(ROOT / "chapters") == set(), "no such cell says so"


def test_the_trainers_are_those_of_the_tables():
    assert ABSENT.keys() <= PEERS.keys()


YES = "– | – / yes | none | none: r − mean | no critic | not there | gone: it was in 1.5"
YES += " | log it yourself | all tokens / – | PRIME elsewhere; not in the wheel"
NO = '`scale_rewards="none"` | off | `top_k` −1 (off) | norm | −1 | always on | 3.0 – 5.0'


@pytest.mark.parametrize("cell", YES.split(" | "))
def test_these_say_none(cell):
    assert says_none(cell)


@pytest.mark.parametrize("cell", NO.split(" | "))
def test_these_do_not(cell):
    assert not says_none(cell)


CHECKS = sorted({e["check"] for es in ABSENT.values() for e in es.values() if "check" in e})


@pytest.mark.parametrize("check", CHECKS)
def test_what_shows_it_is_there(check):
    file, _, test = check.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
