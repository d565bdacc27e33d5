"""A reader's copies: run them, edit them, and the book stays as it is and still reaches them."""

import json
import subprocess
import sys

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from rlbook.paths import ROOT
from workshop.tools.reading import bring, trust

OUTPUT = [{"output_type": "stream", "name": "stdout", "text": ["2\n"]}]


def notebook(source, outputs=()):
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": source, "outputs": [*outputs]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def folders(tmp_path):
    book, mine = tmp_path / "chapters", tmp_path / "my"
    (book / "solutions").mkdir(parents=True)
    (book / "01_a.ipynb").write_text(notebook("1 + 1"))
    (book / "solutions/01_a_solutions.ipynb").write_text(notebook("2"))
    assert bring(book, mine) == []
    return book, mine


def test_what_was_only_run_follows_the_book(folders):
    book, mine = folders
    copy = mine / "01_a.ipynb"
    copy.write_text(ran := notebook(["1 + ", "1"], OUTPUT))
    assert bring(book, mine) == [] and copy.read_text() == ran
    (book / "01_a.ipynb").write_text(newer := notebook("1 + 1 + 1"))
    assert bring(book, mine) == [] and copy.read_text() == newer
    assert (mine / "solutions/01_a_solutions.ipynb").read_text() == notebook("2")


def test_what_was_edited_stays_and_is_named_when_the_book_goes_on(folders):
    book, mine = folders
    copy = mine / "01_a.ipynb"
    copy.write_text(own := notebook("my lines"))
    assert bring(book, mine) == []
    (book / "01_a.ipynb").write_text(newer := notebook("1 + 1 + 1"))
    assert bring(book, mine) == [copy] == bring(book, mine)
    assert copy.read_text() == own
    copy.unlink()
    assert bring(book, mine) == [] and copy.read_text() == newer


def test_jupyter_trusts_the_copies(folders, monkeypatch):
    _, mine = folders
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(mine.parent / "jupyter"))
    read = nbformat.read(mine / "01_a.ipynb", nbformat.NO_CONVERT)
    assert not NotebookNotary().check_signature(read)
    trust(mine)
    assert NotebookNotary().check_signature(read)
    assert not NotebookNotary().check_signature(nbformat.reads(notebook("other"), 4))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone: git says what is ignored")
def test_git_does_not_see_the_copies_that_make_lab_opens():
    told = subprocess.run(
        ["make", "-n", "lab", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "workshop/tools/reading.py my" in told and "/lab/tree/my/01_" in told
    ignored = ["git", "check-ignore", "-q", "my/01_policy.ipynb"]
    assert subprocess.run(ignored, cwd=ROOT).returncode == 0
