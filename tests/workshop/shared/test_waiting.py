"""What a reader waits for: by hand for a small notebook's notes."""

import json

import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workshop.shared.waiting import (
    CORES,
    START,
    VARIABLE,
    add,
    cells_of,
    longest_share,
    note_runs,
    seconds_on,
    waiting,
)


@pytest.mark.parametrize(
    ("runs", "cores", "seconds"),
    [([], 2, 0), ([4, 3, 3], 1, 10), ([4, 3, 3], 2, 6), ([4, 3, 3], 8, 4), ([5, 2, 2, 2], 2, 6)],
)
def test_the_longest_run_is_taken_first_by_the_first_free_core(runs, cores, seconds):
    assert longest_share(runs, cores) == seconds


def test_a_cell_takes_its_own_time_and_that_of_its_runs_or_what_the_clock_says():
    alone = {"wall": 90.0, "own": 7.0, "others": 0.0, "runs": []}
    assert [seconds_on(n, alone) for n in CORES] == [7, 7, 7]  # however busy the machine was
    beside = {"wall": 90.0, "own": 1.0, "others": 12.0, "runs": [4.0, 6.0]}
    assert [seconds_on(n, beside) for n in CORES] == pytest.approx([13, 8.2, 8.2])
    assert seconds_on(2, {**alone, "others": 5.0}) == 90  # servers and launchers are waited for


def test_long_cells_stand_under_their_heading(tmp_path):
    cells = [
        new_markdown_cell("# A chapter\n\nIt begins."),
        new_code_cell("quick"),
        new_code_cell(""),
        new_markdown_cell("## 1 · Two runs\n\nAsk yourself:"),
        new_code_cell("side_by_side"),
    ]
    for note in ({"wall": 1, "own": 0.5, "others": 0}, {"run": 3.0}, {"run": 5.0}):
        add(tmp_path / "notes", note)
    add(tmp_path / "notes", {"wall": 9, "own": 1.0, "others": 8.0})
    found = waiting(new_notebook(cells=cells), tmp_path / "notes")
    long = {"4 1 · Two runs": [9.0, 6.0, 6.0]}
    assert found == {"seconds": 6.5, "idle": [9.5, 6.5, 6.5], "cells": long}


def test_runs_side_by_side_note_what_they_took(tmp_path, monkeypatch):
    from rlbook.training import runs

    monkeypatch.setattr(runs, "work", runs.work)  # put back in the end
    monkeypatch.setattr(runs, "places", lambda: 2)
    note_runs(tmp_path / "notes")
    runs.side_by_side({"a": iter([1]), "b": iter([2])}).last()
    notes = (tmp_path / "notes").read_text().splitlines() if runs.can_fork() else []
    assert len(notes) in (0, 2) and all(json.loads(note)["run"] >= 0 for note in notes)


def test_a_kernel_notes_its_cells_and_not_the_line_that_has_them_noted(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "notes"))
    shell = InteractiveShell.instance()
    try:
        for cell in (START, "for _ in range(200_000): pass", "1"):
            shell.run_cell(cell, store_history=False)
    finally:
        InteractiveShell.clear_instance()
    long, short = cells_of(tmp_path / "notes")
    assert long["own"] > short["own"]
