"""The matrix of rows: each is told in its chapter, has trained or says why not."""

from dataclasses import replace

import pytest

from rlbook.objectives import FIELD, METHODS
from rlbook.objectives.field_rows import NEW
from workshop.tools import rows
from workshop.tools.rows import (
    CHAPTER,
    NOT_ALONE,
    matrix,
    missing,
    on_the_ladder,
    same_gradient,
)

ALL = METHODS | FIELD


@pytest.mark.parametrize("row", sorted(ALL.keys() - NEW))
def test_a_row_has_a_chapter_that_names_it_and_a_rung_or_a_reason(row):
    assert missing(ALL[row]) == []


def test_what_is_on_the_ladder_has_no_reason_not_to_be():
    learned = on_the_ladder()
    assert len(learned) >= 19 and not learned.keys() & NOT_ALONE.keys()
    assert CHAPTER.keys() | NOT_ALONE.keys() | learned.keys() <= ALL.keys()


def test_a_new_row_starts_with_a_paper_and_is_told_what_it_lacks(monkeypatch):
    monkeypatch.setattr(rows, "NEW", NEW | {"halved"})
    new = replace(METHODS["grpo"], name="halved", trust_region=lambda tokens: tokens.ratio / 2)
    monkeypatch.setitem(FIELD, "halved", new)
    lacks = missing(new)
    assert [lack.split()[1] for lack in lacks[:3]] == ["chapter", "rung", "values:"]
    assert len(lacks) > 3 and rows.golden("glm5")
    assert matrix()[-1] | {"gradient equal in": ""} == {
        "row": "halved",
        "chapter": "none yet",
        "gradient equal in": "",
        "said whole by settings of": "none",
        "pass@1 on the ladder": "not run",
    }


def test_a_gradient_counts_where_the_trainer_can_say_the_loss():
    assert same_gradient(FIELD["glm5"], "skyrl") and not same_gradient(FIELD["glm5"], "trl")
    assert same_gradient(METHODS["dapo"], "trl") and not same_gradient(FIELD["vapo"], "verl")
    assert [row["chapter"] for row in matrix()] == [CHAPTER.get(name, "none yet") for name in ALL]
