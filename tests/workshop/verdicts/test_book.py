"""The book's claims: every experiment has one, and each says what it lacks."""

import json
from collections import Counter
from functools import cache

import pandas as pd
import pytest

from rlbook.manifest import SUFFIX
from rlbook.paths import data_dir
from workshop.experiments import EXPERIMENTS
from workshop.shared.evidence import load_results
from workshop.shared.runs import HELD_OUT, Column
from workshop.verdicts import Refused, ledger
from workshop.verdicts.book import QUESTIONS, claims
from workshop.verdicts.pages import place

ASKED: set[str] = set()
# Means in the matrix of rows, of which nothing is claimed; what chapter 13 reads over problems; the
# game of chapter 16, in which no credit leads.
SHOWN = {"beside_sums", "beside_habits", "real_sums", "real_thinking", "real_words", "turns_guess"}


@pytest.fixture(scope="module")
def book():
    def load(name: str) -> pd.DataFrame:
        ASKED.add(name)
        return load_results(name)

    return ledger(claims(load=load))


def test_every_experiment_has_a_claim_or_is_a_control(book):
    folder = data_dir() / "results"
    recorded = [name for name in EXPERIMENTS if (folder / f"{name}{SUFFIX}").is_file()]
    whole = [
        name for name in recorded if '"finished"' not in (folder / f"{name}{SUFFIX}").read_text()
    ]
    assert set(whole) - ASKED - SHOWN == set()


def test_every_chapter_that_trains_has_claims_and_no_two_are_the_same(book):
    assert {row.claim.chapter for row in book} == set(QUESTIONS) - {"01", "18"}
    keys = Counter((row.claim.chapter, row.claim.text, row.claim.world) for row in book)
    assert [key for key, count in keys.items() if count > 1] == []


def test_a_claim_without_gaps_is_a_verdict_and_one_with_gaps_is_refused(book):
    verdicts = [row for row in book if not row.gaps]
    assert len(verdicts) >= 12
    for row in book:
        if row.gaps:
            with pytest.raises(Refused):
                row.claim.verdict()
    for row in verdicts:
        assert row.claim.verdict().arm.writer == HELD_OUT


def test_numbers_are_numbers(book):
    for row in book:
        assert row.found["low"] <= row.found["mean"] <= row.found["high"]
        assert row.found["detectable"] >= 0


def test_what_falls_after_holm_in_its_chapter_is_not_bold(book):
    by_text = {(row.claim.text, row.claim.world): row for row in book}
    filtered = by_text["the filter keeps it", "limit of 32 tokens, own rates"]
    young = by_text["tokens up to 2 updates old", "plain sums, a pipeline, lr 4e-4"]
    for row in (filtered, young):
        assert row.found["low"] * row.found["high"] > 0 and not row.real


def test_a_half_time_lies_on_a_line_between_two_batches():
    rows = [(0, 1, 0.4), (0, 2, 0.6), (1, 1, 0.75), (1, 2, 0.8), (2, 1, 0.1), (2, 2, 0.2)]
    log = pd.DataFrame(rows, columns=["seed", "step", "p"])
    until = Column("p", half_time=True).until(log, 0.25)
    assert until == pytest.approx({0: 1.5, 1: 0.5, 2: 3.0})


@cache
def one() -> pd.DataFrame:
    return pd.DataFrame(
        {"seed": [0, 0, 1], "step": [1, 2, 1], "a_1": [1, 2, 3.0], "a_2": [3, 2, 1.0]}
    )


def test_a_star_names_the_mean_of_columns():
    assert Column("a_*").of(one()) == {0: 2.0, 1: 2.0}
    assert Column("a_1", steps=(2, 2)).of(one()) == {0: 2.0}
    assert Column("accuracy_level_3").before(pd.DataFrame({"pass@1_level_3": [0.4]})) == 0.4
    assert Column("b").before(one()) is None


def test_a_claim_leads_to_the_section_that_reads_its_table(tmp_path):
    cells = [("markdown", "# Three"), ("code", "x = 1"), ("markdown", "## 2 · Then\n\ntext")]
    cells += [("code", 'load_results("reuse_eval")')]
    page = {"cells": [{"cell_type": kind, "source": [source]} for kind, source in cells]}
    (tmp_path / "03_ppo.ipynb").write_text(json.dumps(page))
    assert place("03", "reuse", tmp_path) == "03_ppo.ipynb#2-%C2%B7-Then"
    assert place("03", "siblings", tmp_path) == "03_ppo.ipynb"
    assert place("04", "misled", tmp_path) == ""
