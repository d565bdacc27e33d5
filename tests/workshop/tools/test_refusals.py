"""Which trainer refuses which row: against rows whose needs are known by their papers."""

import pytest

from rlbook.objectives import METHODS
from workshop.tools.refusals import TRAINERS, table

LOOP, TRAINER, NANO, SCALE = TRAINERS


@pytest.mark.parametrize(
    ("name", "refusing"),
    [
        ("maxrl", set()),  # rewards and groups
        ("rloo", {LOOP}),  # a reference model
        ("remax", {LOOP, NANO}),  # a greedy answer to every prompt
        ("ppo", {LOOP, NANO, SCALE}),  # a critic
    ],
)
def test_who_refuses(name, refusing):
    assert {who for who, refuses in TRAINERS.items() if list(refuses(METHODS[name]))} == refusing


def test_the_table_has_a_line_per_row_and_says_each_reason_once():
    lines = table([METHODS["ppo"], METHODS["ppo"], METHODS["maxrl"]]).splitlines()
    assert lines[2] == lines[3] and lines[4] == "| `maxrl` | trains | trains | trains | trains |"
    reasons = lines[6:]
    assert len(set(reasons)) == len(reasons) and any("a critic" in why for why in reasons)
