"""What a reader waits for: the seconds of a cell on an idle machine, however busy this one is.

A cell's processor time passes on an idle machine too; its runs side by side take as long as the
core that has most of them to do. Only a cell that starts other processes is measured by the clock.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from heapq import heapreplace
from pathlib import Path
from typing import Any

VARIABLE = "RLBOOK_CELL_NOTES"
# What a kernel runs when it starts, so that every cell notes what it took.
START = "from workshop.shared.waiting import note_cells; note_cells()"
CORES = (1, 2, 8)
LONG = 5.0  # seconds on one core from which a cell stands in the table


def note_cells() -> None:
    """In a kernel: every cell adds what it took to the file that the environment names."""
    from IPython import get_ipython

    path, shell, begun = Path(os.environ[VARIABLE]), get_ipython(), list[float]()

    def begin(_: Any) -> None:
        begun[:] = now()

    def end(_: Any) -> None:
        if not begun:
            return  # this is the end of the line that called `note_cells`
        wall, own, others = (after - before for after, before in zip(now(), begun, strict=True))
        add(path, {"wall": wall, "own": own, "others": others})

    def now() -> tuple[float, float, float]:
        note_runs(path)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        others = children.ru_utime + children.ru_stime
        return time.perf_counter(), time.process_time(), others

    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def note_runs(path: Path) -> None:
    """Have runs side by side note what each took, once there is anything that could make them."""
    runs: Any = sys.modules.get("rlbook.training.runs")
    if runs is None or hasattr(runs.work, "noted"):
        return
    work = runs.work

    def noted(*given: Any) -> None:
        work(*given)
        add(path, {"run": time.process_time()})

    noted.noted = True  # type: ignore[attr-defined]
    runs.work = noted


def add(path: Path, note: dict[str, float]) -> None:
    """One line more, whoever else writes."""
    with path.open("a") as file:
        file.write(json.dumps(note) + "\n")


def cells_of(notes: Path) -> list[dict[str, Any]]:
    """What every cell noted, with its runs."""
    cells, runs = [], []
    for note in map(json.loads, notes.read_text().splitlines()):
        if "run" in note:
            runs.append(note["run"])
        else:
            cells.append({**note, "runs": runs})
            runs = []
    return cells


def seconds_on(cores: int, cell: dict[str, Any]) -> float:
    """Seconds of a cell on so many idle cores."""
    runs = cell["runs"]
    if not runs and cell["others"] > 1:  # processes of another kind, and waiting for them
        return float(cell["wall"])
    whole = cell["others"] / sum(runs) if runs else 1.0  # with their beginnings and ends
    return float(cell["own"]) + longest_share([whole * run for run in runs], cores)


def longest_share(runs: Sequence[float], cores: int) -> float:
    """When the last of the runs ends, each taken by the first core that is free, longest first."""
    busy = [0.0] * cores
    for run in sorted(runs, reverse=True):
        heapreplace(busy, busy[0] + run)
    return max(busy)


def waiting(notebook: Any, notes: Path) -> dict[str, Any]:
    """Seconds of an executed notebook on two cores and on 1, 2, 8, and of its long cells."""
    cells, heading, long = cells_of(notes), "", {}
    each = iter(cells)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            heading = next(
                (
                    line.strip("# ")
                    for line in reversed(cell.source.splitlines())
                    if line[:1] == "#"
                ),
                heading,
            )
        elif cell.cell_type == "code" and cell.source.strip():
            taken = next(each)
            if seconds_on(1, taken) >= LONG:
                seconds = [round(seconds_on(cores, taken), 1) for cores in CORES]
                long[f"{index} {heading}"] = seconds
    whole = [round(sum(seconds_on(cores, cell) for cell in cells), 1) for cores in CORES]
    return {"seconds": whole[CORES.index(2)], "idle": whole, "cells": long}
