"""What a killed run leaves behind is read as it stands; a plan of 7B fits where its memory does."""

import matplotlib.pyplot as plt
import pytest

from rlbook.jsonl import line_of
from rlbook.scale.layout import Layout
from workshop.ch18 import figures, plans, runs

WORDS = ["model.policy=Qwen/Qwen2.5-7B", "data.task=dataset:openai/gsm8k:main"]


def logged(folder, deaths, steps):
    folder.mkdir(exist_ok=True)
    layout = Layout(folder)
    events = [
        {"time": float(second), "process": process, "event": "death", "reason": reason}
        for second, (process, reason) in enumerate(deaths)
    ]
    for name, rows in (("events", events), ("metrics", [{"step": step} for step in steps])):
        layout.log(name).write_text("".join(map(line_of, rows)))
    return layout


def test_only_the_two_kills_are_told(tmp_path):
    assert len(runs.events(logged(tmp_path / "a", runs.KILLED, [1]))) == 2
    with pytest.raises(ValueError, match="these died"):
        runs.events(logged(tmp_path / "b", [*runs.KILLED, ("trainer", "exit code 1")], [1]))


@pytest.mark.parametrize(("other", "apart"), [(0.5, 0.0), (0.75, 0.25)])
def test_updates_made_twice_are_compared(other, apart, tmp_path):
    layout = logged(tmp_path, [], range(1, 13))
    rows = [dict.fromkeys(runs.EXACT, 0.5) | {"step": step} for step in range(1, 13)]
    again = dict.fromkeys(runs.EXACT, 0.5) | {"step": 11, "loss": other}
    told = runs.replayed(layout, [*rows, again])
    assert told["updates in the log"] == 12 and told["without a gap"]
    assert told["some made twice"] and told["from a checkpoint on"]
    assert told["largest difference between the two"] == apart
    assert not runs.replayed(logged(tmp_path / "gap", [], (1, 3)), [*rows, again])["without a gap"]


def test_all_weights_of_7b_need_more_than_one_gpu_and_an_adapter_does_not():
    """Half precision of 7,615,616,512 weights are 15.2 GB, 16 bytes of each more than 80."""
    refused = plans.planned(WORDS, 1)
    assert isinstance(refused, str) and "a trainer needs 134.5 GB of 80.0 GB" in refused
    adapted = plans.planned([*WORDS, "model.lora.rank=16"], 1)
    found = plans.costs(adapted)
    assert found["GPUs"] == 1 and found["a trainer, GB"] < 80
    assert found["a push, GB"] == pytest.approx(2 * 40_370_176 / 1e9)
    assert found["share of all"] == pytest.approx(40_370_176 / 7_615_616_512)
    assert found["a checkpoint, GB"] == pytest.approx(12 * 40_370_176 / 1e9)


def test_side_by_side_fills_the_slots_that_turns_leave_empty():
    turns, side = plans.two_ways().values()
    assert turns.occupancy < 0.5 < 0.9 < side.occupancy


def test_updates_made_again_are_rings_beside_the_line_of_the_first(monkeypatch):
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.extend(plt.gcf().axes))
    rows = [{"step": s, "accuracy": s / 9, "staleness_mean": 1.0} for s in (1, 2, 3, 2, 3, 4)]
    figures.killed_twice(rows, {"trainer killed": 3})
    line, rings, death = drawn[0].lines
    assert line.get_xdata().tolist() == [1, 2, 3, 4]
    assert rings.get_xdata().tolist() == [2, 3]
    assert set(death.get_xdata()) == {3}
    plt.close("all")
