from math import inf

import pytest

from rlbook.scaling.simulator import (
    Cluster,
    Lengths,
    Schedule,
    ceilings,
    generate_then_update,
    pipeline_rl,
    ppo_off_policy,
)
from workshop.ch17.accelerators import knee, scaling, split

TAILED = Lengths(mean=40, sigma=1.0, max_tokens=150)
COSTS = {"slots": 8, "decode_fixed": 1.0, "decode_per_sequence": 0.05}
COSTS |= {"update_fixed": 2.0, "update_per_token": 0.02, "sync": 1.0}
BUSY = Cluster(generators=6, trainers=2, **COSTS)


@pytest.mark.parametrize("schedule", [generate_then_update(), ppo_off_policy(4), pipeline_rl(4)])
def test_thousands_of_accelerators_approach_the_ceiling_of_staleness(schedule):
    lengths = Lengths(40, 1.0, 100)
    (row,) = scaling([schedule], BUSY, lengths, 64, [3000])
    crowd = split(schedule, BUSY, lengths, 64, 3000)
    ceiling = ceilings(schedule, crowd, lengths, 64)["staleness"]
    assert 0.85 * ceiling < row["tokens_per_second"] < 1.1 * ceiling


def test_scaling_table_and_knee():
    names = [generate_then_update(), pipeline_rl(8)]
    rows = scaling(names, BUSY, TAILED, 32, [1, 2, 8, 32, 128])
    assert [row["accelerators"] for row in rows] == [1, 2, 8, 32, 128, 2, 8, 32, 128]
    for row in rows:
        overlapped = row["schedule"] == "PipelineRL-8"
        both = row["generators"] + row["trainers"]
        assert both == row["accelerators"] * (1 if overlapped else 2)
        assert row["per_accelerator"] == row["tokens_per_second"] / row["accelerators"]
    assert knee(rows, names[0]) < knee(rows, names[1])
    assert rows[4]["tokens_per_second"] < rows[-1]["tokens_per_second"]


def test_knee_by_hand():
    speeds = {1: 10.0, 4: 8.0, 16: 2.0}
    rows = [{"schedule": "x", "accelerators": n, "per_accelerator": v} for n, v in speeds.items()]
    assert knee(rows, Schedule("x")) == pytest.approx(8)  # half the way from .8 to .2
    assert knee(rows[:2], Schedule("x")) == inf
    with pytest.raises(ValueError, match="no rows of 'y'"):
        knee(rows, Schedule("y"))


def test_split_balances_the_two_sides():
    """A generator writes 1 token a second, a trainer reads 3: three to one."""
    cluster = Cluster(1, 1, slots=1, decode_fixed=1.0, update_per_token=1 / 3)
    for n in (4, 8, 400):
        shares = split(pipeline_rl(4), cluster, Lengths(10), 4, n)
        assert (shares.generators, shares.trainers) == (3 * n // 4, n // 4)
    with pytest.raises(ValueError, match="two accelerators"):
        split(pipeline_rl(4), cluster, Lengths(10), 4, 1)
