"""Several tasks in one run: proportions, verdicts, rewards and metrics of each."""

from collections import Counter

import pytest

from rlbook.tasks import get_task, held_out_problems
from rlbook.tasks.mixture import MixtureTask
from rlbook.training.batch import Rollout
from rlbook.training.config import RunConfig, dump_config, load_config
from rlbook.training.metrics import rollout_metrics
from rlbook.training.rewards import give_rewards, rewards_of

WEIGHTS = {"sums": 3.0, "habits": 1.0}


@pytest.fixture
def task():
    return get_task(RunConfig(data={"mixture": WEIGHTS}).data.task)


def names(problems):
    return Counter(problem.meta["mixture"] for problem in problems)


def test_problems_come_in_proportion_the_same_for_the_same_seed(task):
    assert isinstance(task, MixtureTask) and set(task.levels) >= {2, 3, 4}
    problems = task.sample(7, 4000)
    assert problems == task.sample(7, 4000) != task.sample(8, 4000)
    assert names(problems)["sums"] / 4000 == pytest.approx(0.75, abs=0.03)
    held_out = held_out_problems(task, 12)
    assert names(held_out) == {"sums": 9, "habits": 3}
    assert [p.prompt for p in held_out if p.meta["mixture"] == "sums"] == [
        p.prompt for p in held_out_problems(get_task("sums"), 9)
    ]


def test_every_problem_is_judged_by_its_own_task(task):
    for problem in task.sample(0, 40, [2]):
        own = get_task(problem.meta["mixture"])
        for text in (f"<think></think><answer>{problem.answer}</answer>", problem.answer, ""):
            assert task.verify(problem, text) == own.verify(problem, text)


def test_the_settings_travel_as_one_file(tmp_path):
    run = RunConfig(data={"mixture": WEIGHTS, "rewards": {"habits": "math:fsum"}})
    (tmp_path / "config.yaml").write_text(dump_config(run))
    assert load_config(tmp_path) == run
    with pytest.raises(ValueError, match=r"'gsm8k' is not in data\.mixture"):
        RunConfig(data={"mixture": WEIGHTS, "rewards": {"gsm8k": "math:fsum"}})
    with pytest.raises(ValueError, match="mixture"):
        get_task("mixture:[]")


def twice(rollouts):
    return {"mine": [2.0 * rollout.correct for rollout in rollouts]}


def test_rewards_and_metrics_are_of_each_task(task):
    run = RunConfig(
        method="rloo", data={"mixture": WEIGHTS, "rewards": {"habits": f"{__name__}:twice"}}
    )
    one = {
        name: next(p for p in task.sample(0, 50) if p.meta["mixture"] == name) for name in WEIGHTS
    }
    rollouts = [
        Rollout(one[name], i, [1], [2, 3], [-1.0, -1.0], [0, 0], "stop", "", correct=right)
        for i, (name, right) in enumerate([("sums", True), ("habits", True), ("sums", False)])
    ]
    give_rewards(rollouts, rewards_of(run))
    wrong, right = run.method.reward_values
    assert [r.reward for r in rollouts] == [right, 2.0, wrong]
    metrics = rollout_metrics(rollouts, 0)
    assert (metrics["accuracy_sums"], metrics["accuracy_habits"]) == (0.5, 1.0)
    assert metrics["reward_habits"] == 2.0
