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


def test_start_values_are_those_that_the_papers_print():
    rows = {
        row.split("|")[1].split("]")[0].strip(" ["): row
        for row in digest.start_values().data.splitlines()
    }
    assert "Qwen2.5-32B | 1e-6 | 16 | 16 | 512 | 20,480 | ratio from 0.8 to 1.28" in rows["DAPO"]
    assert "8B | 5e-7 | 16 | 1 | 48 | 14,336 | weight at most 5" in rows["ScaleRL"]
    assert "TV at most 0.2, weight at most 5" in rows["DPPO, scaling"]
    assert rows["MaxRL"].endswith("| none |")
