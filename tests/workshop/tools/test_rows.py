"""The matrix of rows: each is told in its chapter, has trained or says why not."""

import re

import nbformat
import pytest

from rlbook.objectives import FIELD, METHODS
from workshop.shared.ladder_arms import BESIDE
from workshop.tools.rows import CHAPTER, NOT_ALONE, matrix, on_the_ladder, same_gradient
from workshop.tools.runner import chapters

ALL = METHODS | FIELD
SPOKEN = {
    "mis": "MIS",
    "tis": "TIS",
    "icepop": "IcePop",
    "geometric_mask": "geometric",
    "sapo": "SAPO",
}
SPOKEN |= {"sequence_tis": "whole answer", "deepseek_v32": "DeepSeek-V3.2", "vespo": "VESPO"}
SPOKEN |= {"topr": "TOPR", "clip_cov": "Clip-Cov", "kl_cov": "KL-Cov", "top_entropy": "TopEntropy"}


def test_every_row_has_a_chapter():
    assert CHAPTER.keys() == ALL.keys()


@pytest.mark.parametrize("row", ALL)
def test_the_chapter_names_its_row(row):
    (path,) = [p for p in chapters() if p.match(f"chapters/{CHAPTER[row]}_*.ipynb")]
    text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
    assert re.search(rf'["` ]{row}["`\n]', text) or SPOKEN.get(row, "\0") in text


def test_a_row_is_on_the_ladder_or_says_why_not():
    learned, beside = on_the_ladder(), {method.name for method, _ in BESIDE.values()}
    assert not learned.keys() & NOT_ALONE.keys()
    assert learned.keys() | beside | NOT_ALONE.keys() == ALL.keys()
    assert len(learned) >= 19


def test_a_gradient_counts_where_the_trainer_can_say_the_loss():
    assert same_gradient(FIELD["glm5"], "skyrl") and not same_gradient(FIELD["glm5"], "trl")
    assert same_gradient(METHODS["dapo"], "trl") and not same_gradient(FIELD["vapo"], "verl")
    assert [row["chapter"] for row in matrix()] == [CHAPTER[name] for name in ALL]
