"""Chapters tell one question alike; a page that was changed by hand is found."""

import copy
import json
from collections import defaultdict

import pytest

from workshop.shared.evidence import regions_by_world
from workshop.shared.scorecard import NAMED, load_ledger, rows_of
from workshop.verdicts.agreement import (
    INTERVAL,
    lines_of,
    plain,
    prose,
    rounds_to,
    same,
    stale,
    unproved,
)
from workshop.verdicts.book import QUESTIONS
from workshop.verdicts.pages import PAGES

ASKED = "regions_by_world("


def page(start: str) -> dict:
    (path,) = PAGES.glob(f"{start}*.ipynb")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def book():
    return load_ledger()


@pytest.mark.parametrize("start", [*QUESTIONS, "appendix_digest", "appendix_evidence"])
def test_every_interval_in_prose_is_the_ledgers_or_a_cells(start, book):
    assert unproved(page(start), book) == []


@pytest.mark.parametrize("chapter", QUESTIONS)
def test_a_scorecard_prints_what_the_ledger_holds(chapter):
    assert stale(page(chapter), rows_of(QUESTIONS[chapter])) == []


def test_claims_that_several_chapters_name_are_among_those():
    named = defaultdict(set)
    for chapter, questions in QUESTIONS.items():
        for row in rows_of(questions):
            for text in row.values():
                for _, claim, world in NAMED.findall(text):
                    named[claim, world].add(chapter)
    assert sum(len(where) > 1 for where in named.values()) >= 3


@pytest.fixture(scope="module")
def regions():
    ends, beside = regions_by_world()
    found = defaultdict(set)
    for table, form in ((ends, "{:.2f}"), (beside, "{}")):
        for region, row in table.iterrows():
            found[region] |= {form.format(value) for value in row}
    return found


def off(notebook: dict, regions: dict[str, set[str]]) -> list[str]:
    """Values in a chapter's lines of the four worlds that the experiment does not have."""
    lines = lines_of(notebook, regions, ASKED)
    return [value for name, told in lines.items() for value in told if value not in regions[name]]


def test_age_roughness_and_mask_are_told_as_they_were_run(regions):
    told = lines_of(page("11"), regions, ASKED)
    assert len(told) == 5 and sum(map(len, told.values())) >= 8
    assert off(page("11"), regions) == []


def test_age_roughness_and_mask_stand_in_one_chapter():
    def tables(chapter: str) -> str:
        cells = page(chapter)["cells"]
        return "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")

    assert [chapter for chapter in QUESTIONS if ASKED in tables(chapter)] == ["11"]


# Wrong copies: what a hand could do to a page.


def changed(notebook: dict, old: str, new: str) -> dict:
    """A copy of the page with one text for another, which stands there."""
    text = json.dumps(notebook, ensure_ascii=False)
    assert old in text
    return json.loads(text.replace(old, new))


def test_a_wrong_copy_of_an_interval_is_found(book):
    right, wrong = "0.023 [0.000, 0.046]", "0.024 [0.000, 0.046]"
    pages = {told: changed(page("12"), right, told) for told in (right, wrong)}
    for told in pages.values():
        for cell in told["cells"]:
            cell.pop("outputs", None)
    assert wrong in unproved(pages[wrong], book)
    assert right not in unproved(pages[right], book)  # the ledger's, whatever a cell prints


def test_a_wrong_copy_of_an_interval_in_words_is_found(book):
    wrong = changed(page("08"), "0.26 (0.21 to 0.32)", "0.26 (0.21 to 0.4)")
    assert unproved(wrong, book) == ["0.26 [0.21, 0.4]"]


def test_a_wrong_copy_of_a_scorecard_is_found():
    wrong = changed(page("17"), "**-0.51 [-0.64, -0.38] pass@1**", "-0.51 [-0.64, -0.38] pass@1")
    (found,) = stale(wrong, rows_of(QUESTIONS["17"]))
    assert "tokens up to 8 updates old" in found


def test_a_chapter_that_tells_the_masks_otherwise_is_found(regions):
    rough = next(value for value in lines_of(page("11"), regions, ASKED)["clip at μ"][2:])
    wrong = copy.deepcopy(page("11"))
    for cell in wrong["cells"]:
        if ASKED in "".join(cell["source"]):
            cell["outputs"] = json.loads(json.dumps(cell["outputs"]).replace(rough, "0.66"))
    assert off(wrong, regions) == ["0.66"]


def test_numbers_are_compared_to_the_digits_that_are_written():
    assert rounds_to("0.16", 0.161) and not rounds_to("0.16", 0.151)
    assert same(("0.51", "0.38", "0.64"), (-0.5093, -0.636, -0.3827))
    assert not same(("0.51", "-0.38", "0.64"), (-0.5093, -0.636, -0.3827))
    assert INTERVAL.findall(plain("−0.035\n[−0.073, 0.003]")) == [("-0.035", "-0.073", "0.003")]
    assert prose({"cells": [{"cell_type": "code", "source": ["x"]}]}) == ""
