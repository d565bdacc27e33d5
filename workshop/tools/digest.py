"""A chapter on one page: its scorecard and its test of relevance, taken from the stored notebook.

They are said once, in the chapter; the appendix repeats what stands there.
"""

import re
import tomllib
from dataclasses import replace
from functools import cache
from typing import Any

import nbformat
from IPython.display import Markdown
from nbformat import NotebookNode

from rlbook.objectives import METHODS, DivergenceMask, RatioClip, TrustRegion, WeightClip
from rlbook.paths import data_dir
from workshop.shared.bound import without_bindings
from workshop.shared.scorecard import markdown
from workshop.tools.runner import chapters

ASKED = r"Does this apply to my run\?|What does your log say\?"
APPLIES = re.compile(rf"(?:\*\*|### )(?:{ASKED})\*{{0,2}}(.*?)(?=\n#|\n\*\*[A-Z]|\Z)", re.S)


@cache
def stored(number: str) -> NotebookNode:
    """The chapter of this number. Raises `ValueError` if there is none."""
    found = [path for path in chapters() if path.name.startswith(f"{number}_")]
    if not found:
        raise ValueError(f"there is no chapter {number!r}; name one as '05'")
    return nbformat.read(found[0], as_version=4)


def card(number: str) -> str:
    """The chapter's scorecard as it was last printed, in Markdown."""
    for cell in stored(number).cells:
        if cell.cell_type == "code" and "scorecard(" in cell.source:
            return next(o.data["text/markdown"] for o in cell.outputs if "data" in o)
    raise ValueError(f"chapter {number} prints no scorecard")


def applies(number: str) -> str:
    """What the chapter says under "Does this apply to my run?", in Markdown."""
    for cell in stored(number).cells:
        if cell.cell_type == "markdown" and (found := APPLIES.search(cell.source)):
            return without_bindings(found[1]).strip()
    raise ValueError(f"chapter {number} does not say to whom it applies")


def digest(number: str) -> Markdown:
    """What training showed, and whether it concerns a run of one's own."""
    return Markdown(f"{card(number)}\n\n**Does this apply to my run?**\n\n{applies(number)}")


def start_values() -> Markdown:
    """What papers print of their runs, with the model each was: where a run of one's own begins."""
    papers = tomllib.loads((data_dir() / "paper_settings.toml").read_text(encoding="utf-8"))
    head = ("paper", "model", "learning rate", "answers to a prompt, G", "updates a batch, K",
            "prompts", "limit, tokens", "trust region")  # fmt: skip
    return Markdown(markdown(head, (start_value(name, paper) for name, paper in papers.items())))


def start_value(name: str, paper: dict[str, str]) -> tuple[str, ...]:
    """A paper's row of `start_values`."""
    row, *words = paper["words"].split()
    said = dict(word.split("=") for word in words)
    region: Any = METHODS[row].trust_region
    changed = {
        key.rpartition(".")[2]: float(value)
        for key, value in said.items()
        if key.startswith("method.trust_region.")
    }
    number, _, where = paper["source"].removeprefix("arXiv:").partition(", ")
    link = f"[{name}](https://arxiv.org/abs/{number}), {where}"
    counts = (f"{int(said[key]):,}" for key in ("group_size", "minibatches", "prompts"))
    limit = f"{int(said['max_new_tokens']):,}"
    return link, paper["model"], said["lr"], *counts, limit, bounds(replace(region, **changed))


def bounds(region: TrustRegion) -> str:
    """A trust region in a few words."""
    match region:
        case RatioClip(low=low, high=high):
            return f"ratio from {1 - low:g} to {1 + high:g}"
        case WeightClip(max=cap):
            return f"weight at most {cap:g}"
        case DivergenceMask(kind=kind, low=low, ratio_cap=cap):
            return f"{kind.upper()} at most {low:g}" + (f", weight at most {cap:g}" if cap else "")
    return "none"
