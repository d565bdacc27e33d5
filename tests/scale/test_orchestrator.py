"""Whole runs with a generator and a trainer that cost nothing, undisturbed and killed."""

import asyncio
import json
import random
from collections import Counter

import pytest

from rlbook.scale import spool
from rlbook.scale.config import ScaleConfig
from rlbook.scale.engine import GenerationFailed, RequestRefused, VersionedCompletion
from rlbook.scale.layout import Layout
from rlbook.scale.orchestrator import Orchestrator
from rlbook.training import read_jsonl
from rlbook.training.collect import with_spread

STEPS, PROMPTS, GROUP = 7, 3, 2


def settings(root, **sections):
    """A small run; `rollout={"max_lag": 1}` changes fields of a section."""
    defaults = {
        "data": {"pool": 200, "retire_at": None},
        "rollout": {"prompts": PROMPTS, "group_size": GROUP, "max_lag": 2, "timeout": 30.0},
        "trainer": {"method": "grpo"},
        "eval": {"every": 4, "prompts": 5, "samples": 4},
    }
    merged = {name: {**values, **sections.pop(name, {})} for name, values in defaults.items()}
    return ScaleConfig(run=str(root), steps=STEPS, **merged, **sections)


class Run:
    """A run folder with its fakes, an orchestrator that can be killed, and its history."""

    def __init__(self, config, engine, trainer, verifiers):
        self.config, self.layout = config, Layout(config.folder)
        self.engine, self.verifiers = engine, verifiers
        self.trainer = trainer(self.layout, engine, config.steps)

    def orchestrator(self):
        parts = (self.config, self.engine, self.engine.tokenizer, self.verifiers)
        return Orchestrator(self.layout, *parts)

    def play(self, seconds=40):
        async def both():
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                tasks.create_task(self.trainer.run())
                tasks.create_task(self.orchestrator().run())

        asyncio.run(both())
        return self

    @property
    def rows(self):
        return read_jsonl(self.layout.log("rollouts"))

    @property
    def groups(self):
        """Batch by batch, the rollouts of each ticket that were trained."""
        batches = dict(self.trainer.updates)
        assert sorted(batches) == list(range(len(batches)))
        return [by_ticket(batches[step]) for step in sorted(batches)]

    @property
    def tickets(self):
        return [ticket for batch in self.groups for ticket in batch]

    @property
    def state(self):
        """The orchestrator's last durable state."""
        return spool.newest_state(self.layout)[1]


def by_ticket(rollouts):
    groups = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


@pytest.fixture
def make_run(tmp_path, fake_engine, fake_trainer, fake_verifiers):
    def make(engine=None, verifiers=None, **sections):
        config = settings(tmp_path, **sections)
        engine = fake_engine(**engine or {})
        return Run(config, engine, fake_trainer, verifiers or fake_verifiers())

    return make


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("rlbook.scale.orchestrator.POLL_SECONDS", 0.004)
    monkeypatch.setattr("rlbook.scale.layout.sync_to_disk", lambda path: None)


def lags(run):
    return [
        step - version
        for step, batch in enumerate(run.groups)
        for group in batch.values()
        for rollout in group
        for version in rollout.versions
    ]


def slow(rng):
    return rng.choice([0.0, 0.001, 0.02])


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_run_trains_full_batches_within_the_lag_bound(make_run, max_lag, late):
    run = make_run({"seconds": slow}, rollout={"max_lag": max_lag, "late": late}).play()
    assert [len(batch) for batch in run.groups] == [PROMPTS] * STEPS
    assert all(len(group) == GROUP for batch in run.groups for group in batch.values())
    assert len(set(run.tickets)) == len(run.tickets)
    assert min(lags(run)) >= 0 and max(lags(run)) <= max_lag
    if late == "wait":
        assert sorted(run.tickets) == list(range(STEPS * PROMPTS))


def test_rollouts_carry_what_was_sampled_and_what_it_earned(make_run):
    run = make_run({"right": lambda text: float("+" in text)}).play()
    for batch in run.groups:
        for group in batch.values():
            assert len({r.problem.id for r in group}) == 1
            for rollout in group:
                tokenizer = run.engine.tokenizer
                assert rollout.prompt_ids == tokenizer(rollout.problem.prompt).input_ids
                assert rollout.correct == ("+" in rollout.problem.prompt)
                assert rollout.rewards == {"answer": float(rollout.correct)}
                assert rollout.token_ids[-1] == tokenizer.eos_token_id
                assert rollout.text == tokenizer.decode(rollout.token_ids[:-1])


def test_every_batch_has_a_row(make_run):
    run = make_run({"seconds": lambda rng: 0.002}).play()
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    for row, batch in zip(run.rows, run.groups, strict=True):
        rollouts = [r for group in batch.values() for r in group]
        assert row["completions"] == PROMPTS * GROUP
        assert row["accuracy"] == sum(r.correct for r in rollouts) / len(rollouts)
        assert row["group_seconds"] >= 0.002
        assert 0 <= row["generator_idle"] <= 1 and row["groups_in_flight"] >= 0
        assert row["failed_requests"] == row["verify_timeouts"] == 0


# Killed


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_lose_and_repeat_nothing(make_run, seed):
    rng = random.Random(seed)
    run = make_run({"seconds": slow, "seed": seed}, data={"pool": 20})
    published = {}

    async def chaos():
        starts = {"trainer": run.trainer.run, "orchestrator": lambda: run.orchestrator().run()}
        tasks = {name: asyncio.create_task(start()) for name, start in starts.items()}
        async with asyncio.timeout(40):
            for _ in range(12):
                await asyncio.sleep(rng.choice([0.01, 0.03, 0.08]))
                note_batches(run.layout, published)
                victim = rng.choice(list(tasks))
                if tasks[victim].done():
                    tasks[victim].result()
                    continue
                tasks[victim].cancel()
                await asyncio.wait([tasks[victim]])
                tasks[victim] = asyncio.create_task(starts[victim]())
            await asyncio.gather(*tasks.values())

    asyncio.run(chaos())
    note_batches(run.layout, published)
    assert len(set(run.tickets)) == len(run.tickets) == STEPS * PROMPTS
    assert max(lags(run)) <= run.config.rollout.max_lag
    for step, rollouts in run.trainer.updates:  # a replayed batch is the batch it was
        assert rollouts == dict(run.trainer.updates)[step]
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    assert memory_of(run) == pass_rates(run)


def note_batches(layout, published):
    """A published batch never changes."""
    for step in spool.published(layout):
        content = (layout.batch(step) / "tokens.safetensors").read_bytes()
        assert published.setdefault(step, content) == content


def memory_of(run):
    return {key: tuple(counts) for key, counts in run.state["pool"]["memory"].items()}


def pass_rates(run):
    """Right and tried rollouts of each problem, from what was trained."""
    right, tried = Counter(), Counter()
    for batch in run.groups:
        for rollout in (r for group in batch.values() for r in group):
            right[rollout.problem.id] += rollout.correct
            tried[rollout.problem.id] += 1
    return {key: (right[key], tried[key]) for key in tried}


def test_an_empty_spool_is_continued_from_the_checkpoint(make_run):
    run = make_run().play()
    first, state = run.tickets, run.state
    run.trainer.save(STEPS, state)
    assert spool.newest_batch(run.layout) is None
    run.config = run.config.model_copy(update={"steps": STEPS + 2})
    run.trainer.steps = STEPS + 2
    run.trainer.report(STEPS, done=False)
    run.play()
    assert run.tickets[: len(first)] == first
    assert sorted(run.tickets) == list(range((STEPS + 2) * PROMPTS))


def test_open_tickets_keep_their_problem(make_run):
    run = make_run({"seconds": lambda rng: 0.005})
    problems = {}

    async def two_lives():
        trainer = asyncio.create_task(run.trainer.run())
        first = run.orchestrator()
        task = asyncio.create_task(first.run())
        while spool.newest_batch(run.layout) is None:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        problems.update(run.state["open"])
        await run.orchestrator().run()
        await trainer

    asyncio.run(two_lives())
    trained = {t: group[0].problem.id for batch in run.groups for t, group in batch.items()}
    assert problems
    assert {int(t): id_ for t, id_ in problems.items()}.items() <= trained.items()


# Filters and the end of the pool


def test_dropped_groups_are_counted_but_not_trained(make_run):
    run = make_run(trainer={"method": "scalerl"}).play()
    for row, batch in zip(run.rows, run.groups, strict=True):
        everyone = [r for group in batch.values() for r in group]
        assert with_spread(everyone) == everyone
        assert row["trained_groups"] == len(batch) <= PROMPTS
        assert row["rejected"] == row["completions"] / GROUP - len(batch)
    assert sum(row["rejected"] for row in run.rows) > 0


def test_resampling_fills_every_batch(make_run):
    run = make_run(trainer={"method": "dapo"}).play()
    assert [len(batch) for batch in run.groups] == [PROMPTS] * STEPS
    everyone = [r for batch in run.groups for group in batch.values() for r in group]
    assert with_spread(everyone) == everyone
    assert sum(row["rejected"] for row in run.rows) > 0
    assert {"answer", "overlong"} == set(everyone[0].rewards)


@pytest.mark.parametrize("method", ["scalerl", "dapo"])
def test_a_stretch_without_spread_is_survived(make_run, method):
    run = make_run(trainer={"method": method}, rollout={"max_lag": 0})
    run.engine.right = lambda text: 1.0 if run.engine.calls < 120 else 0.5
    run.play()
    assert len(run.groups) == STEPS
    assert sum(row["rejected"] for row in run.rows) >= 100
    if method == "scalerl":
        assert run.rows[0]["empty_batches"] > 10


def test_solved_problems_retire_and_an_exhausted_pool_ends_the_run(make_run):
    run = make_run({"right": lambda text: 1.0}, data={"pool": 7, "retire_at": 0.9}).play()
    end = spool.spool_end(run.layout)
    assert end["version"] == len(run.groups) < STEPS
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


# Trouble with generators


def never(calls):
    return lambda n: asyncio.sleep(3600) if n in calls else asyncio.sleep(0)


def failing(error, calls):
    async def trouble(n):
        if n in calls:
            raise error

    return trouble


def replying(reply, calls):
    async def trouble(n):
        return reply if n in calls else None

    return trouble


TOKENS = {"token_ids": [5, 2], "logps": [-1.0, -1.0], "finish_reason": "stop", "versions": [0, 0]}
MALFORMED = {
    "too few": [VersionedCompletion(**TOKENS)],
    "nothing": [],
    "a version is missing": [VersionedCompletion(**TOKENS | {"versions": [0]})] * GROUP,
    "no tokens": [VersionedCompletion([], [], "length", [])] * GROUP,
}


@pytest.mark.parametrize(
    "trouble",
    [
        never({2, 9}),
        failing(GenerationFailed("http://x: HTTP 500"), range(3, 9)),
        *(replying(reply, {1, 5}) for reply in MALFORMED.values()),
    ],
    ids=["stuck", "failing", *MALFORMED],
)
def test_a_failed_request_is_asked_again_under_its_ticket(make_run, trouble, capsys):
    limits = {"timeout": 0.2}
    run = make_run({"trouble": trouble}, rollout=limits, eval={"every": 0}).play()
    assert sorted(run.tickets) == list(range(STEPS * PROMPTS))
    assert sum(row["failed_requests"] for row in run.rows) >= 2
    assert "asked in vain" in capsys.readouterr().out


def test_without_weights_nothing_is_asked_until_they_come(make_run):
    run = make_run({"weights": None})

    async def late_weights():
        task = asyncio.create_task(run.orchestrator().run())
        await asyncio.sleep(0.15)
        assert run.engine.calls == 0
        run.engine.weights = 0
        await asyncio.gather(task, run.trainer.run())

    asyncio.run(late_weights())
    assert len(run.groups) == STEPS


def test_a_server_that_goes_back_in_time_costs_its_groups_not_the_bound(make_run):
    run = make_run({"seconds": lambda rng: 0.003}, rollout={"max_lag": 1})
    real, old_replies = run.engine.write, iter(range(5 * GROUP))

    def replaced_by_an_older_one(prompt, limit, first):
        old = run.engine.weights >= 4 and next(old_replies, None) is not None
        return real(prompt, limit, 0 if old else first)

    run.engine.write = replaced_by_an_older_one
    run.play()
    assert max(lags(run)) <= 1
    assert sum(row["late"] for row in run.rows) > 0


def test_a_refused_prompt_is_left_out_and_refusing_all_of_them_stops_the_run(make_run, capsys):
    refused = RequestRefused("http://x: HTTP 400: prompt is too long")
    run = make_run({"trouble": failing(refused, {4})}, eval={"every": 0}).play()
    assert len(run.tickets) == STEPS * PROMPTS
    assert sum(row["refused_requests"] for row in run.rows) == 1
    assert "too long" in capsys.readouterr().out


def test_if_every_request_is_refused_the_reason_is_the_error(make_run):
    refused = RequestRefused("http://x: HTTP 401: Unauthorized")
    run = make_run({"trouble": failing(refused, range(10_000))})
    with pytest.raises(RequestRefused, match="401"):
        asyncio.run(run.orchestrator().run())


def test_with_drop_groups_that_got_too_old_are_stopped(make_run):
    """One request never returns: it is cancelled once no batch can take it, and nobody waits."""
    run = make_run(
        {"trouble": never({2})},
        rollout={"max_lag": 1, "late": "drop"},
        eval={"every": 0},
    ).play(seconds=20)
    assert len(run.tickets) == STEPS * PROMPTS
    assert sum(row["late"] for row in run.rows) == 1
    assert run.engine.in_flight == 0


# Evaluation


def test_evaluation_every_few_versions_and_at_the_end(make_run):
    run = make_run({"seconds": lambda rng: 0.001, "right": lambda text: 0.75}).play()
    rows = read_jsonl(run.layout.log("eval"))
    assert rows[0]["step"] == 0 and rows[-1]["step"] == STEPS
    assert [row["step"] // 4 for row in rows[:-1]] in ([0], [0, 1])  # 1 may be the last one
    for row in rows:
        assert row["problems"] == 5 and row["samples"] == 4
        assert row["step"] <= row["version_max"] <= STEPS
        assert row["pass@1_low"] <= row["pass@1"] <= row["pass@1_high"]
        assert row["pass@1"] <= row["pass@2"] <= row["pass@4"]
    held_out = {p.prompt for p in run.orchestrator().evaluation.problems}
    trained = {r.problem.prompt for b in run.groups for g in b.values() for r in g}
    assert not held_out & trained


def test_evaluation_gets_one_request_when_there_is_no_free_slot(make_run):
    run = make_run(
        {"seconds": lambda rng: 0.002},
        generator={"slots": 2 * GROUP},
        rollout={"max_lag": 8},
    ).play()
    assert run.engine.most_in_flight <= 3
    assert read_jsonl(run.layout.log("eval"))[0]["version_max"] < STEPS


def test_a_dead_generator_does_not_keep_a_finished_run_open(make_run, monkeypatch):
    monkeypatch.setattr("rlbook.scale.orchestrator.SILENT_SECONDS", 0.1)
    run = make_run({"weights": None})
    run.trainer.report(STEPS, done=True)
    asyncio.run(asyncio.wait_for(run.orchestrator().run(), 20))
    assert read_jsonl(run.layout.log("eval")) == []


# Interruption


class Interruptible:
    """Thinks without end, or closes its thought; then answers what it is asked for."""

    def __init__(self, tokenizer, thought):
        self.tokenizer, self.thought = tokenizer, tokenizer(thought, add_special_tokens=False)
        self.weights, self.contexts = 0, []

    async def version(self):
        return self.weights

    async def complete(self, prompt, n, *, max_new_tokens, temperature):
        self.contexts.append(self.tokenizer.decode(prompt, skip_special_tokens=True))
        if n > 1:
            reply = self.thought.input_ids[:max_new_tokens]
            assert len(reply) == max_new_tokens
            reply = VersionedCompletion(reply, [-1.0] * len(reply), "length", [0] * len(reply))
            return [reply] * n
        text = "4</answer>" if "<answer>" in self.contexts[-1] else "<answer>4</answer>"
        tokens = [*self.tokenizer(text, add_special_tokens=False).input_ids, 2]
        return [VersionedCompletion(tokens, [-2.0] * len(tokens), "stop", [1] * len(tokens))]


@pytest.mark.parametrize(
    ("thought", "forced"), [("<think>" + "1+" * 20, 2), ("<think>1</think>", 0)]
)
def test_forced_interruption(make_run, fake_verifiers, thought, forced):
    from rlbook.objectives import METHODS
    from rlbook.scale.groups import GroupSampler
    from rlbook.tasks import Problem

    cut = {"after": 3, "text": "</think><answer>", "answer_tokens": 6}
    run = make_run(rollout={"interruption": cut})
    engine = Interruptible(run.engine.tokenizer, thought)
    sampler = GroupSampler(
        engine, engine.tokenizer, fake_verifiers(), METHODS["grpo"], run.config.rollout
    )
    rollouts = asyncio.run(sampler.sample(Problem("p", "1+3=?", "4"), 7, 2))
    start = engine.tokenizer.decode(engine.thought.input_ids[:3])
    interrupted = "</think><answer>" if forced else ""
    assert engine.contexts[1:] == [f"1+3=?{start}{interrupted}"] * 2
    for rollout in rollouts:
        answer = 3 if forced else 4
        assert rollout.text == start + interrupted + ("" if forced else "<answer>") + "4</answer>"
        assert rollout.correct and rollout.group == 7
        assert rollout.logps == [-1.0] * 3 + [0.0] * forced + [-2.0] * answer
        assert rollout.versions == [0] * 3 + [1] * (forced + answer)
        expected = [False] * 3 + [True] * 2 + [False] * 3
        assert rollout.forced == (expected if forced else None)


def test_a_state_is_plain_json(make_run):
    run = make_run().play()
    assert json.loads(json.dumps(run.state)) == run.state
