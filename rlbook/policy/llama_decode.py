"""One decoding step of a Llama-architecture model, written out.

Same weights and same arithmetic as the Hugging Face forward pass, without the general machinery
around it, which costs more than the arithmetic when a model is small.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlbook.policy.decoding import BufferedLayer, Decoder


class LlamaDecoder(Decoder):
    """A `Decoder` that reads prompts through the model's forward pass and takes its own steps."""

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether `step` is the whole arithmetic of this model."""
        config = model.config
        return (
            config.model_type == "llama"
            and config.hidden_act == "silu"
            and config.rope_parameters["rope_type"] == "default"
            and not (config.attention_bias or config.mlp_bias)
            and model.dtype in (torch.float32, torch.float64)
        )

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.qkv = []  # one list for all `fresh` copies
        self.follow_weights()

    @torch.no_grad()
    def follow_weights(self) -> None:
        attention = [layer.self_attn for layer in self.model.model.layers]
        self.qkv[:] = [
            torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]) for a in attention
        ]

    def step(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        body = self.model.model
        position = (self.length - self.start)[:, None]
        cos, sin = rotation(position * body.rotary_emb.inv_freq)
        hidden_columns = self._hidden_columns()
        x = body.embed_tokens(token)
        for layer, qkv, cache in zip(body.layers, self.qkv, self.cache.layers, strict=True):
            new = F.linear(norm(layer.input_layernorm, x), qkv)
            mixed = attend(layer.self_attn, new, cos, sin, hidden_columns, cache)
            x = x + F.linear(mixed, layer.self_attn.o_proj.weight)
            x = x + feed_forward(layer.mlp, norm(layer.post_attention_layernorm, x))
        return F.linear(norm(body.norm, x), self.model.lm_head.weight)

    def _hidden_columns(self) -> Float[Tensor, "B 1 1 C"]:
        """0 where the cache holds a token, -inf at padding and at columns not yet written."""
        end = self.length + 1
        column = torch.arange(self.cache.layers[0].width(end), device=self.start.device)
        visible = (column >= self.start[:, None]) & (column < end)
        return torch.where(visible, 0.0, -torch.inf)[:, None, None]


def attend(
    weights: nn.Module,
    qkv: Float[Tensor, "B heads_dim"],
    cos: Float[Tensor, "B 1 head_dim"],
    sin: Float[Tensor, "B 1 head_dim"],
    hidden_columns: Float[Tensor, "B 1 1 C"],
    cache: BufferedLayer,
) -> Float[Tensor, "B D"]:
    """Attention of one new token per row to itself and the cached ones.

    Query heads that share a key-value head form the third axis, (B, kv_heads, shared, head_dim).
    """
    rows, dim, shared = len(qkv), weights.head_dim, weights.num_key_value_groups
    kv_heads = qkv.shape[1] // dim // (shared + 2)
    qk, value = qkv.view(rows, -1, dim).split([(shared + 1) * kv_heads, kv_heads], dim=1)
    query, key = rotate(qk, cos, sin).split([shared * kv_heads, kv_heads], dim=1)
    cache.update(key[:, :, None], value[:, :, None])
    query = query.mul_(weights.scaling).reshape(rows, kv_heads, shared, dim)
    scores = (query @ cache.keys.transpose(2, 3)).add_(hidden_columns)
    return (scores.softmax(-1) @ cache.values).view(rows, -1)


def rotation(
    angle: Float[Tensor, "B half"],
) -> tuple[Float[Tensor, "B 1 head_dim"], Float[Tensor, "B 1 head_dim"]]:
    """Factors with which `rotate` turns the pair of dimensions (i, i + half) by angle i."""
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def rotate(
    x: Float[Tensor, "B heads head_dim"],
    cos: Float[Tensor, "B 1 head_dim"],
    sin: Float[Tensor, "B 1 head_dim"],
) -> Float[Tensor, "B heads head_dim"]:
    """Rotary position embedding: (a, b) -> (a cos - b sin, b cos + a sin), pair by pair."""
    other = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, other, sin)


def feed_forward(weights: nn.Module, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    gate = F.silu(F.linear(x, weights.gate_proj.weight))
    return F.linear(gate.mul_(F.linear(x, weights.up_proj.weight)), weights.down_proj.weight)


def norm(weights: nn.Module, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    return F.rms_norm(x, x.shape[-1:], weights.weight, weights.variance_epsilon)
