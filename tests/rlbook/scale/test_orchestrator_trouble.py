"""Generators that hang, fail, refuse, answer nonsense or go back in time."""

import asyncio
from itertools import count

import pytest
from fleet import Reply

from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.orchestrator import PAUSE, orchestrate


def failing(status, groups, reason=b"down"):
    """Groups by the order in which they are asked first; each is refused once, or asked in vain:
    two completions, each of which is tried twice."""
    tries = {}

    async def trouble(asked):
        if asked.route == "generate":
            number, before = tries.setdefault(asked.prompt, [len(tries) + 1, 0])
            tries[asked.prompt][1] += 1
            if number in groups and before < 4:
                return Reply(status, reason)

    return trouble


def test_a_failed_request_is_asked_again_under_its_ticket(make_run, capsys):
    run = make_run({"trouble": failing(500, range(3, 9))}, evaluation={"every": 0}).play()
    assert sorted(run.tickets) == list(range(run.steps * run.prompts))
    assert sum(row["failed_requests"] for row in run.rows) == 6
    assert "asked in vain" in capsys.readouterr().out


@pytest.mark.parametrize("bound", [0, 2])
def test_a_problem_whose_answers_never_get_a_verdict_is_left_out(make_run, capsys, bound):
    """Nothing else is in flight at the last batch, and with a bound of 0 at every batch."""
    run = make_run(evaluation={"every": 0}, generate={"max_staleness": bound})
    orchestrator, poisoned = run.orchestrator, []

    def with_a_broken_verifier():
        one = orchestrator()
        verify = one.sampler.verifiers.verify

        async def fails(problem, *rest):
            poisoned.append(problem.id)
            if problem.id == poisoned[0]:
                raise GenerationFailed("no verdict: division by zero")
            return await verify(problem, *rest)

        one.sampler.verifiers.verify = fails
        return one

    run.orchestrator = with_a_broken_verifier
    run.play()
    assert len(run.groups) == run.steps
    assert f"problem {poisoned[0]} is left out: no verdict" in capsys.readouterr().out


def test_while_nothing_succeeds_every_place_asks_once_in_a_pause(make_run):
    run = make_run({"fails": {"generate": 503}}, evaluation={"every": 0})

    async def a_while():
        task = asyncio.create_task(run.orchestrator().run())
        await asyncio.sleep(2.5 * PAUSE)
        task.cancel()
        await asyncio.wait([task])

    run.live(a_while)
    places = 2 * run.prompts  # one batch, and one more for the target
    tries = 2 * run.group_size  # each completion twice
    assert run.generator.routes == ["generate"] * 3 * places * tries


def test_without_weights_nothing_is_asked_until_they_come(make_run):
    run = make_run({"weights": None})

    async def late_weights():
        task = asyncio.create_task(run.orchestrator().run())
        await asyncio.sleep(0.15)
        assert run.generator.routes == []
        run.generator.weights = 0
        await asyncio.gather(task, run.trainer.run())

    run.live(late_weights)
    assert len(run.groups) == run.steps


def test_a_server_that_goes_back_in_time_costs_its_groups_not_the_bound(make_run):
    run = make_run({"seconds": lambda rng: 0.003}, generate={"max_staleness": 1})
    old = iter(range(10))

    async def replaced_by_an_older_one(asked):
        trained = asked.route == "generate" and not run.evaluates(asked)
        if trained and (run.generator.weights or 0) >= 4 and next(old, None) is not None:
            run.generator.weights = 0

    run.generator.trouble = replaced_by_an_older_one
    run.play()
    assert max(run.lags) <= 1
    assert sum(row["late"] for row in run.rows) > 0


def test_a_refused_prompt_is_left_out_and_refusing_all_of_them_stops_the_run(make_run, capsys):
    refused = failing(400, {4}, b"prompt is too long")
    run = make_run({"trouble": refused}, evaluation={"every": 0}).play()
    assert len(run.tickets) == run.steps * run.prompts
    assert sum(row["refused_requests"] for row in run.rows) == 1
    assert "too long" in capsys.readouterr().out


def test_if_every_request_is_refused_the_reason_is_the_error(make_run):
    run = make_run({"fails": {"generate": 401}})
    with pytest.raises(RequestRefused, match="401"):
        run.live(run.orchestrator().run)


def test_with_drop_groups_that_got_too_old_are_stopped(make_run):
    """One request never returns: it is cancelled once no batch can take it, and nobody waits."""
    run = make_run(generate={"max_staleness": 1, "late": "drop"}, evaluation={"every": 0})
    number, stopped_at = count(1), []

    async def one_hangs(asked):
        if asked.route == "generate" and next(number) == 2:
            try:
                await asyncio.sleep(3600)
            finally:
                stopped_at.append(len(run.trainer.updates))

    run.generator.trouble = one_hangs
    run.play()
    assert len(run.tickets) == run.steps * run.prompts
    assert sum(row["late"] for row in run.rows) == 1
    assert len(stopped_at) == 1 and stopped_at[0] <= 3


def test_a_folder_that_nobody_has_started_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    with pytest.raises(FileNotFoundError, match="run_id: runs are started by"):
        asyncio.run(orchestrate(Layout(tmp_path)))
