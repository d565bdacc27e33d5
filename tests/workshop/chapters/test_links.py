"""A relative link leads to a file of the repository, and a test that a page names is there."""

import re
from pathlib import Path

import nbformat

from workshop.tools.runner import chapters
from workshop.tools.terms import written

ROOT = Path(__file__).parents[3]
PAGES = [*chapters(), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "data").glob("*.md"))]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
NAMED_TEST = re.compile(r"\b(test_\w+\.py)::(test_\w+)")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def prose(page):
    """What a reader sees as text: of a notebook its Markdown, and no code in it."""
    if page.suffix == ".ipynb":
        cells = nbformat.read(page, 4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = page.read_text()
    return CODE.sub("", text)


def dead_links(text, folder):
    """Targets of relative links that are not there."""
    targets = (target.partition("#")[0] for target in LINK.findall(text))
    return [target for target in targets if not (folder / target).exists()]


def on_pages(faults):
    """The pages where `faults(page)` finds any, with what it finds."""
    found = {page.relative_to(ROOT).as_posix(): faults(page) for page in PAGES}
    return {page: fault for page, fault in found.items() if fault}


def test_no_relative_link_is_dead():
    assert on_pages(lambda page: dead_links(prose(page), page.parent)) == {}


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "03_ppo.ipynb").touch()
    text = "[there](03_ppo.ipynb#6) [web](https://example.org/x) [above](#two) [gone](04_x.ipynb)"
    assert dead_links(text, tmp_path) == ["04_x.ipynb"]


def missing_tests(text, folder):
    """Tests that a text names as `test_file.py::test_name` and that no file below defines."""
    return {
        f"{file}::{name}"
        for file, name in set(NAMED_TEST.findall(text))
        if not any(f"def {name}(" in path.read_text() for path in folder.rglob(file))
    }


def test_every_test_that_a_page_names_exists():
    assert on_pages(lambda page: missing_tests(written(page), ROOT / "tests")) == {}


def test_a_test_that_was_renamed_is_found(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_here():\n    pass\n")
    text = "`test_x.py::test_here`, `test_x.py::test_her` and `test_y.py::test_here`"
    assert missing_tests(text, tmp_path) == {"test_x.py::test_her", "test_y.py::test_here"}
