import pytest

from rlbook.scale.rollout.counters import Counters
from rlbook.scale.rollout.evaluate import Evaluation, evaluation_row
from rlbook.tasks import Problem
from rlbook.training import Rollout

PROBLEMS = [Problem(f"p{i}", f"{i}+1=?", str(i + 1)) for i in range(3)]


def group(*correct, versions=(4, 5), number=0):
    logps = [-1.0, -1.0]
    return [
        Rollout(PROBLEMS[0], number, [1], [7, 2], logps, list(versions), "stop", "", correct=c)
        for c in correct
    ]


def evaluation(every=10, last=None):
    return Evaluation(PROBLEMS, every, last)


@pytest.mark.parametrize(
    ("last", "version", "done", "due"),
    [
        (None, 0, False, True),  # the policy before training
        (0, 9, False, False),
        (0, 10, False, True),
        (0, 37, False, True),  # late is better than never
        (37, 40, False, True),
        (40, 43, False, False),
        (40, 43, True, True),  # the last version counts
        (43, 43, True, False),
    ],
)
def test_when_an_evaluation_is_due(last, version, done, due):
    assert evaluation(last=last).due(version, done) == due
    assert not evaluation(every=0, last=last).due(version, done)


def test_one_evaluation_after_the_other():
    one = evaluation()
    one.begin(20)
    assert not one.due(30)
    assert [one.take() for _ in range(4)] == [0, 1, 2, None]
    assert one.in_flight == 3
    one.again(1)
    assert one.in_flight == 2 and one.take() == 1
    assert one.add(0, group(True, number=0)) is None
    assert one.add(2, group(True, number=2)) is None
    row = one.add(1, group(False, number=1))
    assert row["step"] == 20 and row["pass@1"] == pytest.approx(2 / 3)
    assert one.in_flight == 0 and not one.due(29) and one.due(30)


def test_the_row_of_an_evaluation():
    """Two of four right: pass@2 = 1 - C(2,2)/C(4,2) = 5/6; four of four and none: 1 and 0."""
    rollouts = [
        *group(True, False, True, False, number=0),
        *group(True, True, True, True, versions=(3, 9), number=1),
        *group(False, False, False, False, number=2),
    ]
    row = evaluation_row(8, rollouts)
    assert row["problems"] == 3 and row["samples"] == 4
    assert (row["step"], row["version_min"], row["version_max"]) == (8, 3, 9)
    assert row["pass@1"] == pytest.approx(1 / 2)
    assert row["pass@2"] == pytest.approx((5 / 6 + 1 + 0) / 3)
    assert row["pass@4"] == pytest.approx(2 / 3)
    assert "pass@3" not in row
    assert (row["pass@1_low"], row["pass@1_high"]) == (0, 1)  # of three problems, any may be drawn


def test_one_problem_carries_no_interval():
    row = evaluation_row(0, group(True, False, False))
    assert row["pass@1"] == pytest.approx(1 / 3)
    assert "pass@1_low" not in row


def test_time_averages_of_the_generators():
    """Two servers: 3 s without a request, 2 s with one, 5 s with three."""
    now = [100.0]
    counters = Counters(servers=2, clock=lambda: now[0])
    for seconds, requests in ((3, 0), (2, 1), (5, 3)):
        while counters.in_flight < requests:
            counters.asked()
        now[0] += seconds
    counters.count("late", 2)
    counters.batched(seconds=4.0, since=now[0] - 1.5)
    row = counters.row()
    assert row["batch_seconds"] == 10
    assert row["groups_in_flight"] == pytest.approx((2 * 1 + 5 * 3) / 10)
    assert row["generator_idle"] == pytest.approx((3 * 1 + 2 * 0.5) / 10)
    assert (row["group_seconds"], row["queue_seconds"], row["late"]) == (4.0, 1.5, 2)
    now[0] += 4
    counters.answered()
    assert counters.row()["groups_in_flight"] == 3
    assert counters.row()["late"] == 0
