"""A task and rewards of one's own, by import path, from the prompt to the learner's batch."""

import sys
import textwrap

import pytest
import torch

from rlbook.jsonl import read_jsonl
from rlbook.scale import batch_log
from rlbook.scale.launch.dry_run import check_start
from rlbook.training import collate

OWN = """
from rlbook.tasks import Problem, SumsTask

calls = []

class Doubles(SumsTask):
    name, levels = "doubles", (2,)

    def sample(self, seed, n, levels=None):
        numbers = [(seed + i) % 9999 for i in range(n)]
        return [Problem(f"d{i}", f"{i}+{i}=?", str(2 * i), 2) for i in numbers]

    def label(self, problem, completion, finished):
        return "even" if len(completion) % 2 == 0 else "odd"

def process(rollouts):
    calls.append(rollouts)
    return {
        "outcome": [3.0 if r.correct else -1.0 for r in rollouts],
        "process": [[0.1 * i for i in range(r.length)] for r in rollouts],
    }

def careless(rollouts):
    return {"outcome": [1.0]}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module, in the working directory."""
    (tmp_path / "own_code.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: sys.modules["own_code"]
    sys.modules.pop("own_code", None)


DATA = {"task": "own_code:Doubles", "reward": "own_code:process", "pool": 200}


def test_a_run_asks_verifies_labels_and_rewards_by_own_code(own, make_run):
    run = make_run(data=DATA, method="dr_grpo").play()
    problems = {rollout.problem.id for _, rollout in run.rollouts}
    assert problems and all(id_.startswith("d") for id_ in problems)
    for _, rollout in run.rollouts:
        assert rollout.correct == (str(2 * int(rollout.problem.id[1:])) in rollout.text)
        assert rollout.rewards == {"outcome": 3.0 if rollout.correct else -1.0}
        assert rollout.token_rewards == {"process": [0.1 * i for i in range(rollout.length)]}
    for row in run.rows:
        assert row.get("share_even", 0) + row.get("share_odd", 0) == pytest.approx(1)
    evaluations = read_jsonl(run.layout.log("eval"))
    assert evaluations and all({"share_even", "share_odd"} & set(row) for row in evaluations)


def test_a_reward_is_given_whole_groups_and_nothing_held_out(own, make_run):
    run = make_run(data=DATA).play()
    calls = own().calls
    assert len(calls) >= run.steps * run.prompts
    for rollouts in calls:
        assert len(rollouts) == run.group_size
        assert len({rollout.group for rollout in rollouts}) == 1
    held_out = {one.id for one in run.orchestrator().evaluator.sets[0].problems}
    assert not held_out & {rollouts[0].problem.id for rollouts in calls}


def test_rewards_per_token_reach_the_batch_of_the_update(own, make_run):
    run = make_run(data=DATA).play()
    _, rollouts = run.trainer.updates[0]
    batch = collate(rollouts)
    sums = batch.token_rewards.sum(1)
    expected = [0.1 * r.length * (r.length - 1) / 2 for r in rollouts]
    torch.testing.assert_close(sums, torch.tensor(expected))


def test_the_method_shapes_what_the_own_reward_gave(own, make_run):
    run = make_run(data=DATA, method={"name": "dapo", "prompt_filter": None}).play()
    assert {"outcome", "overlong"} == set(run.rollouts[0][1].rewards)


def test_a_reward_that_miscounts_stops_the_orchestrator_by_name(own, make_run):
    run = make_run(data=DATA | {"reward": "own_code:careless"})
    with pytest.raises(ExceptionGroup) as error:
        run.play()
    (cause,) = error.value.exceptions
    assert "reward careless: part 'outcome' has 1 values for 2 rollouts" in str(cause)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"task": "own_code:Missing"}, ValueError, "own_code has no 'Missing'"),
        ({"reward": "own_code:missing"}, ValueError, "own_code has no 'missing'"),
        ({"reward": "own_kode:process"}, ImportError, "no module 'own_kode'"),
        ({"reward": "own_code:calls"}, ValueError, "is not a function of rollouts"),
    ],
)
def test_own_code_that_is_not_there_is_named_before_anything_starts(
    own, make_run, data, error, message
):
    with pytest.raises(error, match=message):
        check_start(make_run(data=DATA | data).config)


@pytest.mark.parametrize("part", ["process", "__x/y", "π"])
def test_rewards_per_token_survive_the_log_bit_for_bit(part, own, make_run):
    run = make_run(data=DATA).play()
    _, rollouts = run.trainer.updates[0]
    values = [0.1, -1e-30, 2.0**-60, 1 / 3]
    for i, rollout in enumerate(rollouts[1:]):
        dense = [values[t % 4] * (i + 1) for t in range(rollout.length)]
        rollout.token_rewards = (
            {part: dense} if i % 2 else {part: dense, "zero": [0.0] * len(dense)}
        )
    rollouts[0].token_rewards = {}
    batch_log.write_batch(run.layout, 99, rollouts, {})
    assert batch_log.read_batch(run.layout, 99)[0] == rollouts


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        ({"task": "nowhere"}, "unknown task 'nowhere'"),
        (
            {"max_new_tokens": 10**6},
            r"evaluation\.sets\.mine\.max_new_tokens 1000000: .* context of",
        ),
        ({"levels": [99]}, r"99"),
    ],
)
def test_a_set_that_cannot_be_asked_is_named_before_the_start(make_run, one, problem):
    sets = {"mine": {"task": "sums", "prompts": 3} | one}
    with pytest.raises(ValueError, match=problem):
        check_start(make_run(evaluation={"sets": sets}).config)
    check_start(make_run(evaluation={"every": 0, "sets": sets}).config)
