"""Every trap of the fidelity page has an id, and what holds it is there: a test, or a quotation."""

import ast
import re
import tomllib
from pathlib import Path

import nbformat
import pytest

from rlbook.paths import data_dir

ROOT = Path(__file__).parents[3]
CLAIMS = tomllib.loads((data_dir() / "claims.toml").read_text(encoding="utf-8"))


def traps():
    page = nbformat.read(ROOT / "chapters" / "appendix_fidelity.ipynb", 4)
    text = next(c.source for c in page.cells if c.source.startswith("## Traps"))
    return re.findall(r"^\d+\. \*\*.*?\*\*", text, re.MULTILINE)


def test_traps_and_claims_are_as_many():
    assert len(traps()) == len(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_holds_a_claim_is_there(name):
    claim = CLAIMS[name]
    assert {"check", "quote"} & claim.keys() and ("quote" in claim) == ("file" in claim)
    if "check" in claim:
        file, _, test = claim["check"].partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
