import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import data_dir
from rlbook.policy import load_tokenizer
from rlbook.tasks import Problem
from rlbook.training import Rollout

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")


@pytest.fixture
def policy():
    """A tiny policy with random weights and its tokenizer."""
    torch.manual_seed(0)
    return LlamaForCausalLM(TINY).eval(), load_tokenizer()


@pytest.fixture
def make_rollout():
    def make(group=0, prompt=(1, 9, 10), tokens=(11, 12, 2), reward=1.0, **changes):
        tokens = list(tokens)
        fields = {
            "problem": Problem(f"p{group}", "1+1=?", "2", level=2),
            "group": group,
            "prompt_ids": list(prompt),
            "token_ids": tokens,
            "logps": [-0.5] * len(tokens),
            "versions": [0] * len(tokens),
            "finish_reason": "stop",
            "text": "",
            "rewards": {"answer": reward},
        }
        return Rollout(**fields | changes)

    return make
