"""Whole runs with a generator and a trainer that cost nothing: filters, evaluation, the end."""

import asyncio
import re
from collections import Counter
from itertools import count

import pytest

from rlbook.jsonl import read_jsonl
from rlbook.objectives import METHODS
from rlbook.scale import batch_log
from rlbook.training.filter import select_groups
from rlbook.training.rollouts import MAX_ROUNDS


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
    settled = [staleness for step, staleness in run.staleness_by_step if step >= 2 * target + 2]
    assert max(run.lags) <= 4
    assert sum(settled) / len(settled) == pytest.approx(target, abs=0.35)
    assert {row["target_staleness"] for row in run.rows} == {target}


def test_without_a_target_tokens_are_as_fresh_as_the_trainer_allows(make_run):
    """Answers come well within an update: being written one update ahead is enough."""
    run = make_run(generate={"max_staleness": 8}, steps=24, evaluation={"every": 0})
    run.trainer.seconds = 0.05
    run.play()
    settled = [staleness for step, staleness in run.staleness_by_step if step >= 12]
    assert sum(settled) / len(settled) < 2.5  # with the bound as its target: 8


def test_rollouts_carry_what_was_sampled_and_what_it_earned(make_run):
    run = make_run({"right": lambda text: float("+" in text)}).play()
    for batch in run.groups:
        assert all(len({r.problem.id for r in group}) == 1 for group in batch.values())
    tokenizer = run.tokenizer
    for _, rollout in run.rollouts:
        assert rollout.prompt_ids == tokenizer(rollout.problem.prompt).input_ids
        assert rollout.correct == ("+" in rollout.problem.prompt)
        assert rollout.rewards == {"answer": float(rollout.correct)}
        assert rollout.token_ids[-1] == tokenizer.eos_token_id
        assert rollout.text == tokenizer.decode(rollout.token_ids[:-1])


def test_a_batch_is_a_step_however_many_updates_it_is_trained_in(make_run):
    """2 steps of 6 prompts in 3 updates each: 2 batches of 6, evaluated after each."""
    run = make_run(
        {"seconds": lambda rng: 0.001},
        steps=2,
        rollout={"prompts": 6},
        optimizer={"minibatches": 3},
        evaluation={"every": 1},
    ).play()
    assert [len(batch) for batch in run.groups] == [6] * 2
    assert [row["step"] for row in run.rows] == [1, 2]
    evaluations = [row["step"] for row in read_jsonl(run.layout.log("eval"))]
    assert evaluations[0] == 0 and evaluations[-1] == 2


def test_every_batch_has_a_row(make_run):
    run = make_run({"seconds": lambda rng: 0.002}, evaluation={"every": 0}).play()
    assert [row["step"] for row in run.rows] == list(range(1, run.steps + 1))
    for row, batch in zip(run.rows, run.groups, strict=True):
        rollouts = [r for group in batch.values() for r in group]
        assert row["completions"] == run.prompts * run.group_size
        assert row["accuracy"] == sum(r.correct for r in rollouts) / len(rollouts)
        assert row["group_seconds"] == pytest.approx(0.002) and row["queue_seconds"] >= 0
        assert 0 <= row["generator_idle"] <= 1 and row["groups_in_flight"] >= 0
        assert row["failed_requests"] == row["verify_timeouts"] == 0


def test_the_loop_shows_that_it_lives(make_run):
    run = make_run(evaluation={"every": 0}).play()
    assert run.layout.alive("orchestrator").exists()


# Filters and the end of the pool


def test_dropped_groups_are_counted_but_not_trained(make_run):
    run = make_run(method="scalerl").play()
    for row, batch in zip(run.rows, run.groups, strict=True):
        everyone = [r for group in batch.values() for r in group]
        assert select_groups(everyone, METHODS["dapo"]) == everyone
        assert len(batch) <= run.prompts
        assert row["rejected"] == row["completions"] / run.group_size - len(batch)
    assert sum(row["rejected"] for row in run.rows) > 0


def test_resampling_fills_every_batch(make_run):
    run = make_run(method="dapo").play()
    assert [len(batch) for batch in run.groups] == [run.prompts] * run.steps
    everyone = [rollout for _, rollout in run.rollouts]
    assert select_groups(everyone, METHODS["dapo"]) == everyone
    assert sum(row["rejected"] for row in run.rows) > 0
    assert {"answer", "overlong"} == set(everyone[0].rewards)


@pytest.mark.parametrize("method", ["scalerl", "dapo"])
def test_a_stretch_without_spread_is_survived(make_run, method):
    run = make_run(method=method, generate={"max_staleness": 0}, patience=60)
    written = count()
    run.generator.right = lambda text: 1.0 if next(written) < 240 else 0.5
    run.play()
    assert len(run.groups) == run.steps
    assert sum(row["rejected"] for row in run.rows) >= 100


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
    run = make_run({"right": lambda text: 0.0}, method=method, patience=4).play()
    assert run.groups == []
    end = batch_log.log_end(run.layout)
    assert end["failed"] and end["version"] == 0
    assert "accuracy 0.000 over" in end["reason"] and "data.levels" in end["reason"]
    assert str(run.layout.log("samples")) in end["reason"]
    answers = read_jsonl(run.layout.log("samples"))
    assert answers and not any(row["correct"] for row in answers)
    borne = 4 * run.prompts * (MAX_ROUNDS if METHODS[method].resamples else 1)  # of one process
    silent = int(re.search(r"of (\d+) in a row", end["reason"])[1])
    assert borne <= silent <= borne + 2 * run.prompts
    assert end["reason"] in capsys.readouterr().out


def test_without_patience_silence_is_borne(make_run):
    run = make_run(method="dapo", patience=None)
    written = count()
    run.generator.right = lambda text: 1.0 if next(written) < 2400 else 0.5
    run.play()
    assert len(run.groups) == run.steps


def test_solved_problems_retire_and_an_exhausted_pool_ends_the_run(make_run):
    run = make_run({"right": lambda text: 1.0}, data={"pool": 7, "retire_at": 0.9}).play()
    end = batch_log.log_end(run.layout)
    assert end["version"] == len(run.groups) < run.steps
    assert "all 7 problems of the pool are retired" in end["reason"]
    assert run.rows[-1]["retired"] > 0
    again = run.orchestrator()
    assert not again.batches.pacing.may_start(again.batches.pacing.batch)


def test_a_pool_that_lost_an_open_problem_is_named(make_run):
    run = make_run()
    state = {"step": 0, "next_ticket": 1, "open": {"0": "gone"}}
    state["pool"] = {"drawn": 1, "memory": {}}
    batch_log.write_batch(run.layout, 0, [], state)
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
        assert row["step"] == row["version_min"] == row["version_max"]
        assert row["pass@1_low"] <= row["pass@1"] <= row["pass@1_high"]
        assert row["pass@1"] <= row["pass@2"] <= row["pass@4"]
    held_out = {one.prompt for one in run.orchestrator().evaluator.sets[0].problems}
    assert len(held_out) == 5
    assert not held_out & {rollout.problem.prompt for _, rollout in run.rollouts}


HARD = {"task": "sums", "levels": [4], "prompts": 3, "samples": 8, "ks": [8]}


def test_sets_of_other_problems_are_asked_as_they_say(make_run):
    hard = HARD | {"temperature": 0.5, "max_new_tokens": 70}
    evaluation = {"every": 4, "sets": {"hard": hard, "greedy": HARD | {"temperature": 0}}}
    run = make_run(evaluation=evaluation).play()
    sets, usual = run.orchestrator().evaluator.sets, run.config.rollout.max_new_tokens
    questions = {problem.prompt for one in sets for problem in one.problems}
    asked, training = {}, 0
    for one in run.generator.asked:
        if one.route == "generate":
            how = one.body["sampling_params"]
            by_version = asked.setdefault(one.body["cache_salt"], Counter())
            training += one.prompt not in questions
            by_version[how["temperature"], how["max_tokens"]] += one.prompt in questions
    rows = read_jsonl(run.layout.log("eval"))
    assert [row.get("set") for row in rows] == [None, "hard", "greedy"] * (len(rows) // 3)
    for row in rows:
        assert row["step"] == row["version_min"] == row["version_max"]
        if "set" in row:
            assert (row["problems"], row["samples"]) == (3, 8)
            assert row["pass@1"] <= row["pass@8"] and "pass@2" not in row
    assert training >= run.steps * run.prompts * run.group_size
    for row in rows:  # a version without a row was overtaken by a push: its evaluation began anew
        assert asked[f"run:{row['step']}"] == {(1.0, usual): 20, (0.5, 70): 24, (0, usual): 3}


def test_the_only_generator_writes_for_training_too_as_far_as_the_bound_allows(make_run):
    """No answer of the first evaluation comes in until the trainer can go no further."""
    run = make_run(generate={"max_staleness": 2, "target_staleness": 2})
    reached = []

    async def slow(asked):
        if run.evaluates(asked) and not reached:
            while len(run.trainer.updates) < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            reached.append((len(run.trainer.updates), run.generator.weights))

    run.generator.trouble = slow
    run.play()
    assert set(reached) == {(3, 0)}
    assert max(run.lags) == 2


def test_an_evaluation_whose_generator_dies_starts_again(make_run, capsys):
    run = make_run({"seconds": lambda rng: 0.002}, steps=12)
    deaths, run.trainer.seconds = [], 0.02

    async def dies(asked):
        if (
            run.evaluates(asked)
            and len(deaths) < 2
            and 4 <= (run.generator.weights or 0) < run.steps
        ):
            deaths.append(run.generator.weights)
            run.generator.restart()

    run.generator.trouble = dies
    run.play()
    assert len(deaths) == 2 and "starts again" in capsys.readouterr().out
    rows = read_jsonl(run.layout.log("eval"))
    assert rows[-1]["step"] == run.steps
    assert all(row["step"] == row["version_min"] == row["version_max"] for row in rows)


def test_an_evaluation_asks_no_more_at_a_time_than_its_generator_has_room_for(make_run):
    """Two requests of four for each of four slots; training has as many beside it."""
    run = make_run({"seconds": lambda rng: 0.002}, generate={"slots": 4, "max_staleness": 8})
    generator, asked = run.generator, []

    async def counted(one):
        asked.append(sum(map(run.evaluates, generator.in_flight.values())))

    generator.trouble = counted
    run.play()
    assert max(asked) == 2 * 4 and generator.most_in_flight <= 2 * 2 * 4


def test_a_dead_generator_does_not_keep_a_finished_run_open(make_run):
    run = make_run({"weights": None})
    run.trainer.report(run.steps, done=True)
    run.live(run.orchestrator().run)
    assert read_jsonl(run.layout.log("eval")) == []
