"""A model that no rank ever holds whole is the model that `load_policy` loads."""

import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rlbook.policy import load_policy, load_tokenizer, loading, logprobs
from rlbook.policy.loading import empty_policy, materialise
from rlbook.scale.config import TrainConfig
from rlbook.scale.train import learner
from rlbook.scale.train.learner import load_sharded
from rlbook.scale.train.parallel import Ranks

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}


@pytest.fixture(scope="module")
def ranks():
    yield Ranks("cpu")
    dist.destroy_process_group()


@pytest.fixture
def saved(tmp_path):
    def save(model, **how):
        model.save_pretrained(tmp_path, **how)
        load_tokenizer().save_pretrained(tmp_path)
        return str(tmp_path)

    return save


def llama(tied=False, **changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied, **changes))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def same(policy, name):
    """Weights and buffers to the bit, log-probabilities to rounding."""
    expected, _ = load_policy(name)
    wanted = expected.state_dict() | dict(expected.named_buffers())
    found = policy.state_dict() | dict(policy.named_buffers())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(whole(found[key]), wanted[key]) for key in wanted)
    ids = torch.arange(24).reshape(2, 12)
    mask = torch.arange(12) > torch.tensor([[2], [5]])
    logp = logprobs(expected, ids, mask)
    torch.testing.assert_close(policy.score(logprobs, ids, mask, 1.0), logp)
    assert policy.generation_config.to_dict() == expected.generation_config.to_dict()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("files", [{}, {"max_shard_size": "8KB"}])
def test_rows_read_one_by_one_are_the_model(ranks, saved, tied, files):
    name = saved(llama(tied, **ROPE), **files)
    same(load_sharded(name, ranks, TrainConfig()), name)


def test_weights_of_lower_precision_become_float32_masters(ranks, saved):
    name = saved(llama().bfloat16())
    policy = load_sharded(name, ranks, TrainConfig())
    assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    same(policy, name)


def test_a_model_of_no_run_asks_for_no_gradient(ranks, saved):
    policy = load_sharded(saved(llama()), ranks, TrainConfig())
    assert not any(weight.requires_grad for weight in policy.parameters())


def test_files_with_other_names_are_loaded_as_a_whole(ranks, saved, monkeypatch):
    torch.manual_seed(0)
    name = saved(GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)))
    monkeypatch.setattr(learner, "stored_names", lambda folder: {"elsewhere.weight"})
    policy = load_sharded(name, ranks, TrainConfig())
    monkeypatch.undo()
    same(policy, name)


def test_no_weight_has_memory_before_its_rows_are_known(ranks, saved):
    model = empty_policy(Path(saved(llama(**ROPE))))
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    frequencies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert frequencies
    materialise(model, torch.device("cpu"))
    assert all(torch.equal(frequencies[n], b) for n, b in model.named_buffers())


def test_a_policy_of_the_hub_is_fetched_without_what_nobody_reads(ranks, saved, monkeypatch):
    name, arguments = saved(llama()), inspect.signature(loading.fetch)

    def fetch(*args, **how):
        asked = arguments.bind(*args, **how).arguments
        assert asked["repo_id"] == "owner/model" and "*.safetensors" in asked["allow_patterns"]
        return name

    monkeypatch.setattr(loading, "fetch", fetch)
    same(load_sharded("owner/model", ranks, TrainConfig()), name)
