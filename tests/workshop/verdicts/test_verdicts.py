"""A verdict is built with its defence or not at all: the type, and the book's own cases."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from rlbook.stats import pass_at_k_curve
from workshop.shared.evidence import load_results
from workshop.shared.runs import ANOTHER, BATCHES, HELD_OUT
from workshop.verdicts import Claim, Column, Refused, Runs, Verdict, ledger, runs_of

load = cache(load_results)


def runs(name: str, level: float, seeds: int = 10, **changes) -> Runs:
    values = {seed: level + 0.01 * (-1) ** seed * (1 + seed / 10) for seed in range(seeds)}
    tried = {1e-4: 0.4, 2e-4: level, 4e-4: 0.3}
    return replace(Runs(name, values, HELD_OUT, 1000.0, tried, 2e-4, 0.3), **changes)


def claim(**changes) -> Claim:
    new, old = runs("new", 0.7), runs("old", 0.5, values={s: 0.5 for s in range(10)})
    control = runs("new", 0.6), runs("old", 0.6, values={s: 0.6 for s in range(10)})
    whole = Claim(
        text="new is better", chapter="08", world="a world", unit="pass@1", family="08",
        arm=new, against=old, null=old, control=control, headline=True, says=0.2,
    )  # fmt: skip
    return replace(whole, **changes)


def test_a_claim_without_a_gap_is_a_verdict():
    verdict = claim().verdict()
    assert isinstance(verdict, Verdict) and verdict.arm.best == 2e-4 and not verdict.arm.edge
    (row,) = ledger([verdict])
    assert row.real and row.lacks == "" and row.rates == "2e-4; 2e-4"


GAPS = {
    "writer": {"arm": runs("new", 0.7, writer=BATCHES)},
    "writer: 'new' has 0.884 before any update, its policy 0.300": {
        "arm": runs("new", 0.7, first=0.884)
    },
    "budget: answers written: 'new' 2,000, 'old' 1,000": {"arm": runs("new", 0.7, written=2000.0)},
    "rates: 'new' was run at 0.0002 alone": {"arm": runs("new", 0.7, tried={2e-4: 0.7})},
    "rates: 'new' is best at 0.0001, told at 0.0002": {
        "arm": runs("new", 0.7, tried={1e-4: 0.9, 2e-4: 0.7})
    },
    "rates: told at 2e-4, which neither": {"at": "stated"},
    "start: where these runs begin is not known": {"arm": runs("new", 0.7, start=None)},
    "start: a run that dies is no comparison: 'new' 0.900": {"arm": runs("new", 0.7, start=0.9)},
    "null: no arm without the named cause": {"null": None},
    "null: minus 'other' it is": {"null": runs("other", 0.7)},
    "control": {"control": None},
    "seeds: 9, and a headline has 10": {"arm": runs("new", 0.7, 9)},
    "number: the text says +0.5, these runs +0.2": {"says": 0.5},
}


@pytest.mark.parametrize("gap", GAPS)
def test_each_gap_is_named(gap):
    with pytest.raises(Refused) as refused:
        claim(**GAPS[gap]).verdict()
    assert [found.startswith(gap) for found in refused.value.gaps].count(True) == 1
    assert str(refused.value).splitlines()[0] == "'new is better' (chapter 08) is no verdict:"


def test_all_gaps_are_listed_at_once():
    with pytest.raises(Refused) as refused:
        claim(null=None, control=None, arm=runs("new", 0.7, 4, writer=ANOTHER)).verdict()
    kinds = [gap.split(":")[0] for gap in refused.value.gaps]
    assert kinds == ["writer", "null", "control", "seeds"]


def test_a_row_wants_five_seeds_a_claim_about_a_collapse_no_learning():
    few = {"headline": False, "arm": runs("new", 0.7, 5)}
    assert claim(**few).verdict().found["seeds"] == 5
    low = {"arm": runs("new", 0.7, start=0.9), "against": runs("old", 0.5, start=0.9)}
    low |= {"null": low["against"], "says": None}
    first, *_ = claim(**low).gaps()
    assert first.startswith("start: nothing was learned: 'new' 0.900 → 0.699, 'old'")
    assert claim(**low, collapse=True).verdict()


def test_two_arms_at_the_end_of_their_grid_are_a_verdict_that_says_so():
    edge = runs("new", 0.7, tried={1e-4: 0.4, 2e-4: 0.7})
    (row,) = ledger([claim(arm=edge).verdict()])
    assert row.rates == "2e-4, edge; 2e-4" and "an edge" in edge.told_rates()


def test_a_tie_of_two_rates_has_two_best_ones():
    tie = runs("new", 0.7, tried={1e-4: 0.70003, 2e-4: 0.7, 4e-4: 0.3})
    assert tie.best == 1e-4 and claim(arm=tie).verdict()


def test_families_are_corrected_by_holm_whatever_else_a_claim_lacks():
    close = {s: 0.5 + 0.02 * (-1) ** s + 0.012 for s in range(10)}
    near = claim(arm=runs("new", 0.5, values=close), says=None)
    assert near.found["p"] < 0.2
    p = near.found["p"]
    alone, many = ledger([near]), ledger([near] * 3 + [claim(null=None)])
    assert alone[0].real == (p <= 0.05)
    assert many[-1].real and not many[0].real and many[-1].lacks == "null"


# The book's own cases: what was printed, and what the type answers.


def gaps_of(pair: tuple[Runs, Runs], **more) -> str:
    arm, against = pair
    one = Claim(
        text="as printed", chapter="00", world="", unit="", family="", arm=arm, against=against,
        **more,
    )  # fmt: skip
    with pytest.raises(Refused) as refused:
        one.verdict()
    return "\n".join(refused.value.gaps)


def pair(name, arm, against, column, lr=None) -> tuple[Runs, Runs]:
    return tuple(runs_of(name, label, column, lr, load) for label in (arm, against))


def test_imitation_was_marked_on_the_answers_of_the_teacher():
    late = Column("accuracy", steps=(31, 40))
    said = gaps_of(pair("distillation", "SFT on the teacher", "RL", late), says=0.37)
    assert "writer: 'SFT on the teacher' is marked on answers that another policy wrote" in said
    assert re.search(r"has 0\.884 before any update, its policy 0\.2\d+: these are not its", said)
    assert "null: no arm" in said and "control" in said and "number" not in said


def test_the_number_of_imitation_is_not_that_of_held_out_answers():
    held = pair("distillation", "SFT on the teacher", "RL", Column("pass@1_habits"))
    said = gaps_of(held, says=0.37)
    assert "number: the text says +0.37, these runs +0.26 [+0.24, +0.28]" in said
    assert "writer" not in said


def test_dynamic_sampling_had_two_and_a_half_times_the_answers():
    column = Column("pass@1_solvable")
    said = gaps_of(
        pair("unsolvable", "+ dynamic sampling", "GRPO, twice the batches", column), says=0.13
    )
    assert "answers written: '+ dynamic sampling' 7,949, 'GRPO, twice the batches' 3,072" in said
    both = pair("methods", "dapo", "grpo", Column("pass@1"))
    assert "budget: answers written: 'dapo'" in gaps_of(both, headline=True)
    assert "seeds: 5, and a headline has 10" in gaps_of(both, headline=True)


def test_a_leash_was_tried_at_one_rate():
    both = pair("overoptimisation", "1000 pairs, β = 0.1", "1000 pairs", Column("pass@1"))
    said = gaps_of(both, null=both[1])
    assert "rates: '1000 pairs' was run at 0.0006 alone" in said
    assert "start: a run that dies is no comparison: '1000 pairs' 0.305 → 0.052" in said


@pytest.mark.parametrize("lr", [1e-4, 2e-4])
@pytest.mark.parametrize("arm", ["no σ", "group σ", "mean per answer", "clip-higher"])
def test_a_trained_policy_that_learns_nothing_tells_no_switches_apart(arm, lr):
    both = pair("lite_trained", arm, "LitePPO", Column("pass@1"), lr)
    assert "start: nothing was learned" in gaps_of(both, at="stated")


def test_a_judge_that_dies_is_no_difference():
    tool = Column("pass@1_with_tool")
    said = gaps_of(pair("process_rewards", "PRIME", "outcome", tool, 6e-4), says=-0.10)
    assert "start: a run that dies is no comparison: 'PRIME' 0.069 → 0.008" in said
    assert "number: the text says -0.1" in said
    slow = gaps_of(pair("process_rewards", "PRIME", "outcome", tool, 3e-4))
    assert "dies" not in slow  # two rates, two verdicts


def test_sixteen_updates_pay_but_not_because_of_the_clip():
    for passes, left in (("16 minibatches", "+0.051"), ("4 passes of 4", "+0.031")):
        arm, null = f"{passes}, clip 0.2", f"{passes}, no trust region"
        both = pair("reuse", arm, "one update", Column("pass@1"))
        null_arm = runs_of("reuse", null, Column("pass@1"), None, load)
        said = gaps_of(both, null=null_arm)
        assert f"null: minus {null!r} it is {left}" in said and "cause is not shown" in said


def test_the_tries_that_rl_saves_are_not_256():
    """Tries of the base that solve as much as two of the trained policy, mean of four families."""
    base, trained = load("coverage_start"), load("coverage_eval")
    trained = trained[(trained["arm"] == "verifier") & (trained["lr"] == 3e-4)]
    base = base[base["arm"] == "verifier"]
    by_family = {
        seed: [tries_for_two(base, rows, level) for level in (2, 3, 4, 5)]
        for seed, rows in trained.groupby("seed")
    }
    told = [11.5, 26.7, 21.5, 125.8]  # chapter 13: 12, 27, 22, 126
    assert np.mean(list(by_family.values()), axis=0) == pytest.approx(told)
    tries = {int(seed): float(np.mean(four)) for seed, four in by_family.items()}
    rl = runs("tries of the base for two", 1.0, values=tries)
    two = runs("two", 1.0, values=dict.fromkeys(tries, 2.0))
    said = gaps_of((rl, two), says=256)
    assert "number: the text says +256, these runs" in said


def tries_for_two(base: pd.DataFrame, trained: pd.DataFrame, level: int) -> int:
    names = [name for name in base if name.startswith(f"right_{level}_")]
    before, after = (rows[names].iloc[0].to_numpy(int) for rows in (base, trained))
    (two,) = pass_at_k_curve(256, after, [2])
    curve = pass_at_k_curve(256, before, list(range(1, 257)))
    return int(np.searchsorted(curve, two)) + 1


def test_what_stands_stands():
    at_80 = Column("pass@1_limit_80")
    tight, room = (
        pair(name, "ramp", "cliff", at_80) for name in ("tight_limit", "tight_limit_control")
    )
    ramp = Claim(
        text="the ramp gives up care", chapter="08", world="", unit="pass@1", family="08",
        arm=tight[0], against=tight[1], null=tight[1], control=room, says=-0.33, headline=True,
        collapse=True,
    )  # fmt: skip
    assert ramp.verdict().found["mean"] == pytest.approx(-0.333, abs=5e-4)
    tool, lr = Column("pass@1_with_tool"), 3e-4
    judge = pair("process_rewards", "process", "outcome", tool, lr)
    sound = pair("process_rewards_control", "process", "outcome", tool, lr)
    verdict = replace(
        ramp, arm=judge[0], against=judge[1], null=judge[1], control=sound, says=0.029,
        at="stated", world="lr 3e-4", collapse=False,
    ).verdict()  # fmt: skip
    assert verdict.found["low"] > 0


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match="siblings has no arm 'GRP'; there are batch mean"):
        runs_of("siblings", "GRP", Column("pass@1"), None, load)
    with pytest.raises(ValueError, match=r"'RLOO' of habits_rates ran at .* say which lr"):
        runs_of("habits_rates", "RLOO", Column("pass@1"), None, load)
    with pytest.raises(ValueError, match="'RLOO' of habits_rates has no runs at 0"):
        runs_of("habits_rates", "RLOO", Column("pass@1"), 0.1, load)
