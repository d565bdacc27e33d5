"""What was asked of a claim has arms that ran, a section that tells it, and words in it."""

from collections import Counter
from dataclasses import replace

import pytest

from workshop.shared.scorecard import load_ledger
from workshop.verdicts.census import census, census_table, few_seeds, wrong

CENSUS = census()


@pytest.mark.parametrize("chapter, asked", CENSUS, ids=[one.ids[0] for _, one in CENSUS])
def test_a_question_is_answered_where_the_census_says(chapter, asked):
    assert list(wrong(chapter, asked)) == []


def test_no_question_is_asked_twice_and_most_rest_on_arms():
    ids = Counter(one for _, asked in CENSUS for one in asked.ids)
    assert [one for one, count in ids.items() if count > 1] == []
    for chapter, asked in CENSUS:
        assert {one[1:3] for one in asked.ids if one[0] != "C"} & {chapter} or asked.runs
    assert sum(bool(asked.runs) for _, asked in CENSUS) > 0.7 * len(CENSUS)


@pytest.mark.parametrize(
    "change, found",
    [
        ({"runs": {"reuse": ["two updates"]}}, "S03.4: reuse has no ['two updates']"),
        ({"how": "live"}, "S03.4: either arms or how it was decided"),
        ({"heading": "8 · Evidence"}, "S03.4: chapter 03 has no section '8 · Evidence'"),
        (
            {"says": "clips always pay"},
            "S03.4: '8 · Evidence: do sixteen updates pay?' does not say",
        ),
    ],
)
def test_what_a_row_says_wrongly_is_found(change, found):
    (row,) = (row for row in CENSUS if "S03.4" in row[1].ids)
    (told,) = wrong(row[0], replace(row[1], **change))
    assert told.startswith(found)


def test_the_table_has_a_row_for_every_question():
    assert census_table(CENSUS).count("\n") == len(CENSUS) + 1


def test_claims_with_few_seeds_are_counted():
    book = load_ledger()
    few = few_seeds(book)
    assert few["claims"].sum() == (book["seeds"] < 10).sum() > 0
    assert few["seeds"].max() < 10
