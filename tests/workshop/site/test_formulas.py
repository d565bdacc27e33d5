"""Every formula of the book is set: no browser shows its LaTeX."""

import re

import nbformat

from rlbook.paths import ROOT
from workshop.site.formulas import mathml

CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+)\$", re.DOTALL)


def test_no_sign_of_latex_is_left_in_a_formula_of_the_book():
    count, wrong = 0, []
    for path in (ROOT / "chapters").rglob("*.ipynb"):
        for cell in nbformat.read(path, nbformat.NO_CONVERT).cells:
            if cell.cell_type != "markdown":
                continue
            for block, inline in FORMULA.findall(CODE.sub("", cell.source)):
                made = mathml(block or inline, "block" if block else "inline")
                left = re.sub(r'alttext="[^"]*"', "", made)
                count += 1
                if "\\" in left or "<merror" in left:
                    wrong.append((path.name, block or inline))
    assert count > 500 and wrong == []
