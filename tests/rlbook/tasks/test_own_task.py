"""Tasks by import path, what a task has besides, and the one way to held-out problems."""

import asyncio
import sys

import pytest

from rlbook.scale.rollout.groups import Verifiers
from rlbook.tasks import (
    HeldOut,
    Labelled,
    Problem,
    SumsTask,
    Task,
    get_task,
    held_out_problems,
    strategy_of,
)
from rlbook.tasks.registry import HELD_OUT_SEED

OWN = """
from rlbook.tasks import Problem, Verdict

class Doubles:
    name, levels = "doubles", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(str(i), f"2*{i}=?", str(2 * i), 1) for i in range(seed, seed + n)]

    def verify(self, problem, completion, finished=True):
        right = completion == problem.answer
        return Verdict(right, True, completion, "ok" if right else "wrong")

class Silent:
    name, levels, sample = "silent", (1,), Doubles.sample

def factory():
    return Doubles()

def needy(path):
    return Doubles()

not_callable = Doubles()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The working directory holds `own_tasks.py`, and the path only what a command's has."""
    (tmp_path / "own_tasks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    sys.modules.pop("own_tasks", None)


@pytest.mark.parametrize("name", ["own_tasks:Doubles", "own_tasks:factory"])
def test_a_task_by_import_path(own, name):
    task = get_task(name)
    assert isinstance(task, Task)
    assert [p.prompt for p in task.sample(3, 2)] == ["2*3=?", "2*4=?"]
    assert task.verify(Problem("3", "2*3=?", "6"), "6").correct


def test_a_task_by_import_path_is_judged_in_another_process_too(own):
    verifiers = Verifiers("own_tasks:Doubles", seconds=20)
    try:
        verdicts = [
            asyncio.run(verifiers.verify(Problem("3", "2*3=?", "6"), said)) for said in "67"
        ]
    finally:
        verifiers.close()
    assert [v.reason for v in verdicts] == ["ok", "wrong"]
    assert not verifiers.events


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("own_tasks:Silent", ValueError, r"has no verify: a task has name, levels, sample"),
        ("own_tasks:needy", ValueError, r"without arguments.*'path'"),
        ("own_tasks:Missing", ValueError, "own_tasks has no 'Missing'"),
        ("own_tasks:not_callable", ValueError, "neither a class nor a function"),
        ("nowhere.tasks:Mine", ImportError, r"no module 'nowhere.tasks'.*PYTHONPATH"),
        ("reasoninggym:chain_sum", ImportError, "no module 'reasoninggym'.*reasoning_gym:<"),
        ("own_tasks:", ValueError, "unknown task"),
        ("own_tasks.py:Doubles:x", ValueError, "unknown task"),
        ("./own_tasks:Doubles", ValueError, "unknown task"),
    ],
)
def test_what_is_no_task_is_named(own, name, error, message):
    with pytest.raises(error, match=message):
        get_task(name)


def test_a_module_that_lacks_a_library_names_the_library(own, tmp_path):
    (tmp_path / "broken_tasks.py").write_text("import no_such_library")
    with pytest.raises(ImportError, match=r"broken_tasks:T.*no_such_library"):
        get_task("broken_tasks:T")


def test_only_sums_have_labels_and_only_data_sets_a_part_of_their_own(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}')
    rows = get_task(f"dataset:{tmp_path / 'rows.jsonl'}")
    assert [isinstance(task, Labelled) for task in (SumsTask(), rows)] == [True, False]
    assert [isinstance(task, HeldOut) for task in (SumsTask(), rows)] == [False, True]


@pytest.mark.parametrize("finished", [True, False])
def test_the_label_of_a_sum_is_its_strategy(finished):
    problem = SumsTask().sample(0, 1)[0]
    for completion in ("", "<think></think><answer>4</answer>", "<think>so 4</think><answer>4"):
        label = SumsTask().label(problem, completion, finished)
        assert label == strategy_of(completion, finished)


def test_generated_tasks_hold_out_a_seed():
    assert held_out_problems(SumsTask(), 5, [4]) == SumsTask().sample(HELD_OUT_SEED, 5, [4])


def test_data_sets_hold_out_problems_that_are_never_trained_on(tmp_path):
    rows = [f'{{"question": "{i}?", "answer": "{i}", "level": {i % 2}}}' for i in range(300)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows + rows[:50]))
    task = get_task(f"dataset:{tmp_path / 'rows.jsonl'}")
    train, out = map(len, task.parts)
    trained = {p.id for seed in range(3) for p in task.sample(seed, train)}
    held_out = held_out_problems(task, out)
    assert trained.isdisjoint(p.id for p in held_out) and train + out == 300
    assert held_out_problems(task, 5) == held_out[:5]
    assert {p.level for p in held_out_problems(task, 5, [1])} == {1}
    with pytest.raises(ValueError, match=rf"{out} held-out problems, {out + 1} are asked"):
        held_out_problems(task, out + 1)
