import pytest
import torch

from rlbook.tasks import Problem
from rlbook.tiny.model import build_model, build_tokenizer
from rlbook.training import Rollout


@pytest.fixture
def policy():
    """A tiny policy with random weights and its tokenizer."""
    torch.manual_seed(0)
    return build_model().eval(), build_tokenizer()


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
