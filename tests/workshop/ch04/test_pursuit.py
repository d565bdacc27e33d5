"""Chapter 04's tables: when a run should have stopped, and where a distribution stands."""

import pandas as pd
import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from rlbook.stats import t_interval
from workshop.ch04.figures import (
    best_of_n_path,
    course_of,
    family_course,
    highest_and_last,
    paired,
    penalty_path,
    stop_chosen_elsewhere,
    stopped_at,
)
from workshop.ch04.questions import QUESTIONS
from workshop.shared.evidence import load_results

REFERENCE = SoftmaxPolicy.from_probs([0.6, 0.3, 0.1])
TRUTH = torch.tensor([0.0, 1.0, 0.0]).double()
PROXY = torch.tensor([0.0, 1.0, 2.0]).double()


def humps(peaks):
    """Two or more seeds whose truth rises to a peak and falls as fast, one nat a step."""
    return pd.DataFrame(
        {
            "arm": "a",
            "seed": seed,
            "step": step,
            "reward": 0.1 * step,
            "kl_to_base": float(step) if step % 3 == 1 else None,
            "accuracy": 0.5 - 0.02 * abs(step - peak),
        }
        for seed, peak in enumerate(peaks)
        for step in range(1, 25)
    )


def test_a_run_stops_where_it_first_reaches_a_distance_else_at_its_end():
    steps = humps([10])
    assert stopped_at(steps, 10)[0] == pytest.approx(0.5 - 0.02 * 2 / 3)  # a mean of three steps
    assert stopped_at(steps, 11)[0] == pytest.approx(0.5 - 0.02 * 3)  # measured at 13
    assert stopped_at(steps, 99)[0] == pytest.approx(0.5 - 0.02 * 13.5)


def test_the_stop_of_a_seed_is_chosen_by_the_others():
    found = stop_chosen_elsewhere(humps([4, 16, 16, 16]), (4, 16))
    assert found["stops at"].tolist() == [16, 16, 16, 16]
    assert found["stopped"].iloc[0] < found["stopped"].iloc[1]


def test_the_course_of_an_arm():
    course = course_of(humps([10, 10]))
    assert course["best five"] == pytest.approx(0.5 - 0.02 * 6 / 5)
    assert course["up to step"] == 12 and course["KL at the end"] == 22
    assert course["first five"] == pytest.approx(0.5 - 0.02 * 7)
    assert course["last five"] == pytest.approx(0.5 - 0.02 * 12)


def test_paths_start_at_the_reference_and_end_at_the_proxys_favourite():
    leash = penalty_path(REFERENCE, PROXY, TRUTH, [1e6, 1.0, 0.01])
    picked = best_of_n_path(REFERENCE, PROXY, TRUTH, [1, 3, 1000])
    for path in (leash, picked):
        assert path["KL"].iloc[0] == pytest.approx(0, abs=1e-5)
        assert path["proxy"].iloc[0] == pytest.approx(0.5, abs=1e-5)
        assert path["proxy"].iloc[-1] == pytest.approx(2, abs=1e-3)
        assert path["KL"].iloc[-1] == pytest.approx(torch.tensor(10.0).log().item(), abs=1e-2)
        assert path["truth"].iloc[1] > path["truth"].iloc[0] > path["truth"].iloc[-1]


def test_peaks_and_ends_are_compared_seed_by_seed():
    both = pd.concat([humps([10, 12]), humps([14, 16]).assign(arm="b")])
    high, when, last = highest_and_last(both)
    assert when["a"].tolist() == [12, 14] and when["b"].tolist() == [16, 18]
    assert (last["b"] - last["a"]).tolist() == pytest.approx([0.08, 0.08])
    table = paired({"peak": high, "at step": when}, {"b": "a"})
    assert table.loc["b minus a", "at step"] == "+4.00 [+4.00, +4.00]"
    assert table.loc["b minus a", "peak"].startswith("+0.00")


def test_the_course_of_a_family():
    steps = humps([1]).assign(accuracy_level_1=lambda t: t["step"] / 24)
    assert family_course(steps, ["a"], (1,)).loc["a", "plain"] == "0.12 → 0.92"


def test_the_peaks_are_level_as_the_scorecard_says():
    runs = pd.concat([load_results("overoptimisation"), load_results("passes")])
    high, *_ = highest_and_last(runs)
    gap = t_interval((high["1000 pairs, four passes"] - high["4000 pairs"]).to_numpy())
    assert gap.low < -0.01 and gap.high > 0.01
    assert QUESTIONS[2].row["pressing"].endswith("level at the peak")
