"""Annotated shapes are checked while the tests run; every test has one thread: small tensors gain
nothing from two, and busy machines lose. And a policy and a task so small that a whole step of
training takes a moment."""

from typing import Any, Self

import hypothesis
import pytest
import torch
from beartype import BeartypeConf, BeartypeHintOverrides, beartype
from jaxtyping import config, install_import_hook
from transformers import LlamaConfig, LlamaForCausalLM

# An int will do where a float is asked for; Self means nothing to a method checked on its own.
checked = beartype(
    conf=BeartypeConf(is_pep484_tower=True, hint_overrides=BeartypeHintOverrides({Self: Any}))
)
CHECKED = ["rlbook.objectives", "rlbook.policy", "rlbook.training", "rlbook.evaluation"]
install_import_hook(CHECKED, f"sys.modules[{__name__!r}].checked")  # before they are imported

from rlbook.policy import load_tokenizer, set_threads  # noqa: E402
from rlbook.tasks import Problem, Verdict  # noqa: E402

set_threads()  # `OMP_NUM_THREADS` if it is set
hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is slow
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def unchecked(request, monkeypatch):
    """No check in a test that hands in an error to be named, or a stand-in."""
    if request.node.get_closest_marker("wrong_on_purpose"):
        monkeypatch.setattr(config, "jaxtyping_disable", True)


# Settings with which a step of `little_policy` takes a tenth of a second.
LITTLE = {"prompts": 4, "group_size": 4, "minibatches": 2, "max_new_tokens": 12, "lr": 1e-2}


class Parity:
    """Completions of an even number of characters are right: a policy without training is right
    about half of the time, whatever it says."""

    name, levels = "parity", (1, 2, 3)

    def sample(self, seed, n, levels=None):
        levels = levels or self.levels
        chosen = [levels[i % len(levels)] for i in range(n)]
        return [
            Problem(f"{seed}/{i}", f"{(7 * seed + 3 * i) % 40}+{level + i % 6}=?", "even", level)
            for i, level in enumerate(chosen)
        ]

    def verify(self, problem, completion, finished=True):
        right = len(completion) % 2 == 0
        return Verdict(right, completion[:1].isdigit(), completion, "ok" if right else "wrong")

    def label(self, problem, completion, finished):
        return "short" if len(completion) < 20 else "long"


def build_little(seed=0, tied=False):
    """An untrained Llama of one layer, whose distributions are far from uniform, with a tokenizer.

    One completion in six ends by itself within a dozen tokens.
    """
    tokenizer = load_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval(), tokenizer


@pytest.fixture(scope="session")
def little_policy():
    """`little_policy(seed=0, tied=False)`: the same untrained model whenever it is called."""
    return build_little


@pytest.fixture(scope="session")
def parity():
    return Parity()


@pytest.fixture
def little():
    """Settings of a run that takes a moment."""
    return dict(LITTLE)
