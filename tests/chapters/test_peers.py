"""A name of TRL's or verl's that the book writes exists in the version that it names."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from rlbook.bench.record import Skipped
from rlbook.bench.rl_step import find_trl
from rlbook.book import peers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "chapters"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
TRL, VERL = (peers.peers()[name] for name in ("trl", "verl"))
TRL_HEADING = f"TRL {TRL['version'].rpartition('.')[0]}"
VERL_HEADING = f"verl {VERL['version']}"


@pytest.fixture(scope="module")
def trl():
    try:
        return peers.trl_names(find_trl())
    except Skipped as reason:
        pytest.skip(str(reason))


def named(heading, notebook):
    return [m for m in peers.mentions(FOLDER, heading) if m.notebook == notebook]


@pytest.mark.slow
def test_the_installed_trl_is_the_one_of_the_book(trl):
    pinned = re.search(r"^trl==(\S+)", (ROOT / "requirements-trl.txt").read_text(), re.MULTILINE)
    assert trl["version"] == TRL["version"] == pinned.group(1)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_trl_has_every_name_in_its_column(trl, notebook):
    missing = {m.span: peers.missing_in_trl(m, trl) for m in named(TRL_HEADING, notebook)}
    assert {span: what for span, what in missing.items() if what} == {}


@pytest.mark.slow
def test_trl_defaults_are_the_ones_that_the_book_states(trl):
    assert {name: trl["fields"].get(name) for name in TRL["defaults"]} == TRL["defaults"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRL["absent"])
def test_what_the_book_says_is_gone_from_trl_is_gone(trl, name):
    assert name not in {*trl["fields"], *trl["names"]}


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_verl_names_are_listed_with_their_version(notebook):
    missing = {m.span: peers.missing_in_verl(m, VERL) for m in named(VERL_HEADING, notebook)}
    unknown = {span: what for span, what in missing.items() if what}
    assert unknown == {}, "look it up in that version, then list it in data/peers.toml"


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
