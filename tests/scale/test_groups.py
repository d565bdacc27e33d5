"""From a prompt to rollouts: forced interruption."""

import asyncio

import pytest

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.engine import VersionedCompletion
from rlbook.scale.rollout.groups import GroupSampler
from rlbook.tasks import Problem
from rlbook.tiny.model import build_tokenizer


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
def test_forced_interruption(fake_verifiers, thought, forced):
    cut = {"after": 3, "text": "</think><answer>", "answer_tokens": 6}
    config = ScaleConfig(interruption=cut)
    engine = Interruptible(build_tokenizer(), thought)
    sampler = GroupSampler(engine, engine.tokenizer, fake_verifiers, config)
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
