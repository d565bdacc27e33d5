"""Write a course: `student/` is handed out, `instructor/` is not, `syllabus.md` says when."""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import nbformat
from nbformat import NotebookNode

from rlbook.paths import ROOT
from workshop.course.grade import checks_in, checks_module, checks_of, points_of
from workshop.course.slides import slides
from workshop.shared.checks import SOLUTION, agree, numbers, tensor_of
from workshop.site.navigation import without_navigation
from workshop.site.notebooks import with_links
from workshop.site.owner import read_owner
from workshop.tools.main_line import measure

# The chapters of each week; six weeks keep one line, from the policy gradient to today's recipes.
WEEKS = {
    12: (
        (1,),
        (2,),
        (3,),
        (4,),
        (5,),
        (6, 7),
        (8,),
        (9, 11),
        (10, 12),
        (13,),
        (14, 15, 16),
        (17, 18),
    ),
    6: ((1, 2), (3,), (5, 7), (8, 9), (11, 13), (17, 18)),
}
TO_NOTEBOOK = re.compile(r"\[([^\[\]]*)\]\(([\w/]+\.ipynb)(?:#[^)]*)?\)")
PAPER = r"\[[^\]]*\]\(https://(?:arxiv\.org|doi\.org)[^)]*\)"
OUTCOMES = re.compile(r"\*\*(?:You will be able to|What you will be able to do)\*\*")
TO_SOLUTIONS = re.compile(r"(?:Solutions: )?\[[^\]]*\]\(solutions/[^)]*\)\.?")
SYLLABUS = """# RL for reasoning LLMs: {weeks} weeks

Before the course: Python, gradients and expectations, one course in machine learning; PyTorch
helps. No GPU is needed: every chapter runs on a laptop.

| week | chapter | before class, minutes | hand in |
|---|---|---|---|
{rows}

## What you will be able to do

{outcomes}

## Project

In the last two weeks: take one claim of a paper that the course has read, find a setting in which
it should hold and one in which it should not, and run both over at least five seeds. Hand in the
run files, the table of results with intervals, and two pages: claim, mechanism, evidence, limit.

## Reading

{papers}

## Your own work

The book is public, and so are its solutions. What you hand in must be written by you; what you
looked up, you name.
"""
PLAN = """# For those who teach

| week | chapter | slides |
|---|---|---|
{rows}

`python -m workshop course --grade HAND_IN.ipynb --seed 7` runs every check of a notebook that was
handed in. Functions that students write are also tested on hidden inputs, drawn with that seed and
in other batch sizes. It executes what students wrote: use a container, or an account that owns
nothing.
"""
RUBRIC = """# Points

| chapter | exercise | check | points |
|---|---|---|---|
{rows}

Where something is to be explained, a point for each of **claim** (what happens to which quantity),
**mechanism** (which term of the formula does it, for which tokens or prompts), **evidence** (a
number of the student's own run, with its spread over seeds) and **limit** (where it would not
happen, or a control that would show the same without it).
"""


def build(weeks: int, out: Path) -> Path:
    """Write the course of 6 or 12 weeks into `out`, which is emptied first; the folder.

    Raises `ValueError` for a folder that holds something else.
    """
    if out.exists() and any(out.iterdir()) and not (out / "syllabus.md").is_file():
        raise ValueError(f"{out} holds something that is no course")
    shutil.rmtree(out, ignore_errors=True)
    student, instructor = out / "student", out / "instructor"
    for folder in (student, instructor / "slides", instructor / "solutions"):
        folder.mkdir(parents=True)
    paths = {n: next((ROOT / "chapters").glob(f"{n:02d}_*.ipynb")) for w in WEEKS[weeks] for n in w}
    given = {path.name for path in paths.values()}
    plan, lectures, outcomes, papers, worth = ([] for _ in range(5))
    mistakes = ["# Misconceptions, and how they show"]
    for week, number in ((w, n) for w, each in enumerate(WEEKS[weeks], 1) for n in each):
        path = paths[number]
        notebook = nbformat.read(path, as_version=4)
        title = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        checks = {name: heading for name, (heading, _) in checks_of(notebook).items()}
        nbformat.write(handed_out(notebook, path.name, given), student / path.name)
        (instructor / f"slides/{path.stem}.html").write_text(slides(notebook))
        shutil.copy(
            path.parent / f"solutions/{path.stem}_solutions.ipynb", instructor / "solutions"
        )
        plan.append(
            f"| {week} | [{title}](student/{path.name}) | {measure(notebook).minutes:.0f} "
            f"| {len(checks)} checks, {sum(map(points_of, checks.values()))} points |"
        )
        lectures.append(f"| {week} | {title} | [slides](slides/{path.stem}.html) |")
        outcomes += [f"**{title}**\n", *told(notebook, r"(?m)^\* .+(?:\n  .+)*"), ""]
        papers.append(f"* {title}: {', '.join(papers_of(notebook)) or 'the chapter alone'}")
        worth += [f"| {number} | {h} | `{name}` | {points_of(h)} |" for name, h in checks.items()]
        mistakes += ["", f"## {title}", *misconceptions(checks_module(number))]
    syllabus = {"rows": plan, "outcomes": outcomes, "papers": papers}
    written_out = {name: "\n".join(lines) for name, lines in syllabus.items()}
    (out / "syllabus.md").write_text(SYLLABUS.format(weeks=weeks, **written_out))
    (instructor / "plan.md").write_text(PLAN.format(rows="\n".join(lectures)))
    (instructor / "rubric.md").write_text(RUBRIC.format(rows="\n".join(worth)))
    (instructor / "misconceptions.md").write_text("\n".join([*mistakes, ""]))
    return out


def told(notebook: NotebookNode, pattern: str) -> list[str]:
    """What a chapter says in this form on its first screen, where it says what one learns."""
    first = "\n\n".join(c.source for c in notebook.cells[:8] if c.cell_type == "markdown")
    return re.findall(pattern, OUTCOMES.split(first.partition("\n## ")[0])[-1])


def papers_of(notebook: NotebookNode) -> list[str]:
    """Links to a chapter's papers: of its first screen, or of the line at its end."""
    ends = "\n".join(c.source.partition("*Papers:*")[2] for c in notebook.cells)
    return told(notebook, PAPER) or re.findall(PAPER, ends)


def handed_out(notebook: NotebookNode, name: str, names: Collection[str]) -> NotebookNode:
    """The notebook without outputs and solutions; its links lead to nothing but `names`."""
    given = deepcopy(notebook)
    given.cells = [c for c in given.cells if SOLUTION not in c.metadata.get("tags", [])]
    for cell in given.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            text = TO_SOLUTIONS.sub("", without_navigation(cell.source))
            text = TO_NOTEBOOK.sub(lambda to: to[0] if to[2] in names else to[1], text)
            cell.source = with_links(text, f"chapters/{name}", read_owner())
    return given


def misconceptions(module: ModuleType) -> list[str]:
    """Lines of Markdown: every hint of a chapter's checks, with its signature where it has one."""
    lines = []
    for name, check in checks_in(module).items():
        about = (inspect.getdoc(check) or name).split("\n")[0]
        hints = signatures(module, check) or dict.fromkeys(written(check), "")
        lines += ["", f"**{about}** `{name}`", ""] if hints else []
        lines += [f"* {hint}{shows}" for hint, shows in hints.items()]
    return lines


def signatures(module: ModuleType, check: Callable[..., Any]) -> dict[str, str]:
    """What a student gets who errs, by hint; empty for a check that judges otherwise."""
    found: dict[str, str] = {}

    def lines(mine, reference, twins, probes, because, otherwise, outcome=None) -> None:
        examples = list(probes)
        for hint, twin in twins.items():
            both = (
                [tensor_of(outcome(f, *p) if outcome else f(*p)) for f in (twin, reference)]
                for p in examples
            )
            wrong, right = next((pair for pair in both if not agree(pair[:1], pair[1:])), (0, 0))
            found[hint] = f" ({shown(wrong)} instead of {shown(right)})"

    def values(answer, expected, because, mistakes: Mapping, *_, **__) -> None:
        found.update({hint: f" ({shown(wrong)})" for wrong, hint in mistakes.items()})

    needed = [p for p in inspect.signature(check).parameters.values() if p.default is p.empty]
    stand_in = patch.multiple(module, create=True, check_lines=lines, check_numbers=values)
    with stand_in, redirect_stdout(StringIO()), suppress(Exception):  # some want more than None
        check(*[None] * len(needed))
    return found


def shown(value: Any) -> str:
    """The first numbers of a value."""
    row = numbers(value)
    return ", ".join(f"{number:.3g}" for number in row[:4]) + (", …" if len(row) > 4 else "")


def written(check: Callable[..., Any]) -> list[str]:
    """The hints that stand in a check's code."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(check)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    hints = [c.args[0] for c in calls if getattr(c.func, "id", "") == "not_yet" and c.args]
    return [ast.literal_eval(hint) for hint in hints if isinstance(hint, ast.Constant)]
