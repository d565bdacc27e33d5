"""The committed ledger: that of the committed tables, and what pages make of it."""

import json

import pandas as pd
import pytest

from rlbook.manifest import SUFFIX, sha256
from rlbook.paths import data_dir
from workshop.shared.scorecard import NAMED, load_ledger, markdown, rows_of, scored
from workshop.verdicts import ledger
from workshop.verdicts.book import QUESTIONS, claims
from workshop.verdicts.table import as_data, counted, open_table, verdicts_table

FOLDER = data_dir() / "results"
WORLD = "limit of 32 tokens, own rates"
AGAIN = "`python -m workshop.verdicts` makes it again"


def test_the_ledger_is_made_of_the_committed_tables():
    made_of = json.loads((FOLDER / f"verdicts{SUFFIX}").read_text())["made of"]
    assert len(made_of) > 100
    other = [name for name, sha in made_of.items() if sha256(FOLDER / name) != sha]
    assert other == [], AGAIN


@pytest.mark.parametrize("chapter", ["08", "17"])
def test_its_rows_are_those_of_the_claims(chapter):
    stored = load_ledger().query("chapter == @chapter").reset_index(drop=True)
    made = pd.DataFrame([as_data(row) for row in ledger(claims([chapter]))])
    assert stored["claim"].tolist() == made["claim"].tolist(), AGAIN
    for name in ("mean", "low", "high", "detectable"):
        assert stored[name].tolist() == pytest.approx(made[name].tolist(), rel=1e-4, abs=1e-4)
    for name in ("real", "control", "rates", "lacks", "seeds"):
        assert stored[name].tolist() == made[name].tolist(), AGAIN


def test_every_claim_is_in_one_of_the_two_tables():
    book = load_ledger()
    whole, lacking = verdicts_table(book), open_table(book)
    rows = [line for line in (whole + "\n" + lacking).splitlines() if line.startswith("| [")]
    assert len(rows) == len(book)
    assert lacking.count("<details>") == book[book.lacks != ""].chapter.nunique()
    assert f"| what that costs when there is room | {WORLD} | 10 | **-0.33 [-0.4, -0.27]" in whole
    assert "| 1e-4, edge; 2e-4 |" in whole
    assert "| imitating a teacher, against RL | habits, own rates | 10 |" in lacking


def test_a_fold_says_how_many_differences_lack_what():
    rows = pd.DataFrame({"lacks": ["null, control", "control", "seeds"]})
    assert (
        counted("07", rows)
        == "Chapter 07: 3 differences (2 lack control; 1 lack null; 1 lack seeds)"
    )


def test_a_claim_that_lacks_its_null_arm_is_open():
    book = load_ledger()
    lacking = book[book.lacks == "null"]
    assert len(lacking) > 0 and (lacking.gaps != "").all()
    assert (book[book.lacks == ""].gaps == "").all()


def test_a_named_claim_becomes_its_difference_its_control_and_its_power():
    named = f"what that costs when there is room | {WORLD}"
    card = [{"claim": "c", "pressing": f"a {{{named}}}", "control": f"{{control: {named}}}",
             "paper": f"{{detectable: {named}}}"}]  # fmt: skip
    (row,) = scored(card)
    assert row["pressing"] == "a **-0.33 [-0.4, -0.27] pass@1**"
    assert row["control"].startswith("-0.043 [") and row["paper"] == "0.088"


def test_a_claim_that_is_not_made_is_named_with_where_it_is():
    with pytest.raises(ValueError, match=f"no claim 'the filter keeps it' in 'sums'; .*{WORLD}"):
        scored([{"claim": "{the filter keeps it | sums}"}])


@pytest.mark.parametrize("chapter", ["08", "12"])
def test_every_number_of_a_scorecard_is_found(chapter):
    named = rows_of(QUESTIONS[chapter])
    assert not any(NAMED.search(text) for row in scored(named) for text in row.values())
    assert sum(len(NAMED.findall(text)) for row in named for text in row.values()) >= 9


def test_bars_do_not_end_a_cell():
    assert markdown(["a|b"], [["c|d"]]).splitlines() == ["| a\\|b |", "| --- |", "| c\\|d |"]
