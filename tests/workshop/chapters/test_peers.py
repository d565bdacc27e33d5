"""A name of TRL's or verl's that the book writes exists in the version that it names."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from rlbook.interop import translate
from rlbook.objectives import FIELD, METHODS
from workshop.bench.record import Skipped
from workshop.bench.rl_step import find_trl
from workshop.tools import peers

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "chapters"
TRL, VERL = (peers.peers()[name] for name in ("trl", "verl"))
TRL_HEADING = f"TRL {TRL['version'].rpartition('.')[0]}"
VERL_HEADING = f"verl {VERL['version']}"


@pytest.fixture(scope="module")
def trl():
    try:
        return peers.trl_names(find_trl())
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_the_installed_trl_is_the_one_of_the_book(trl):
    pinned = re.search(r'"trl==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert trl["version"] == TRL["version"] == pinned.group(1)


@pytest.mark.slow
def test_trl_has_every_name_in_its_column(trl):
    mentions = peers.mentions(FOLDER, TRL_HEADING)
    assert [m for m in mentions if peers.missing_in_trl(m, trl)] == []


@pytest.mark.slow
def test_trl_defaults_are_the_ones_that_the_book_states(trl):
    assert {name: trl["fields"].get(name) for name in TRL["defaults"]} == TRL["defaults"]


@pytest.mark.slow
def test_what_the_book_says_is_gone_from_trl_is_gone(trl):
    assert {*TRL["absent"]} & {*trl["fields"], *trl["names"]} == set()


def advantages_of_the_fidelity_page():
    """(row of ours, TRL's cell, verl's cell) of its first table."""
    page = nbformat.read(FOLDER / "appendix_fidelity.ipynb", 4)
    text = next(c.source for c in page.cells if c.source.startswith("## Advantages"))
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    plain = {"REINFORCE++": "reinforce_plus_plus", "LitePPO": "lite_ppo", "Dr. GRPO": "dr_grpo"}
    plain["pass@k"] = "pass_at_k"
    return [(plain.get(cells[0], cells[0].lower()), *cells[2:4]) for cells in lines[1:]]


@pytest.mark.parametrize(("row", "trl_cell", "verl_cell"), advantages_of_the_fidelity_page())
def test_none_is_a_claim_too(row, trl_cell, verl_cell):
    """A trainer of which the page says "none" has no word for the advantages, by the tables that
    `make interop` holds against its own estimators; and one that has a word is not called none."""
    for to, cell in (("trl", trl_cell), ("verl", verl_cell)):
        if cell.startswith("none"):
            assert "advantage" in translate((METHODS | FIELD)[row], to).lost, (row, to)
        elif "advantage" in translate((METHODS | FIELD)[row], to).lost:
            assert ":" in cell or "whitened" in cell or "fork" in cell, (row, to)


def test_verl_names_are_listed_with_their_version():
    unknown = [m for m in peers.mentions(FOLDER, VERL_HEADING) if peers.missing_in_verl(m, VERL)]
    assert unknown == [], "look it up in that version, then list it in data/peers.toml"


@pytest.mark.parametrize("heading", [TRL_HEADING, VERL_HEADING])
def test_the_tables_are_found(heading):
    assert len(list(peers.mentions(FOLDER, heading))) > 50


@pytest.mark.parametrize(
    ("span", "parts"),
    [
        ("epsilon_high", ("epsilon_high", "")),
        ("epsilon_high=0.28", ("epsilon_high", "")),
        ('loss_type="cispo"', ("loss_type", "cispo")),
        ("loss_mode=dppo_tv", ("loss_mode", "dppo_tv")),
        ("adv_estimator: grpo_passk", ("adv_estimator", "grpo_passk")),
        ("norm_adv_by_std_in_grpo=False", ("norm_adv_by_std_in_grpo", "")),
        ('"seq-mean-token-sum"', ("", "seq-mean-token-sum")),
        ("seq-mean-token-sum", ("seq-mean-token-sum", "")),
        ("get_soft_overlong_punishment(a, b)", ("get_soft_overlong_punishment", "")),
        ("1 + clip_ratio_high", ("", "")),
        ("--hf-overrides '{}'", ("", "")),
        ("3e-4", ("", "")),
    ],
)
def test_a_span_is_a_name_a_value_or_both(span, parts):
    assert peers.split(span) == parts


def test_a_name_that_is_gone_is_found_in_its_column_alone(tmp_path):
    row = '| clip | `mine` | `cliprange`, `loss_type="x"` |'
    table = f"| knob | ours | TRL 1.16 |\n|---|---|---|\n{row}"
    text = f"{table}\n\nprose with `nothing`\n\n| knob | TRL 1.16 |\n|---|---|\n| b | `beta` |"
    nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), tmp_path / "01_a.ipynb")
    fake = {"fields": {"beta": 0.0, "loss_type": "dapo"}, "names": [], "words": ["dapo"]}
    found = list(peers.mentions(tmp_path, "TRL 1.16"))
    assert [m.span for m in found] == ["cliprange", 'loss_type="x"', "beta"]
    assert [peers.missing_in_trl(m, fake) for m in found] == ["cliprange", "x", ""]


def test_a_verl_name_counts_by_its_last_part():
    verl = {"keys": {"actor.policy_loss.loss_mode": "vanilla"}, "values": ["cispo"]}
    mention = peers.Mention("01", "", *peers.split("policy_loss.loss_mode=cispo"))
    assert peers.missing_in_verl(mention, verl) == ""
    mention = peers.Mention("01", "", *peers.split("loss_mode=gone"))
    assert peers.missing_in_verl(mention, verl) == "gone"
