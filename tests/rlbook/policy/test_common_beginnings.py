"""A beginning that different prompts share is read once, and nothing else changes."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlbook.policy import sample
from rlbook.policy.continuous import ContinuousSampler
from rlbook.policy.decoding import BLOCK, Decoder, common_length

SHOTS = [2 + i * i % 19 for i in range(BLOCK + 9)]
PROMPTS = [[0, *SHOTS, *rest] for rest in ([3], [4, 9, 11, 5], [3], [4, 9], [7, 7, 8])]


@pytest.fixture(params=["llama", "qwen3"])
def model(request, make_llama):
    if request.param == "llama":
        return make_llama(max_position_embeddings=128)
    torch.manual_seed(0)
    shape = dict(vocab_size=23, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    shape |= dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, head_dim=8)
    return Qwen3ForCausalLM(Qwen3Config(**shape, max_position_embeddings=128)).eval()


@pytest.fixture
def read(monkeypatch):
    """The shapes of what passes through the model when prompts are read."""
    shapes, through = [], Decoder._through

    def noted(self, module, ids, **more):
        shapes.append(tuple(ids.shape))
        return through(self, module, ids, **more)

    monkeypatch.setattr(Decoder, "_through", noted)
    return shapes


def test_the_answers_are_those_of_each_prompt_alone(model, read):
    together = sample(model, PROMPTS, 9, 1, temperature=0)
    assert read[:2] == [(1, 1 + len(SHOTS)), (4, 4)]  # of five prompts four differ
    for prompt, one in zip(PROMPTS, together, strict=True):
        (alone,) = sample(model, [prompt], 9, 1, temperature=0)
        assert alone.token_ids == one.token_ids
        assert one.logps == pytest.approx(alone.logps, abs=1e-4)


def test_short_beginnings_are_not_worth_a_pass(model, read):
    sample(model, [[0, 3, 4], [0, 3, 5]], 1, 1)
    assert read == [(2, 3)]


def test_a_prompt_may_be_the_beginning_of_the_others(model):
    prompts = [[0, *SHOTS], [0, *SHOTS, 5]]
    one, _ = sample(model, prompts, 6, 1, temperature=0)
    assert one.token_ids == sample(model, prompts[:1], 6, 1, temperature=0)[0].token_ids


def test_rows_that_share_it_may_join_others(make_llama):
    model = make_llama(max_position_embeddings=128)
    sampler, found = ContinuousSampler(model, 1, slots=3), {}
    for prompt in [[0, 6, 2], *PROMPTS]:
        sampler.add(prompt, 7, 0)
    while sampler.busy:
        found |= sampler.step()
    for number, prompt in enumerate([[0, 6, 2], *PROMPTS]):
        (alone,) = sample(model, [prompt], 7, 1, temperature=0)
        assert found[number].token_ids == alone.token_ids


def test_common_length():
    assert common_length([[1, 2, 3], [1, 2], [1, 2, 9]]) == 2
    assert common_length([[1, 2], [3]]) == 0
    assert common_length([[5, 1], [5, 10], [5, 9]]) == 1
