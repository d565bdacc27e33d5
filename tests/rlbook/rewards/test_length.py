"""Length as a reward, against worked numbers of the papers."""

import pytest

from rlbook.rewards import KimiLength, L1Exact, L1Max, LengthCost
from rlbook.tasks import Problem, SumsTask
from rlbook.tasks.budgets import Budgeted
from rlbook.training import Rollout, give_rewards


def answer(length, right=True, group=0, budget=None):
    meta = {} if budget is None else {"budget": budget}
    return Rollout(
        problem=Problem(f"p{group}", "1+1=?", "2", meta=meta),
        group=group,
        prompt_ids=[1, 9],
        token_ids=[11] * length,
        logps=[0.0] * length,
        versions=[0] * length,
        finish_reason="stop",
        text="",
        correct=right,
    )


def earned(rule, answers):
    give_rewards(answers, [rule])
    return [r.reward for r in answers]


def test_a_price_is_paid_by_right_and_wrong_alike():
    assert earned(LengthCost(0.01), [answer(20), answer(40, right=False)]) == pytest.approx(
        [0.8, -0.4]
    )


def test_l1_on_the_papers_scale():
    """α = 3e-4, a budget of 1000, an answer of 1500 tokens."""
    long, short = answer(1500, budget=1000), answer(500, budget=1000)
    assert earned(L1Exact(), [long, short]) == pytest.approx([0.85, 0.85])
    assert earned(L1Max(), [long, short]) == pytest.approx([0.35, 0.65])
    assert earned(L1Max(), [answer(5000, budget=1000)]) == [0]  # clipped
    assert earned(L1Max(alpha=0.1), [answer(10, budget=1000)]) == [1]
    assert earned(L1Max(), [answer(500, right=False, budget=1000)]) == [0]
    assert earned(L1Exact(), [answer(1000, right=False, budget=1000)]) == [0]


def test_a_budget_comes_with_the_prompt_or_the_run():
    assert earned(L1Exact(alpha=0.1, budget=8), [answer(10), answer(10, budget=10)]) == (
        pytest.approx([0.8, 1.0])
    )
    with pytest.raises(ValueError, match="no length budget"):
        earned(L1Max(), [answer(10)])


def test_kimi_ranks_an_answer_among_its_siblings():
    group = [answer(10), answer(20), answer(30, right=False)]
    assert earned(KimiLength(), group) == pytest.approx([1.5, 1.0, -0.5])
    wrong_and_short = [answer(10, right=False), answer(30)]
    assert earned(KimiLength(), wrong_and_short) == pytest.approx([0.0, 0.5])
    assert earned(KimiLength(), [answer(10), answer(10, right=False)]) == [1, 0]  # max = min


def test_kimi_compares_within_a_group_only():
    groups = [answer(10, group=0), answer(20, group=0), answer(100, group=1), answer(200, group=1)]
    assert earned(KimiLength(2.0), groups) == pytest.approx([2, 0, 2, 0])


def test_a_budget_stands_in_the_prompt_and_changes_no_verdict():
    task = Budgeted(SumsTask(), (12, 48))
    problems = task.sample(3, 40, levels=(2,))
    assert {p.meta["budget"] for p in problems} == {12, 48}
    plain = SumsTask().sample(3, 40, levels=(2,))
    for one, other in zip(problems, plain, strict=True):
        assert one.prompt == f"{one.meta['budget']};{other.prompt}" and one.answer == other.answer
        text = f"<think></think><answer>{one.answer}</answer>"
        assert task.verify(one, text).correct and not task.verify(one, text, False).correct
    assert task.sample(3, 40, levels=(2,)) == problems
