"""From a prompt to rollouts: forced interruption, and rewards in turn."""

import asyncio
import threading

import pytest
from fleet import Generator, engine_of, tokenizer_of_sums

from rlbook.scale.config import ScaleConfig
from rlbook.scale.rollout import groups
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.tasks import Problem

ENDLESS = "<think>" + "1+" * 20


class Thinker(Generator):
    """Writes a thought that fills its room; what has a thought gets an answer, by newer weights."""

    thought = ENDLESS

    async def trouble(self, asked):
        if asked.route == "generate" and asked.prompt != "1+3=?":
            await asyncio.sleep(1)  # until every thought is written
            self.weights = 1

    def write(self, prompt, limit):
        tokenizer = tokenizer_of_sums()
        text = tokenizer.decode(prompt, skip_special_tokens=True)
        if text == "1+3=?":
            thought = tokenizer(self.thought, add_special_tokens=False).input_ids[:limit]
            assert len(thought) == limit
            return thought, [-1.0] * limit, "length"
        answer = "4</answer>" if "<answer>" in text else "<answer>4</answer>"
        tokens = [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        return tokens, [-2.0] * len(tokens), "stop"


def sampled(generator, verifiers, cut, group, n, seed=0):
    config = ScaleConfig(interruption=cut, seed=seed)
    sampler = GroupSampler(engine_of(generator), tokenizer_of_sums(), verifiers, config)
    return sampler.sample(Problem("p", "1+3=?", "4"), group, n)


@pytest.mark.parametrize(("thought", "forced"), [(ENDLESS, 2), ("<think>1</think>", 0)])
def test_forced_interruption(own_time, fake_verifiers, thought, forced):
    cut = {"after": 3, "text": "</think><answer>", "answer_tokens": 6}
    generator = Thinker(weights=0, thought=thought)
    rollouts = own_time(lambda: sampled(generator, fake_verifiers, cut, 7, 2))
    start = "<think>1" + ("+" if forced else "</think>")
    interrupted = "</think><answer>" if forced else ""
    answered = f"1+3=?{start}{interrupted}"
    contexts = [one.prompt for one in generator.asked if one.route == "generate"]
    assert sorted(contexts) == ["1+3=?"] * 2 + [answered] * 2
    for rollout in rollouts:
        answer = 3 if forced else 4
        assert rollout.text == start + interrupted + ("" if forced else "<answer>") + "4</answer>"
        assert rollout.correct and rollout.group == 7
        assert rollout.logps == [-1.0] * 3 + [0.0] * forced + [-2.0] * answer
        assert rollout.versions == [0] * 3 + [1] * (forced + answer)
        expected = [False] * 3 + [True] * 2 + [False] * 3
        assert rollout.forced == (expected if forced else None)


def test_the_place_of_an_interruption_is_drawn_for_every_completion(own_time, fake_verifiers):
    """From the run's seed and the group's number: a run resumed asks for the same."""
    cut = {"after": [10, 40], "text": "</think><answer>", "answer_tokens": 3}

    def lengths(group, seed=0):
        generator = Thinker(weights=0)
        rollouts = own_time(lambda: sampled(generator, fake_verifiers, cut, group, 32, seed))
        thoughts = [rollout.forced.index(True) for rollout in rollouts]
        asked = [body["sampling_params"]["max_tokens"] for body in generator.bodies("generate")]
        assert sorted(asked) == sorted(thoughts + 32 * [3])
        return thoughts

    first = lengths(7)
    assert first == lengths(7) != lengths(8) and first != lengths(7, seed=1)
    assert set(first) <= set(range(10, 41)) and len(set(first)) > 10


def test_rewards_are_given_one_after_the_other_also_behind_a_group_that_is_cancelled(
    fake_verifiers, monkeypatch
):
    """A reward of one's own need not bear two threads, and a thread cannot be stopped."""
    inside, most, go_on = [], [], threading.Event()

    def slowly(rollouts, rewards):
        inside.append(1)
        most.append(len(inside))
        go_on.wait(60)
        inside.pop()

    monkeypatch.setattr(groups, "give_rewards", slowly)
    generator = Generator(weights=0, seconds=lambda rng: 0.0)
    sampler = GroupSampler(engine_of(generator), tokenizer_of_sums(), fake_verifiers, ScaleConfig())
    problem = Problem("p", "1+3=?", "4")

    async def story():
        first = asyncio.create_task(sampler.rewarded(problem, 0))
        while not inside:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(sampler.rewarded(problem, 1))
        await asyncio.sleep(0.2)
        go_on.set()
        await second

    asyncio.run(story())
    assert most == [1, 1]
