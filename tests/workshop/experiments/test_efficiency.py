"""Chapter 14's arms ask what they say they ask, and its tables compare like with like."""

import numpy as np
import pandas as pd

from rlbook.training import PromptPool
from workshop.ch14.experiments import chosen_data
from workshop.experiments import EXPERIMENTS
from workshop.shared.evidence import at_each_rate, difference_table

CHOICES = {arm.label: arm.tried[0].config for arm in EXPERIMENTS["data_choice"].arms}


def asked(trainer, step: int) -> set[int]:
    return {p.level for seed in range(20) for p in trainer.source.problems(step, seed)}


def test_the_curriculum_opens_a_family_every_four_batches_and_asks_all_in_the_end():
    trainer = chosen_data(CHOICES["easy first"])
    opened = {0: 2, 3: 2, 4: 3, 8: 4, 12: 5, 16: 6, 19: 6}
    for step, families in opened.items():
        assert asked(trainer, step) == set(range(1, families + 1))
    assert asked(chosen_data(CHOICES["all families"]), 0) == set(range(1, 7))


def test_the_windows_control_keeps_as_many_of_the_same_problems_whatever_their_pass_rate():
    window, control = (
        chosen_data(CHOICES[label]).source.pool
        for label in ("pass rate 0.2 to 0.8", "as many, any")
    )
    assert isinstance(window, PromptPool) and isinstance(control, PromptPool)
    assert len(window.problems) == len(control.problems) < 96 / 2
    assert window.problems.keys() != control.problems.keys()
    assert not {p.level for p in window.problems.values()} & {6}  # the base never solves a square
    assert {p.level for p in control.problems.values()} & {6}


def test_differences_at_each_rate_are_those_of_that_rate_alone():
    rng = np.random.default_rng(0)
    keys = [(arm, lr, seed) for arm in "ab" for lr in (0.1, 0.2) for seed in range(3)]
    runs = pd.DataFrame(keys, columns=["arm", "lr", "seed"]).assign(score=rng.random(len(keys)))
    runs.loc[runs.lr == 0.2, "score"] *= 5
    table = at_each_rate(runs, "score", against="a")
    for lr, rows in runs.groupby("lr"):
        alone = difference_table(rows, "score", "a")
        pd.testing.assert_frame_equal(table.loc[lr], alone)
