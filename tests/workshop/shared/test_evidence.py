import json

import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlbook.manifest import write_manifest
from workshop.shared.evidence import (
    batches_until,
    difference_table,
    draw_differences,
    load_results,
)


@pytest.fixture
def evaluations():
    rows = [
        {"arm": arm, "seed": seed, "pass@1": base + 0.01 * seed + wobble * (-1) ** seed}
        for arm, base, wobble in (("grpo", 0.5, 0.001), ("ppo", 0.7, 0.002), ("rloo", 0.5, 0.05))
        for seed in range(5)
    ]
    return pd.DataFrame(rows)


def test_table_tells_a_real_difference_from_noise(evaluations):
    table = difference_table(evaluations, "pass@1", "grpo")
    assert table.index.tolist() == ["ppo", "rloo"]
    assert table.loc["ppo", "mean"] == pytest.approx(0.2, abs=0.005)
    assert table["real"].tolist() == [True, False]


def test_drawing_colours_only_what_is_real(evaluations):
    ax = Figure().subplots()
    draw_differences(ax, difference_table(evaluations, "pass@1", "grpo"), "grpo")
    ppo, rloo = (label.get_color() for label in ax.get_yticklabels())
    assert ppo != rloo
    assert [t.get_text() for t in ax.get_yticklabels()] == ["ppo", "rloo"]


def test_load_results_reads_the_table_or_names_what_there_is(tmp_path, monkeypatch):
    table = tmp_path / "results/reuse.csv"
    table.parent.mkdir()
    table.write_text("arm,seed,step,accuracy\nppo,0,1,0.5\n")
    write_manifest(table.with_name("reuse.manifest.json"), {}, [table])
    monkeypatch.setenv("RLBOOK_DATA", str(tmp_path))
    row = load_results("reuse").iloc[0].to_dict()
    assert json.loads(json.dumps(row)) == {"arm": "ppo", "seed": 0, "step": 1, "accuracy": 0.5}
    with pytest.raises(FileNotFoundError, match=r"there are: reuse.*experiments baselines"):
        load_results("baselines")
    table.write_text("arm,seed,step,accuracy\nppo,0,1,0.6\n")
    with pytest.raises(ValueError, match="not the table of its manifest"):
        load_results("reuse")


def test_load_results_reads_a_benchmark_too():
    assert {"part", "operation"} <= set(load_results("bench/profiles"))


def steps_of(**arms):
    return pd.DataFrame(
        {"arm": arm, "seed": 0, "step": step, "right": value}
        for arm, values in arms.items()
        for step, value in enumerate(values, 1)
    )


def test_a_half_time_is_the_first_batch_above_one_half_or_one_more_than_all():
    steps = steps_of(soon=[0.1, 0.6, 0.7], dips=[0.6, 0.1, 0.9], never=[0.2, 0.3, 0.5])
    until = batches_until(steps, "right")
    assert until.to_dict() == {("soon", 0): 2, ("dips", 0): 1, ("never", 0): 4}
    assert batches_until(steps, "right", 0.65)["soon", 0] == 3


def test_a_spike_is_no_half_time_of_a_mean_over_five():
    late = [float(step > 10) for step in range(1, 21)]
    spike = [float(step == 4) for step in range(1, 21)]
    until = batches_until(steps_of(late=late, never=spike), "right", over=5)
    assert until.droplevel("seed").to_dict() == {"late": 13, "never": 21}


def test_between_two_batches_a_half_time_lies_on_a_straight_line():
    steps = steps_of(first=[0.75, 0.8], second=[0.4, 0.6], never=[0.1, 0.2])
    until = batches_until(steps, "right", start=0.25).droplevel("seed")
    assert until.to_dict() == pytest.approx({"first": 0.5, "second": 1.5, "never": 3.0})
