"""The questions of all chapters, and what the book claims from training."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from workshop.shared.evidence import load_results
from workshop.shared.runs import Load
from workshop.shared.scorecard import Questions
from workshop.shared.told import Told
from workshop.shared.verdict import Claim

FOLDERS = sorted(path.parent.name for path in Path(__file__).parents[1].glob("ch*/questions.py"))
QUESTIONS: dict[str, Questions] = {
    folder.removeprefix("ch"): import_module(f"workshop.{folder}.questions").QUESTIONS
    for folder in FOLDERS
}


def claims(chapters: Sequence[str] = tuple(QUESTIONS), load: Load = load_results) -> list[Claim]:
    """What these chapters claim from training."""
    read = cache(load)
    return [
        claim
        for chapter in chapters
        for question in QUESTIONS[chapter]
        for claim in question.told(Told(chapter, read))
    ]
