"""From a prompt to rollouts: forced interruption."""

import asyncio

import pytest

from rlbook.policy import Completion, load_tokenizer
from rlbook.scale.config import ScaleConfig
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.tasks import Problem


class Interruptible:
    """Thinks without end, or closes its thought; then answers what it is asked for."""

    def __init__(self, tokenizer, thought):
        self.tokenizer, self.thought = tokenizer, tokenizer(thought, add_special_tokens=False)
        self.contexts = []

    async def complete(self, prompt, n, *, max_new_tokens, temperature, stop=(), stay=None):
        self.contexts.append(self.tokenizer.decode(prompt, skip_special_tokens=True))
        assert n == 1
        if self.contexts[-1] == "1+3=?":
            reply = self.thought.input_ids[:max_new_tokens]
            assert len(reply) == max_new_tokens
            return [Completion(reply, [-1.0] * len(reply), "length", versions=[0] * len(reply))]
        text = "4</answer>" if "<answer>" in self.contexts[-1] else "<answer>4</answer>"
        tokens = [*self.tokenizer(text, add_special_tokens=False).input_ids, 2]
        return [Completion(tokens, [-2.0] * len(tokens), "stop", versions=[1] * len(tokens))]


@pytest.mark.parametrize(
    ("thought", "forced"), [("<think>" + "1+" * 20, 2), ("<think>1</think>", 0)]
)
def test_forced_interruption(fake_verifiers, thought, forced):
    cut = {"after": 3, "text": "</think><answer>", "answer_tokens": 6}
    config = ScaleConfig(interruption=cut)
    engine = Interruptible(load_tokenizer(), thought)
    sampler = GroupSampler(engine, engine.tokenizer, fake_verifiers, config)
    rollouts = asyncio.run(sampler.sample(Problem("p", "1+3=?", "4"), 7, 2))
    start = engine.tokenizer.decode(engine.thought.input_ids[:3])
    interrupted = "</think><answer>" if forced else ""
    answered = f"1+3=?{start}{interrupted}"
    assert sorted(engine.contexts) == ["1+3=?"] * 2 + [answered] * 2
    for rollout in rollouts:
        answer = 3 if forced else 4
        assert rollout.text == start + interrupted + ("" if forced else "<answer>") + "4</answer>"
        assert rollout.correct and rollout.group == 7
        assert rollout.logps == [-1.0] * 3 + [0.0] * forced + [-2.0] * answer
        assert rollout.versions == [0] * 3 + [1] * (forced + answer)
        expected = [False] * 3 + [True] * 2 + [False] * 3
        assert rollout.forced == (expected if forced else None)


class Endless:
    """Never closes a thought; notes how many tokens it was asked for."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    async def complete(self, prompt, n, *, max_new_tokens, temperature, stop=(), stay=None):
        self.asked.append(max_new_tokens)
        tokens = [17] * max_new_tokens
        return [Completion(tokens, [-1.0] * len(tokens), "length", versions=[0] * len(tokens))] * n


def test_the_place_of_an_interruption_is_drawn_for_every_completion(fake_verifiers):
    """From the run's seed and the group's number: a run resumed asks for the same."""
    cut = {"after": [10, 40], "text": "</think><answer>", "answer_tokens": 2}

    def lengths(group, seed=0):
        engine = Endless(load_tokenizer())
        config = ScaleConfig(interruption=cut, seed=seed)
        sampler = GroupSampler(engine, engine.tokenizer, fake_verifiers, config)
        rollouts = asyncio.run(sampler.sample(Problem("p", "1+3=?", "4"), group, 32))
        thoughts = [rollout.forced.index(True) for rollout in rollouts]
        assert sorted(engine.asked) == sorted(thoughts + 32 * [2])
        return thoughts

    first = lengths(7)
    assert first == lengths(7) != lengths(8) and first != lengths(7, seed=1)
    assert set(first) <= set(range(10, 41)) and len(set(first)) > 10
