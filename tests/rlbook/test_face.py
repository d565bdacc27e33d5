"""`import rlbook`: twelve names, each from its room, and nothing heavy until one is asked for."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rlbook


def test_the_names_are_those_of_their_rooms():
    assert sorted(rlbook.HOMES) == sorted(rlbook.__all__) and len(rlbook.__all__) == 12
    for name, room in rlbook.HOMES.items():
        assert getattr(rlbook, name) is getattr(import_module(f"rlbook.{room}"), name)
    assert set(rlbook.__all__) <= set(dir(rlbook))


def test_importing_the_package_imports_nothing_heavy():
    code = "import rlbook, sys; print({'torch', 'transformers', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no 'Trainr': it has METHODS, .*Trainer"):
        rlbook.Trainr  # noqa: B018


def test_the_map_names_every_room():
    rooms = {path.stem for path in Path(rlbook.__file__).parent.iterdir() if path.is_dir()}
    rooms -= {"__pycache__", "data"}
    assert {room for room in rooms if f" {room} " not in rlbook.__doc__} == set()


def silent(node, of=""):
    """Public functions, classes and methods without a docstring; a setter shares its getter's, and
    a session's methods those of `Session`."""
    for child in getattr(node, "body", ()):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.ClassDef) and "Session" in {ast.unparse(b) for b in node.bases}:
            continue
        setter = any(getattr(d, "attr", "") == "setter" for d in child.decorator_list)
        if not child.name.startswith("_") and not setter and not ast.get_docstring(child):
            yield of + child.name
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from silent(child, f"{of}{child.name}.")


def test_every_public_function_says_what_it_is():
    root = Path(rlbook.__file__).parent
    found = {
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        for name in silent(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()
