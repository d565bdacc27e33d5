"""Floating-point operations a decoder model cannot avoid."""

from collections.abc import Iterable, Sequence

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


def step_flops(
    model: PreTrainedModel, sequences: Sequence[tuple[list[int], list[int]]], group_size: int
) -> int:
    """Operations of sampling completions and of one update on all their tokens.

    Sampling reads the prompt of a group once and computes every token but the last. The update is a
    forward pass and a backward pass of twice its operations over prompts and completions, of which
    only completion tokens pass the head. `sequences` are the token ids of prompts and completions.
    """
    lengths = [(len(prompt), len(new)) for prompt, new in sequences]
    contexts = [
        context
        for row, (prompt, new) in enumerate(lengths)
        for context in range(1 if row % group_size == 0 else prompt + 1, prompt + new)
    ]
    update = [t for prompt, new in lengths for t in range(1, prompt + new + 1)]
    head = 2 * model.get_output_embeddings().weight.numel()
    unread = head * sum(prompt for prompt, _ in lengths)
    unread_once = head * sum(prompt - 1 for prompt, _ in lengths[::group_size])
    sampling = forward_flops(model, contexts) - unread_once
    return sampling + 3 * (forward_flops(model, update) - unread)


def distinct_step_flops(
    model: PreTrainedModel, sequences: Sequence[tuple[list[int], list[int]]]
) -> int:
    """`step_flops` where every distinct prefix is computed once, and no last token is read."""
    rows = [(len(prompt), tuple(prompt + new)) for prompt, new in sequences]
    read = {row[:end] for _, row in rows for end in range(1, len(row))}
    predicting = {row[:end] for start, row in rows for end in range(start, len(row))}
    predicted = {row[: end + 1] for start, row in rows for end in range(start, len(row))}
    head = 2 * model.get_output_embeddings().weight.numel()
    body = forward_flops(model, map(len, read)) - head * len(read)
    return 4 * body + head * (len(predicting) + 3 * len(predicted))
