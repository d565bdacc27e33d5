"""Mark a notebook that was handed in: the book's checks, on other numbers and shapes as well.

Only the cells that a check needs are run, so no training unless an exercise asks for it.
"""

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from nbformat import NotebookNode

from workshop.shared.checks import SOLUTION, check_lines, tensor_of
from workshop.tools.colab import TAG
from workshop.tools.main_line import HEADING, highest, loaded, stored

LINES, LAB = 2, 3  # points of lines in the text and of a lab; an exercise is worth its dots
SPREAD = 0.1  # of a hidden number around a shown one, relative


class Mark(NamedTuple):
    """What a check said of a student's work, the points for it and what it is worth."""

    check: str
    said: str
    points: int
    worth: int

    def __str__(self) -> str:
        return f"{self.points}/{self.worth}  {self.check:<26} {self.said}"


def grade(notebook: NotebookNode, seed: int = 0) -> list[Mark]:
    """The marks of a chapter that was handed in. Raises `ValueError` for another notebook."""
    title = re.match(r"# (\d+) · ", notebook.cells[0].source)
    if not title:
        raise ValueError("the title does not begin with a chapter's number, as in # 5 · GRPO")
    marks, space, ran = [], {"__name__": "__main__"}, set()
    with judged(checks_module(int(title[1])), seed) as said:
        for check, (heading, index) in checks_of(notebook).items():
            failed = run(notebook, index, space, ran)
            told = said.get(check) or failed or "not attempted yet"
            worth = points_of(heading)
            marks.append(Mark(check, told, worth * told.startswith("right"), worth))
    return marks


def checks_module(number: int) -> ModuleType:
    """The checks of a chapter."""
    return importlib.import_module(f"workshop.ch{number:02d}.checks")


def checks_in(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The checks that a module defines, by name."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if name.startswith("check_") and getattr(thing, "__module__", "") == module.__name__
    }


def checks_of(notebook: NotebookNode) -> dict[str, tuple[str, int]]:
    """Heading and cell of every check that a notebook calls, the last if it calls one twice."""
    heading, found = "", {}
    for index, cell in enumerate(notebook.cells):
        if highest(cell):
            heading = HEADING.findall(cell.source)[-1][1]
        elif cell.cell_type == "code" and not {SOLUTION, TAG} & {*cell.metadata.get("tags", [])}:
            called = re.findall(r"\b(check_\w+)\(", cell.source)
            found |= dict.fromkeys(called, (heading, index))
    return found


def points_of(heading: str) -> int:
    """What an exercise is worth."""
    return heading.count("●") or (LAB if heading.startswith("Lab") else LINES)


def run(notebook: NotebookNode, index: int, space: dict[str, Any], ran: set[int]) -> str:
    """Run a cell and those before it that it needs, each once; what went wrong, if anything did."""
    try:
        with redirect_stdout(StringIO()):
            for each in needed(notebook, index):
                if each not in ran:
                    exec(compile(notebook.cells[each].source, f"cell {each}", "exec"), space)
                    ran.add(each)
    except Exception as error:  # a student's code may fail in any way
        return f"does not run: {type(error).__name__}: {error}"
    return ""


def needed(notebook: NotebookNode, index: int) -> list[int]:
    """A cell and, before it, those that bind a name which it or one of them reads."""
    chosen, wanted = [index], loaded(ast.parse(notebook.cells[index].source))
    for place in range(index - 1, -1, -1):
        if notebook.cells[place].cell_type == "code":
            tree = ast.parse(notebook.cells[place].source)
            if wanted & (bound := stored(tree)):
                chosen.append(place)
                wanted = (wanted - bound) | loaded(tree)
    return chosen[::-1]


@contextmanager
def judged(module: ModuleType, seed: int) -> Iterator[dict[str, str]]:
    """While this lasts, checks look at hidden numbers too, and what they say is kept by name."""
    said: dict[str, str] = {}

    def heard(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def listening(*words: Any, **named: Any) -> Any:
            with redirect_stdout(StringIO()) as out:
                answer = check(*words, **named)
            said[name] = out.getvalue().strip().rpartition("\n")[2]
            return answer

        return listening

    recorded = {name: heard(name, check) for name, check in checks_in(module).items()}
    with patch.multiple(module, create=True, check_lines=hidden(seed), **recorded):
        yield said


def hidden(seed: int) -> Callable[..., bool]:
    """`check_lines` that goes on, where all is right, with probes drawn from the shown ones."""

    def judge(mine, reference, twins, probes, because, otherwise, outcome=called) -> bool:
        probes = list(probes)
        if not check_lines(mine, reference, twins, probes, because, otherwise, outcome):
            return False
        drawn = [other(p, seed + n, k) for n, p in enumerate(probes) for k in (1, 2)]
        sound = [p for p in drawn if has_answer(reference, p, outcome)]
        more = f"{because} (and on {len(sound)} hidden cases)"
        return check_lines(mine, reference, twins, sound, more, otherwise, outcome)

    return judge


def called(function: Callable[..., Any], *probe: Any) -> Any:
    return function(*probe)


def has_answer(reference: Callable[..., Any], probe: tuple, outcome: Callable[..., Any]) -> bool:
    """Whether the reference gives finite numbers: not every drawn problem is one."""
    try:
        return bool(tensor_of(outcome(reference, *probe)).isfinite().all())
    except Exception:
        return False


def other(probe: tuple, seed: int, copies: int) -> tuple:
    """A probe whose rows stand in another order, `copies` times over, floats moved a little."""
    dice = np.random.default_rng(seed)
    parts = [
        each
        for p in probe
        for each in (vars(p).values() if isinstance(p, SimpleNamespace) else [p])
    ]
    length = next((len(part) for part in parts if hasattr(part, "__len__")), 0)
    rows = dice.permutation(np.tile(np.arange(length), copies))

    def drawn(value: Any) -> Any:
        if isinstance(value, SimpleNamespace):
            return SimpleNamespace(**{name: drawn(part) for name, part in vars(value).items()})
        if not hasattr(value, "__len__") or len(value) != length:
            return value
        if isinstance(value, list | tuple):
            return type(value)(value[row] for row in rows)
        taken = value[rows]
        if not (taken % 1).any():  # names of groups, masks, rewards of 0 and 1
            return taken
        factors = np.exp(SPREAD * dice.standard_normal(tuple(taken.shape)))
        is_tensor = isinstance(taken, torch.Tensor)
        return taken * (torch.as_tensor(factors, dtype=taken.dtype) if is_tensor else factors)

    return tuple(drawn(value) for value in probe)
