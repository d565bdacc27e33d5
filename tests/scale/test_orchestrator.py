"""Whole runs with a generator and a trainer that cost nothing: filters, evaluation, the end."""

import asyncio
import re

import pytest

from rlbook.scale import spool
from rlbook.training import read_jsonl
from rlbook.training.collect import with_spread


def slow(rng):
    return rng.choice([0.0, 0.001, 0.02])


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_run_trains_full_batches_no_token_of_which_is_too_old(make_run, bound, late):
    run = make_run({"seconds": slow}, generate={"max_staleness": bound, "late": late}).play()
    assert [len(batch) for batch in run.groups] == [run.prompts] * run.steps
    assert all(len(group) == run.group_size for batch in run.groups for group in batch.values())
    assert len(set(run.tickets)) == len(run.tickets)
    assert min(run.lags) >= 0 and max(run.lags) <= bound
    if late == "wait":
        assert sorted(run.tickets) == list(range(run.steps * run.prompts))


@pytest.mark.parametrize("target", [0, 1, 3])
def test_staleness_follows_its_target_within_the_bound(make_run, target):
    """Answers that take no time against updates that do: all the credit there is gets used."""
    run = make_run(
        generate={"max_staleness": 4, "target_staleness": target},
        steps=14,
        evaluation={"every": 0},
    )
    run.trainer.seconds = 0.05
    run.play()
    settled = [lag for step, lag in run.lags_by_step if step >= 2 * target + 2]
    assert max(run.lags) <= 4
    assert sum(settled) / len(settled) == pytest.approx(target, abs=0.35)
    assert {row["target_staleness"] for row in run.rows} == {target}


def test_without_a_target_tokens_are_as_fresh_as_the_trainer_allows(make_run):
    """Answers come well within an update: being written one update ahead is enough."""
    run = make_run(generate={"max_staleness": 8}, steps=24, evaluation={"every": 0})
    run.trainer.seconds = 0.05
    run.play()
    settled = [lag for step, lag in run.lags_by_step if step >= 12]
    assert sum(settled) / len(settled) < 2.5  # with the bound as its target: 8


def test_rollouts_carry_what_was_sampled_and_what_it_earned(make_run):
    run = make_run({"right": lambda text: float("+" in text)}).play()
    for batch in run.groups:
        assert all(len({r.problem.id for r in group}) == 1 for group in batch.values())
    tokenizer = run.engine.tokenizer
    for _, rollout in run.rollouts:
        assert rollout.prompt_ids == tokenizer(rollout.problem.prompt).input_ids
        assert rollout.correct == ("+" in rollout.problem.prompt)
        assert rollout.rewards == {"answer": float(rollout.correct)}
        assert rollout.token_ids[-1] == tokenizer.eos_token_id
        assert rollout.text == tokenizer.decode(rollout.token_ids[:-1])


def test_a_step_is_cut_into_updates(make_run):
    """2 steps of 6 prompts in 3 updates each: 6 batches of 2, evaluated after 3 and 6."""
    run = make_run(
        {"seconds": lambda rng: 0.001},
        steps=2,
        rollout={"prompts": 6},
        optimizer={"minibatches": 3},
        evaluation={"every": 1},
    ).play()
    assert [len(batch) for batch in run.groups] == [2] * 6
    assert [row["step"] for row in run.rows] == [1, 2, 3, 4, 5, 6]
    evaluations = [row["step"] for row in read_jsonl(run.layout.log("eval"))]
    assert evaluations[0] == 0 and evaluations[-1] == 6
    assert len(evaluations) == len({step // 3 for step in evaluations})


def test_every_batch_has_a_row(make_run):
    run = make_run({"seconds": lambda rng: 0.002}).play()
    assert [row["step"] for row in run.rows] == list(range(1, run.steps + 1))
    for row, batch in zip(run.rows, run.groups, strict=True):
        rollouts = [r for group in batch.values() for r in group]
        assert row["completions"] == run.prompts * run.group_size
        assert row["accuracy"] == sum(r.correct for r in rollouts) / len(rollouts)
        assert row["group_seconds"] >= 0.002
        assert 0 <= row["generator_idle"] <= 1 and row["groups_in_flight"] >= 0
        assert row["failed_requests"] == row["verify_timeouts"] == 0


# Filters and the end of the pool


def test_dropped_groups_are_counted_but_not_trained(make_run):
    run = make_run(method="scalerl").play()
    for row, batch in zip(run.rows, run.groups, strict=True):
        everyone = [r for group in batch.values() for r in group]
        assert with_spread(everyone) == everyone
        assert row["trained_groups"] == len(batch) <= run.prompts
        assert row["rejected"] == row["completions"] / run.group_size - len(batch)
    assert sum(row["rejected"] for row in run.rows) > 0


def test_resampling_fills_every_batch(make_run):
    run = make_run(method="dapo").play()
    assert [len(batch) for batch in run.groups] == [run.prompts] * run.steps
    everyone = [rollout for _, rollout in run.rollouts]
    assert with_spread(everyone) == everyone
    assert sum(row["rejected"] for row in run.rows) > 0
    assert {"answer", "overlong"} == set(everyone[0].rewards)


@pytest.mark.parametrize("method", ["scalerl", "dapo"])
def test_a_stretch_without_spread_is_survived(make_run, method):
    run = make_run(method=method, generate={"max_staleness": 0}, launch={"silent_batches": 60})
    run.engine.right = lambda text: 1.0 if run.engine.calls < 120 else 0.5
    run.play()
    assert len(run.groups) == run.steps
    assert sum(row["rejected"] for row in run.rows) >= 100
    if method == "scalerl":
        assert run.rows[0]["empty_batches"] > 10


def test_answers_are_kept_to_be_read_right_and_wrong_ones(make_run):
    run = make_run(launch={"shown": 3}).play()
    by_step = {}
    for row in read_jsonl(run.layout.log("samples")):
        by_step.setdefault(row["step"], []).append(row)
    batches = {version + 1: rollouts for version, rollouts in run.trainer.updates}
    assert by_step.keys() >= batches.keys()
    for step in batches:
        rows, verdicts = by_step[step], [rollout.correct for rollout in batches[step]]
        assert {row["correct"] for row in rows} == set(verdicts)
        texts = {(r.problem.prompt, r.text, r.reward) for r in batches[step]}
        assert {(row["prompt"], row["answer"], row["reward"]) for row in rows} <= texts
        assert len(rows) == min(3, len(verdicts))


@pytest.mark.parametrize("method", ["scalerl", "dapo"])
def test_a_task_that_teaches_nothing_ends_the_run_and_says_so(make_run, method, capsys):
    run = make_run({"right": lambda text: 0.0}, method=method, launch={"silent_batches": 4}).play()
    assert run.groups == []
    end = spool.spool_end(run.layout)
    assert end["failed"] and end["version"] == 0
    assert "accuracy 0.000 over" in end["reason"] and "data.levels" in end["reason"]
    assert str(run.layout.log("samples")) in end["reason"]
    answers = read_jsonl(run.layout.log("samples"))
    assert answers and not any(row["correct"] for row in answers)
    assert (
        4 * run.prompts <= int(re.search(r"of (\d+) in a row", end["reason"])[1]) <= 6 * run.prompts
    )
    assert end["reason"] in capsys.readouterr().out


def test_solved_problems_retire_and_an_exhausted_pool_ends_the_run(make_run):
    run = make_run({"right": lambda text: 1.0}, data={"pool": 7, "retire_at": 0.9}).play()
    end = spool.spool_end(run.layout)
    assert end["version"] == len(run.groups) < run.steps
    assert "all 7 problems of the pool are retired" in end["reason"]
    assert run.rows[-1]["retired"] > 0
    again = run.orchestrator()
    assert not again.batches.pacing.may_start(again.batches.pacing.batch)


def test_a_pool_that_lost_an_open_problem_is_named(make_run):
    run = make_run()
    state = {"step": 0, "next_ticket": 1, "open": {"0": "gone"}}
    state["pool"] = {"drawn": 1, "memory": {}}
    spool.write_batch(run.layout, 0, [], state)
    with pytest.raises(ValueError, match=r"problem 'gone'.*data\.pool"):
        run.orchestrator()


# Evaluation


def test_evaluation_every_few_versions_and_at_the_end(make_run):
    run = make_run({"seconds": lambda rng: 0.001, "right": lambda text: 0.75}).play()
    rows = read_jsonl(run.layout.log("eval"))
    assert rows[0]["step"] == 0 and rows[-1]["step"] == run.steps
    assert [row["step"] // 4 for row in rows[:-1]] in ([0], [0, 1])  # 1 may be the last one
    for row in rows:
        assert row["problems"] == 5 and row["samples"] == 4
        assert row["step"] <= row["version_max"] <= run.steps
        assert row["pass@1_low"] <= row["pass@1"] <= row["pass@1_high"]
        assert row["pass@1"] <= row["pass@2"] <= row["pass@4"]
    held_out = {p.prompt for p in run.orchestrator().evaluation.problems}
    assert not held_out & {rollout.problem.prompt for _, rollout in run.rollouts}


def test_evaluation_gets_one_request_when_there_is_no_free_slot(make_run):
    run = make_run(
        {"seconds": lambda rng: 0.002},
        generate={"slots": 4, "max_staleness": 8},
    ).play()
    assert run.engine.most_in_flight <= 2 * 4 // 2 + 1
    assert read_jsonl(run.layout.log("eval"))[0]["version_max"] < run.steps


def test_a_dead_generator_does_not_keep_a_finished_run_open(make_run, monkeypatch):
    monkeypatch.setattr("rlbook.scale.rollout.orchestrator.SILENT_SECONDS", 0.1)
    run = make_run({"weights": None})
    run.trainer.report(run.steps, done=True)
    asyncio.run(asyncio.wait_for(run.orchestrator().run(), 20))
    assert read_jsonl(run.layout.log("eval")) == []
