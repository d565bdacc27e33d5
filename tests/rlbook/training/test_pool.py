import pytest

from rlbook.tasks import Problem, SumsTask, held_out_problems
from rlbook.training import PromptPool, RunConfig
from rlbook.training.pool import prompt_pool


def problems(count):
    return [Problem(f"p{i}", f"{i}+0=?", str(i)) for i in range(count)]


def ids(drawn):
    return [p.id for p in drawn]


def test_every_epoch_meets_every_problem_once_in_another_order():
    pool = PromptPool(problems(7), seed=3)
    drawn = ids(pool.draw(5) + pool.draw(5) + pool.draw(4))
    first, second = drawn[:7], drawn[7:]
    assert sorted(first) == sorted(second) == ids(problems(7))
    assert first != second
    assert ids(PromptPool(problems(7), seed=3).draw(14)) == drawn
    assert ids(PromptPool(problems(7), seed=4).draw(7)) != first


def test_pass_rate_is_over_the_whole_run(make_rollout):
    pool = PromptPool(problems(2))
    assert pool.pass_rate("p0") is None
    pool.record([make_rollout(group=0, correct=c) for c in (True, True, False)])
    pool.record([make_rollout(group=0, correct=False)])
    assert pool.pass_rate("p0") == 0.5
    assert pool.pass_rate("p1") is None


def test_a_solved_problem_retires_at_the_threshold_and_not_before(make_rollout):
    pool = PromptPool(problems(3), retire_at=0.9)
    pool.record([make_rollout(group=0, correct=i > 0) for i in range(9)])
    assert pool.retired == set()  # 8/9
    pool.record([make_rollout(group=0, correct=True)])
    assert pool.retired == {"p0"}  # 9/10
    assert set(ids(pool.draw(8))) == {"p1", "p2"}


def test_a_pool_without_threshold_keeps_everything(make_rollout):
    pool = PromptPool(problems(1))
    pool.record([make_rollout(group=0, correct=True)])
    assert ids(pool.draw(3)) == ["p0"] * 3


def test_state_continues_the_same_sequence(make_rollout):
    pool = PromptPool(problems(5), seed=1, retire_at=0.5)
    pool.draw(7)
    pool.record([make_rollout(group=2, correct=True)])
    again = PromptPool(problems(5), seed=1, retire_at=0.5)
    again.load(pool.state())
    assert ids(again.draw(20)) == ids(pool.draw(20))
    assert again.retired == {"p2"}


def test_an_exhausted_pool_says_so(make_rollout):
    pool = PromptPool(problems(1), retire_at=0.9)
    pool.record([make_rollout(group=0, correct=True)])
    with pytest.raises(ValueError, match="all 1 problems of the pool are retired"):
        pool.draw(1)


@pytest.mark.parametrize("bad", [[], problems(2) + problems(1)])
def test_a_pool_needs_distinct_problems(bad):
    with pytest.raises(ValueError, match="distinct ids"):
        PromptPool(bad)


def test_a_pool_of_a_run_has_none_of_the_problems_it_is_evaluated_on():
    """Sums of two numbers are few: of 400 drawn for training some are held out as well."""
    config, task = RunConfig(pool=400, levels=(2,)), SumsTask()
    drawn = {p.prompt for p in task.sample(config.seed, 400, (2,))}
    held_out = {p.prompt for p in held_out_problems(task, config.evaluation.prompts, (2,))}
    assert held_out & drawn
    pool = prompt_pool(task, config)
    assert {p.prompt for p in pool.problems.values()} == drawn - held_out
    assert prompt_pool(task, RunConfig()) is None
