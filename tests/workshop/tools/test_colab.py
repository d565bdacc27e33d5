"""The cell that lets a chapter run on Colab, tried with a module that is called so."""

import json
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rlbook.paths import ROOT
from workshop.site.owner import Owner, read_owner
from workshop.tools.colab import TAG, close_folds, colab_cell, keep, with_cell
from workshop.tools.hygiene import problems
from workshop.tools.main_line import COLLAPSED

OWNER = Owner(repository="https://github.com/nobody/rlbook")
TOLD = "\nimport json; print(json.dumps({'path': sys.path[0], 'here': os.getcwd()}))"


def run_cell(source, home, modules):
    """Run the cell where `modules` are importable; what it called, and where it ended."""
    command = home / "bin"
    command.mkdir(parents=True)
    git = command / "git"
    git.write_text(
        f'#!/bin/sh\necho "git $*" >> {home}/called\n'
        'for last; do :; done\nmkdir -p "$last/chapters"\n'
    )
    git.chmod(0o755)
    (modules / "pip").mkdir(parents=True)
    (modules / "pip/__init__.py").touch()
    (modules / "pip/__main__.py").write_text(
        f"import sys\nwith open({str(home / 'called')!r}, 'a') as log:\n"
        "    log.write('pip ' + ' '.join(sys.argv[1:]) + '\\n')\n"
    )
    env = {"HOME": str(home), "PATH": f"{command}:/usr/bin:/bin", "PYTHONPATH": str(modules)}
    done = subprocess.run(
        [sys.executable, "-c", source + TOLD], env=env, cwd=home, capture_output=True, text=True
    )
    called = home / "called"
    ended = done.stderr if done.returncode else json.loads(done.stdout)
    return ended, called.read_text().splitlines() if called.exists() else []


def test_it_fetches_and_installs_where_colab_is(tmp_path):
    modules = tmp_path / "modules"
    (modules / "google/colab").mkdir(parents=True)
    (modules / "google/colab/__init__.py").touch()
    ended, called = run_cell(colab_cell(OWNER), tmp_path, modules)
    clone = str(tmp_path / "rlbook")
    assert called == [
        f"git clone -q --depth 1 -b main https://github.com/nobody/rlbook {clone}",
        f"pip install -q {clone}[figures,tasks] anywidget ipywidgets",
    ]
    assert ended == {"path": clone, "here": f"{clone}/chapters"}


def test_without_an_address_there_is_no_cell():
    assert colab_cell(Owner()) == ""


def test_colab_shows_closed_what_jupyterlab_shows_closed():
    cells = [
        new_markdown_cell("## 1 · Open", id="open"),
        new_markdown_cell("### Deeper", id="deep", metadata={COLLAPSED: True}),
        new_code_cell("1", id="seen"),
        new_code_cell("2", id="hidden", metadata={"jupyter": {"source_hidden": True}}),
    ]
    notebook = new_notebook(cells=cells)
    for _ in range(2):
        close_folds(notebook)
        assert notebook.metadata.colab == {"collapsed_sections": ["deep"]}
        own = [{k: c.metadata.get(k) for k in ("id", "cellView")} for c in notebook.cells]
        assert own == [
            {"id": None, "cellView": None},
            {"id": "deep", "cellView": None},
            {"id": None, "cellView": None},
            {"id": None, "cellView": "form"},
        ]
    del notebook.cells[1].metadata[COLLAPSED]
    close_folds(notebook)
    assert "colab" not in notebook.metadata and "id" not in notebook.cells[1].metadata


@pytest.mark.parametrize("others", [(), ("google",), ("google/cloud",)])
def test_it_does_nothing_elsewhere(tmp_path, others):
    modules = tmp_path / "modules"
    for name in others:
        (modules / name).mkdir(parents=True)
    ended, called = run_cell(colab_cell(OWNER), tmp_path, modules)
    assert called == []
    assert ended["here"] == str(tmp_path)


def test_a_chapter_keeps_one_cell_and_its_order(tmp_path):
    path = tmp_path / "01_policy.ipynb"
    notebook = nbformat.read(ROOT / "chapters/01_policy.ipynb", as_version=4)
    with_cell(notebook, "", "01")
    nbformat.write(notebook, path)
    plain = path.read_text()
    assert keep([path], OWNER, check=True) == [path] and path.read_text() == plain
    assert keep([path], OWNER) == [path]
    assert keep([path], OWNER) == []
    given = nbformat.read(path, as_version=4)
    code = [cell for cell in given.cells if cell.cell_type == "code"]
    assert code[0].metadata.tags == [TAG] and TAG not in str(code[1].metadata)
    assert problems(path) == []
    with_cell(given, "", "01")
    nbformat.write(given, path)
    assert path.read_text() == plain


def test_the_owners_file_is_read(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.rlbook.owner]\nrepository = "https://github.com/nobody/rlbook/"\n')
    owner = read_owner(path)
    assert owner.source_of("README.md") == "https://github.com/nobody/rlbook/blob/main/README.md"
    assert owner.colab_of("a.ipynb").endswith("/github/nobody/rlbook/blob/main/a.ipynb")
    assert owner.page_at("index.html") == "" == Owner(repository="https://x.org/r").colab_of("a")
    path.write_text('[tool.rlbook.owner]\nrepo = "x"')
    with pytest.raises(ValueError, match=r"unknown \['repo'\], choose from"):
        read_owner(path)


def test_every_chapter_is_ready_for_colab():
    """Mended by `python -m workshop.tools.colab`."""
    assert keep(sorted((ROOT / "chapters").glob("[0-9]*.ipynb")), read_owner(), check=True) == []
