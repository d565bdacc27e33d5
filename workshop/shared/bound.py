"""Numbers in a chapter's prose that its own run fills in.

In a Markdown cell `0.77<!--{final["CISPO"]:.2f}-->` shows a number, and hides from every reader of
the page what it is: an expression over the names that the notebook has bound by its end, and the
format of `str.format`. `**robust<!--{ledger("MaxRL on habits", "habits, own rates").word:s}-->**`
is the word of the ledger. `python -m workshop book` writes the number anew at each execution; in a
reader's own run the last cell says which sentences are no longer about that run.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbook.paths import ROOT

VARIABLE = "RLBOOK_BOUND_NUMBERS"  # names a file: this run's numbers are going to be written
SHOWN = r"[^\s(\[|*>]*"  # a bound number is one word
SLOT = re.compile(rf"(?P<shown>{SHOWN})<!--\{{(?P<expression>.+?):(?P<form>[^:{{}}]*)\}}-->")
BINDING = re.compile(r"<!--\{.+?\}-->")


@dataclass(frozen=True)
class Bound:
    """A number in the text, and the expression and format that it comes from."""

    shown: str
    expression: str
    form: str

    def value(self, names: Mapping[str, Any]) -> str:
        """What a run shows here. Raises `ValueError` naming an expression that has no value, or one
        that is no single word: the next run could not tell where it begins.
        """
        try:
            text = format(eval(self.expression, dict(names)), self.form)
        except Exception as error:
            raise ValueError(f"{self.expression} has no value at the end: {error!r}") from error
        if not re.fullmatch(SHOWN, text):
            raise ValueError(f"{self.expression} is {text!r}, no single word: bind its parts")
        return text.replace("-", "−") if text[:1] == "-" else text


def bound_numbers(markdown: str) -> Iterator[Bound]:
    """The bound numbers of a text, in its order; `ValueError` for a binding without a format."""
    for found in BINDING.finditer(markdown):
        if ":" not in found[0]:
            raise ValueError(f"{found[0]} binds no number: write <!--{{expression:format}}-->")
    yield from (Bound(**found.groupdict()) for found in SLOT.finditer(markdown))


def without_bindings(markdown: str) -> str:
    """The text as a reader sees it."""
    return BINDING.sub("", markdown)


def filled(markdown: str, values: Mapping[str, str]) -> str:
    """The text with the values of its expressions, by "expression:format"."""

    def number(found: re.Match[str]) -> str:
        key = f"{found['expression']}:{found['form']}"
        return f"{values[key]}<!--{{{key}}}-->"

    return SLOT.sub(number, markdown)


def hold(chapter: str, names: Mapping[str, Any]) -> None:
    """Compare every bound number of a chapter (its file's stem) with the run that ends here.

    Prints how many there are and which of them this run does not show; raises `ValueError` for an
    expression without a value.
    """
    from workshop.shared.scorecard import ledger  # it needs torch, reading a page does not

    path = ROOT / "chapters" / f"{chapter}.ipynb"
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    all_bound = [each for text in texts for each in bound_numbers(text)]
    known = {"ledger": ledger, **names}
    values = {f"{each.expression}:{each.form}": each.value(known) for each in all_bound}
    if target := os.environ.get(VARIABLE):
        Path(target).write_text(json.dumps(values))
        print(f"{len(all_bound)} numbers in the text are those of this run")
        return
    other = [
        f"    the text says {each.shown}, this run {value}: {each.expression}"
        for each in all_bound
        if (value := values[f"{each.expression}:{each.form}"]) != each.shown
    ]
    print(f"{len(all_bound) - len(other)} of {len(all_bound)} numbers in the text are those of "
          "this run", *other, sep="\n")  # fmt: skip
