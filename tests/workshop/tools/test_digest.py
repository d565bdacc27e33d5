"""The digest repeats what chapters say, and nothing else."""

import nbformat
import pytest

from workshop.tools import digest
from workshop.tools.runner import chapters

PAGE = next(path for path in chapters() if path.name == "appendix_digest.ipynb")
NUMBERS = sorted({path.name[:2] for path in chapters() if path.name[:2].isdigit()})


def stored() -> dict[str, str]:
    """What the appendix shows of every chapter, by its number."""
    cells = [cell for cell in nbformat.read(PAGE, as_version=4).cells if "digest(" in cell.source]
    cells = [cell for cell in cells if cell.cell_type == "code" and cell.outputs]
    return {
        cell.source.split('"')[1]: output.data["text/markdown"]
        for cell in cells
        for output in cell.outputs
        if "data" in output
    }


def test_every_chapter_has_its_page():
    assert sorted(stored()) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_the_page_is_the_chapter_s_own_card_and_question(number):
    shown = stored()[number]
    assert shown == digest.digest(number).data, "execute appendix_digest again, after the chapter"
    assert shown.count("\n| ") >= 4 and len(digest.applies(number)) > 100


def test_a_chapter_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no chapter '99'"):
        digest.stored("99")
