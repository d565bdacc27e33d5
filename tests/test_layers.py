"""Arrows run one way: the import contracts of pyproject.toml, and what an import really loads."""

import subprocess
import sys
from pathlib import Path

import grimp
import networkx as nx
import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]


def test_import_contracts_hold(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert code == 0, capsys.readouterr().out


def test_no_modules_import_each_other_in_a_circle():
    graph = grimp.build_graph(
        "rlbook", "workshop", exclude_type_checking_imports=True, cache_dir=None
    )
    arrows = nx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    assert [c for c in nx.strongly_connected_components(arrows) if len(c) > 1] == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rlbook.tasks", ("torch", "transformers", "matplotlib")),
        ("rlbook.objectives", ("transformers", "matplotlib", "pandas", "ipywidgets")),
        ("rlbook.training", ("matplotlib", "ipywidgets", "nbclient")),
    ],
)
def test_import_does_not_load(module, absent):
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
