"""Floating-point operations a decoder model cannot avoid."""

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel


def forward_flops(model: PreTrainedModel, contexts: Iterable[int]) -> int:
    """Operations to compute one token after each of the given numbers of visible tokens.

    2 per weight of every linear layer and token, and 4 · heads · head_dim · context per layer for
    scores and weighted values; norms, activations and the softmax are not counted.
    """
    contexts = list(contexts)
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    config = model.config
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    per_context = 4 * config.num_hidden_layers * config.num_attention_heads * head_dim
    return 2 * weights * len(contexts) + per_context * sum(contexts)
