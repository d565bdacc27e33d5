"""The single-process trainer on an engine that has weights of its own."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import data_dir
from rlbook.policy import Sampler, load_tokenizer
from rlbook.training import RunConfig, Trainer

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")

SMALL = {"prompts": 4, "group_size": 4, "minibatches": 2, "steps": 4, "max_new_tokens": 12}


class CopyEngine:
    """Samples from a copy that only `load_weights` changes, as a server would."""

    def __init__(self):
        torch.manual_seed(99)
        self.model = LlamaForCausalLM(TINY).eval()

    def generate(self, prompts, **settings):
        return Sampler(self.model, 2).generate(prompts, **settings)

    def load_weights(self, model):
        self.model.load_state_dict(copy.deepcopy(model.state_dict()))


def even(rollouts):
    """Rewards an even sum of token ids: a random policy has something to learn from."""
    return {"even": [float(sum(r.token_ids) % 2 == 0) for r in rollouts]}


def policy():
    torch.manual_seed(0)
    return LlamaForCausalLM(TINY).eval(), load_tokenizer()


@pytest.mark.parametrize("every", [1, 2])
def test_an_outside_engine_changes_nothing(every, tmp_path):
    config = RunConfig(method="grpo", sync_every=every, **SMALL)
    expected = list(Trainer(config, policy=policy(), reward=even))

    first = Trainer(config, policy=policy(), reward=even, engine=CopyEngine())
    got = [first.train_one(), first.train_one(), first.train_one()]
    first.save(tmp_path)
    resumed = Trainer.resume(tmp_path, policy=policy(), reward=even, engine=CopyEngine())
    got += list(resumed)

    assert all(metrics["grad_norm"] > 0 for metrics in expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4, nan_ok=True)
