import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(tied=True, seed=0, spread=0.3, **changes):
    """A random Llama whose distributions are far from uniform, so that errors show."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 23,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": spread,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


@pytest.fixture
def make_llama():
    return build


@pytest.fixture
def llama():
    return build()
