"""Faults in the trainer: every symptom has one, some are made here, and what was judged."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlbook.doctor import RULES, diagnose
from rlbook.objectives import METHODS
from workshop.appendices.troubles import draw_family
from workshop.symptoms.faults import FAULTS, healthy
from workshop.symptoms.judge import all_keys, is_alarm, load_named, summary


def test_every_symptom_has_one_fault_and_no_fault_an_unknown_one():
    first = [fault.symptom for fault in FAULTS.values() if not fault.variant]
    assert sorted(first) == sorted(RULES)
    assert {fault.symptom for fault in FAULTS.values()} == set(RULES)


@pytest.mark.parametrize("name", ["flipped", "no ends", "overflow", "memory"])
def test_a_fault_is_named_on_a_seed_that_no_table_has(name):
    found = diagnose(FAULTS[name].log(seed=11, steps=2))
    assert found[0].name == FAULTS[name].symptom


def test_what_was_replaced_is_put_back():
    for fault in (FAULTS["overflow"], FAULTS["no ends"]):
        with fault.replaced():
            pass
    assert diagnose(healthy("dr_grpo").log(seed=11, steps=3)) == []


def test_the_committed_judgement_is_of_these_faults_and_rows():
    rows = load_named()
    runs = {row["run"] for row in rows}
    assert runs >= FAULTS.keys() and METHODS.keys() >= runs - FAULTS.keys()
    pairs = {(row["run"], int(row["seed"])) for row in rows}
    assert pairs == {key for key in all_keys() if key[0] in runs}
    assert len(runs - FAULTS.keys()) >= 20
    ill = [row for row in rows if row["symptom"]]
    assert sum(row["named"] == row["symptom"] for row in ill) >= 0.95 * len(ill)
    assert not any(is_alarm(row["named"]) for row in rows if not row["symptom"])
    assert f"of {len(ill)} named, 0 alarms" in summary(rows)


def test_a_family_is_drawn_beside_the_healthy_run():
    curves = pd.DataFrame(
        {"run": ["grpo"] * 2 + ["hot"] * 2, "step": [1, 2] * 2, "surprise_z": [0.1, 0.2, 4, 5]}
    )
    fig = Figure()
    draw_family(fig, {"temperature": ("hot", "surprise_z")}, curves)
    (ax,) = fig.axes
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.1, 0.2], [4, 5]]
    assert "temperature" in {ax.get_title(loc=side) for side in ("left", "center")}
