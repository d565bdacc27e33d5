"""Differences of two arms, paired by seed, as a table of chapter 07 prints them."""

import pandas as pd

from workshop.ch07.figures import gap_table, interval_text, late_ends


def test_interval_of_three_values_by_hand():
    # mean 2, standard error 1/√3, t with two degrees of freedom 4.303: 2 ± 2.48
    assert interval_text([1.0, 2.0, 3.0]) == "+2 [-0.48, +4.5]"


def test_arms_are_paired_by_seed_within_a_learning_rate():
    rows = [
        (lr, arm, seed, 10 * seed + bonus * seed)
        for lr, ahead in ((1e-4, 1.0), (2e-4, -3.0))
        for arm, bonus in (("longer", ahead), ("shorter", 0.0))
        for seed in (1, 2, 3)
    ]
    runs = pd.DataFrame(rows, columns=["lr", "arm", "seed", "length"]).sample(
        frac=1, random_state=0
    )
    table = gap_table(runs.set_index(["lr", "arm", "seed"]), [("longer", "shorter")], ["length"])
    assert table.index.tolist() == [("longer − shorter", "length")]
    assert table.loc[("longer − shorter", "length")].to_dict() == {
        "lr 0.0001": "+2 [-0.48, +4.5]",
        "lr 0.0002": "-6 [-13, +1.5]",
    }


def test_the_end_of_a_run_is_its_last_five_batches_and_what_was_measured_after():
    steps = pd.DataFrame(
        {"lr": 1e-4, "arm": "a", "seed": 0, "step": range(1, 9), "length": range(8)}
    )
    final = pd.DataFrame({"lr": [1e-4], "arm": ["a"], "seed": [0], "pass@1": [0.5]})
    ends = late_ends(steps, final, ["length"])
    assert ends.loc[(1e-4, "a", 0)].to_dict() == {"length": 5.0, "pass@1": 0.5}
