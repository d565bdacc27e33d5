"""The orchestrator and the trainer killed at random moments: nothing is lost, nothing repeated."""

import asyncio
import random
from collections import Counter

import pytest

from rlbook.scale import batch_log


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_lose_and_repeat_nothing(make_run, seed):
    rng = random.Random(seed)
    run = make_run(
        {"seconds": lambda rng: rng.choice([0.0, 0.001, 0.02]), "seed": seed}, data={"pool": 20}
    )
    published = {}

    async def chaos():
        starts = {"trainer": run.trainer.run, "orchestrator": lambda: run.orchestrator().run()}
        tasks = {name: asyncio.create_task(start()) for name, start in starts.items()}
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

    run.live(chaos)
    note_batches(run.layout, published)
    assert sorted(run.tickets) == list(range(run.steps * run.prompts))
    assert max(run.lags) <= run.config.generate.max_staleness
    for step, rollouts in run.trainer.updates:  # a replayed batch is the batch it was
        assert rollouts == dict(run.trainer.updates)[step]
    assert [row["step"] for row in run.rows] == list(range(1, run.steps + 1))
    assert memory_of(run) == pass_rates(run)


def note_batches(layout, published):
    """A published batch never changes."""
    for step in batch_log.published(layout):
        content = (layout.batch(step) / "tokens.safetensors").read_bytes()
        assert published.setdefault(step, content) == content


def memory_of(run):
    return {key: tuple(counts) for key, counts in run.state["pool"]["memory"].items()}


def pass_rates(run):
    """Right and tried rollouts of each problem, from what was trained."""
    right, tried = Counter(), Counter()
    for _, rollout in run.rollouts:
        right[rollout.problem.id] += rollout.correct
        tried[rollout.problem.id] += 1
    return {key: (right[key], tried[key]) for key in tried}


def test_an_empty_log_is_continued_from_the_checkpoint(make_run):
    run = make_run().play()
    first, state = run.tickets, run.state
    run.trainer.save(run.steps, state)
    assert batch_log.published(run.layout) == []
    run.config = run.config.model_copy(update={"steps": run.steps + 2})
    run.trainer.steps = run.steps + 2
    run.trainer.report(run.steps, done=False)
    run.play()
    assert run.tickets[: len(first)] == first
    assert sorted(run.tickets) == list(range((run.steps + 2) * run.prompts))


def test_open_tickets_keep_their_problem(make_run):
    # Of replies that all took as long, none might be open when a batch is complete.
    run = make_run({"seconds": lambda rng: rng.uniform(0.005, 0.1)})
    problems = {}

    async def two_lives():
        trainer = asyncio.create_task(run.trainer.run())
        first = run.orchestrator()
        task = asyncio.create_task(first.run())
        while not batch_log.published(run.layout):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        problems.update(run.state["open"])
        await run.orchestrator().run()
        await trainer

    run.live(two_lives)
    trained = {t: group[0].problem.id for batch in run.groups for t, group in batch.items()}
    assert problems
    assert {int(t): id_ for t, id_ in problems.items()}.items() <= trained.items()
