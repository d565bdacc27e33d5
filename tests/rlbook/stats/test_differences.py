import numpy as np
import pytest
from scipy import stats

from rlbook.stats.differences import detectable_difference, holm, paired_differences


def test_interval_and_p_value_are_those_of_a_paired_t_test():
    ours, theirs = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.6, 0.6]
    runs = {"new": dict(enumerate(ours)), "old": dict(enumerate(theirs))}
    (row,) = paired_differences(runs, "old")
    test = stats.ttest_rel(ours, theirs)
    interval = test.confidence_interval(0.95)
    assert row["mean"] == pytest.approx(0.15)
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
    assert row["p"] == pytest.approx(test.pvalue)
    assert row["real"] == (test.pvalue <= 0.05)


def test_only_common_seeds_count():
    runs = {"a": {0: 1.0, 1: 2.0, 7: 50.0}, "b": {0: 0.0, 1: 0.5, 3: -50.0}}
    (row,) = paired_differences(runs, "b")
    assert row["seeds"] == 2 and row["mean"] == pytest.approx(1.25)


def test_identical_runs_differ_by_exactly_nothing():
    runs = {"a": {0: 0.3, 1: 0.4}, "b": {0: 0.3, 1: 0.4}}
    (row,) = paired_differences(runs, "b")
    assert row["mean"] == 0 and row["p"] == 1 and not row["real"]


def test_holm_against_a_worked_example():
    # thresholds .0125, .0167, .025, .05 for the sorted p-values
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.01, 0.02, 0.03, 0.04]) == [True, False, False, False]
    assert holm([]) == []


def test_chance_of_any_false_alarm_is_at_most_five_per_cent():
    draw = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        noise = draw.normal(size=(6, 5))
        runs = {str(arm): dict(enumerate(values)) for arm, values in enumerate(noise)}
        alarms += any(row["real"] for row in paired_differences(runs, "0"))
    assert alarms / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="no arm 'c'; there are a, b"):
        paired_differences({"a": {}, "b": {}}, "c")
    with pytest.raises(ValueError, match="share 1 seeds"):
        paired_differences({"a": {0: 1.0}, "b": {0: 2.0, 1: 3.0}}, "b")


def test_a_detectable_difference_is_found_four_times_in_five():
    """By simulation: ten pairs whose true mean is the detectable one, with known scatter."""
    rng = np.random.default_rng(0)
    standard = rng.normal(size=10)
    standard = (standard - standard.mean()) / standard.std(ddof=1)
    delta = detectable_difference(list(0.3 * standard))
    found = stats.ttest_1samp(rng.normal(delta, 0.3, size=(20_000, 10)), 0.0, axis=1).pvalue < 0.05
    assert abs(found.mean() - 0.8) < 0.015  # five standard errors


def test_more_seeds_and_less_scatter_detect_smaller_differences():
    few, many = [0.1, -0.1, 0.1, -0.1], [0.1, -0.1] * 8
    assert detectable_difference(many) < 0.5 * detectable_difference(few)
    assert detectable_difference([0.5 * d for d in few]) == pytest.approx(
        0.5 * detectable_difference(few)
    )
    assert detectable_difference([0.2, 0.2]) == 0
    with pytest.raises(ValueError, match="at least 2"):
        detectable_difference([0.1])
