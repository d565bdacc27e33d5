"""A scorecard: a row per question, numbers of the ledger and of the page where they are named."""

import pytest

from workshop.shared.question import Question
from workshop.shared.scorecard import Questions, difference, ledger, load_ledger
from workshop.shared.verdict import told

CLIP = Question(
    claim="a clip holds rare tokens back",
    row={"exact": "15 | 13 batches", "paper": "DAPO"},
)


def test_a_question_is_a_line_with_a_dash_where_nothing_was_looked_at():
    silent = Question(claim="nobody sees this")
    head, rule, line = Questions(CLIP, silent).scorecard().data.splitlines()
    assert head == "| claim | exact | paper |"  # no column of dashes
    assert set(rule) <= set("| -")
    assert line == "| a clip holds rare tokens back | 15 \\| 13 batches | DAPO |"
    other = Question(claim="entropy", row={"control": "0.1"})
    *_, line = Questions(CLIP, other).scorecard().data.splitlines()
    assert line == "| entropy | – | 0.1 | – |"


def test_a_name_in_braces_is_a_difference_of_the_ledger_or_a_number_of_the_page():
    row = load_ledger().iloc[0]
    named = Question(claim="c", row={"control": f"{{{row.claim} | {row.world}}}, live {{found}}"})
    *_, line, _, note = Questions(named).scorecard(found=0.5).data.splitlines()
    assert f"{difference(row)}, live 0.5 |" in line
    assert "Bold" in note


def test_what_does_not_stand_after_the_correction_is_not_called_robust():
    rows = load_ledger()
    stood = rows[rows.choice == "robust"].groupby("real").first()
    for real, word in ((True, "robust"), (False, "uncorrected")):
        assert ledger(*stood.loc[real, ["claim", "world"]]).word == word


def test_a_claim_that_the_ledger_lacks_is_named():
    with pytest.raises(ValueError, match="no claim 'LitePPO for GRPO' in 'nowhere'"):
        ledger("LitePPO for GRPO", "nowhere")


@pytest.mark.parametrize(
    "row, page, message",
    [
        ({"proof": "yes"}, {}, r"no column \['proof'\]; a scorecard has \['claim', 'exact'"),
        ({"exact": "{found}"}, {}, r"rows miss \['found'\], no row has \[\]"),
        ({"exact": "1"}, {"found": 1}, r"rows miss \[\], no row has \['found'\]"),
    ],
)
def test_what_a_row_or_a_page_lacks_is_named(row, page, message):
    with pytest.raises(ValueError, match=message):
        Questions(Question(claim="c", row=row)).scorecard(**page)


def test_a_claim_s_difference_with_rates_chosen_again_is_that_of_the_ledger():
    claims = load_ledger().query("again != ''")
    assert len(claims) > 100
    for _, row in claims.iterrows():
        found = ledger(row["claim"], row["world"])
        shown = {
            "mean": found["again_mean"],
            "low": found["again_low"],
            "high": found["again_high"],
        }
        assert told(shown) == row["again"]
