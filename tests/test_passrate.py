import json
from itertools import combinations

import pytest

from rlbook.__main__ import main
from rlbook.passrate import difficulty, difficulty_table


def rows(*right, samples=4, level=2):
    return [{"right": n, "samples": samples, "level": level} for n in right]


def test_shares_of_problems():
    found = difficulty(rows(0, 1, 4, 3), group_size=2)
    assert (found["never"], found["mixed"], found["always"]) == (0.25, 0.5, 0.25)
    assert found["pass_rate"] == 0.5 and found["low"] <= 0.5 <= found["high"]


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_mixed_groups_are_counted_over_all_groups_of_a_problems_answers(right, size):
    answers = [True] * right + [False] * (5 - right)
    groups = list(combinations(answers, size))
    mixed = sum(len(set(group)) == 2 for group in groups) / len(groups)
    found = difficulty(rows(right, samples=5), size)
    assert found["mixed_groups"] == pytest.approx(mixed)


def test_a_group_is_no_larger_than_what_was_sampled():
    with pytest.raises(ValueError, match="group_size 8: from 1 to the 4 samples"):
        difficulty(rows(1), group_size=8)


def test_the_table_has_a_line_for_every_level():
    table = difficulty_table([*rows(0, 4), *rows(2, level=3)], 2).splitlines()
    assert [line.split()[0] for line in table] == ["level", "2", "3", "all"]


def test_the_command_measures_the_tiny_model(tmp_path, capsys):
    out = tmp_path / "rates.jsonl"
    words = "passrate tiny --problems 70 --samples 4 --group-size 4 --levels 2 6 --out"
    main([*words.split(), str(out)])
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) == 70 and {row["level"] for row in found} == {2, 6}
    easy, hard = ([row["pass_rate"] for row in found if row["level"] == level] for level in (2, 6))
    assert sum(easy) / len(easy) > sum(hard) / len(hard)
    assert capsys.readouterr().out.splitlines()[0].endswith("mixed groups of 4")
