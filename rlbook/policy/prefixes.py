"""Forward and backward passes in which every distinct prefix of a batch is computed once.

A token's hidden state depends on the tokens up to it and on nothing else. The answers of a group
share their prompt, and often much of what they say: equal beginnings are one path of a tree, which
grows thinner as a policy grows sure. Answers in a large vocabulary part early, so that there little
beyond the prompt is shared.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaModel,
    apply_rotary_pos_emb,
)

STATIC_ROPE = {"default", "linear", "llama3"}  # angles that no other row's length can change
PLAIN = {LlamaModel, LlamaDecoderLayer, LlamaAttention}
BLOCK = 8  # rows of like length that attend at once: none is padded to the longest of all
hooks_of = attrgetter(
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
)


@dataclass(frozen=True)
class PrefixTree:
    """The M distinct non-empty prefixes of N sequences; each is a node, named by its last token.

    `node[n, t]` is the prefix that ends at token t of row n. `paths` (P,) are the rows that bring
    anything new, as nodes: one block of rows of like length after the other, each flattened from
    its shape (rows, width) in `blocks`. `first` (M,) is where each node stands in `paths`.
    """

    ids: Int[Tensor, " M"]
    position: Int[Tensor, " M"]
    node: Int[Tensor, "N T"]
    paths: Int[Tensor, " P"]
    blocks: tuple[tuple[int, int], ...]
    first: Int[Tensor, " M"]

    @classmethod
    def of(cls, ids: Int[Tensor, "N T"], lengths: Int[Tensor, " N"]) -> Self:
        """The tree of the rows' first `lengths` tokens, each at least 1.

        In the order of a dictionary every row shares all that it can with the row before it, and
        the prefix of a row comes after it.
        """
        columns, end = torch.arange(ids.shape[1], device=ids.device), ids.max() + 1
        tokens = torch.where(columns < lengths[:, None], ids, end)
        rows, row_of = tokens.unique(dim=0, return_inverse=True)
        new = rows < end
        new[1:] &= ~(rows[1:] == rows[:-1]).cumprod(1).bool()
        number = new.flatten().cumsum(0).sub(1).view_as(new)
        place = torch.arange(len(rows), device=ids.device)[:, None]
        node = number.gather(0, torch.where(new, place, 0).cummax(0).values)
        length, bringing = (rows < end).sum(1), new.any(1).nonzero().squeeze(1)
        blocks = bringing[length[bringing].argsort(stable=True)].split(BLOCK)
        cuts = [(block, slice(int(length[block[-1]]))) for block in blocks]
        paths, newly = (torch.cat([t[cut].flatten() for cut in cuts]) for t in (node, new))
        first = newly.nonzero().squeeze(1)[paths[newly].argsort()]  # every node is new once
        shapes = tuple((len(block), columns.stop) for block, columns in cuts)
        return cls(rows[new], new.nonzero()[:, 1], node[row_of], paths, shapes, first)


def take(rows: Float[Tensor, "M ..."], index: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """rows[index], with a gradient that is added up in the same order at every repetition.

    Several threads add that of `rows[index]` in whatever order they come: two equal runs part.
    """
    picked = F.embedding(index, rows[:, None].flatten(1))
    return picked.view(*index.shape, *rows.shape[1:])


def last_states(
    body: nn.Module, ids: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> tuple[Float[Tensor, "M D"], Int[Tensor, "N T"]]:
    """Last hidden states of a model's body, and which of them belongs to each token; with gradient.

    hidden[node[n, t]] is the state after ids[n, :t+1], for every t before row n's last masked
    token. Equal prefixes have one state where `why_whole` finds no reason against it, and the
    library's own forward pass computes all N·T tokens where it does. `mask[:, 0]` must be False.
    """
    if why_whole(body) is not None:
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        return hidden.flatten(0, 1), torch.arange(ids.numel(), device=ids.device).view_as(ids)
    lengths = (mask * torch.arange(ids.shape[1], device=ids.device)).amax(1).clamp(min=1)
    width = int(lengths.max())
    tree = PrefixTree.of(ids[:, :width], lengths)
    return _llama_states(cast(LlamaModel, body), tree), F.pad(tree.node, (0, ids.shape[1] - width))


def why_whole(body: nn.Module) -> str | None:
    """Why `last_states` computes whole rows with this body, None if it shares their prefixes.

    It shares them in a Llama on the CPU whose modules are called as the library calls them.
    Projections, norms and MLPs are called as modules of their own, token by token, so that adapters
    which replace them (LoRA) stay in force. Dropout would be drawn once for all who share a prefix,
    a hook would see another layout, and a layer that saves memory by computing itself again is not
    called at all: such models keep the library's forward pass.
    """
    if not isinstance(body, LlamaModel):
        return f"{type(body).__name__} is not a Llama"
    config, modules = body.config, list(body.modules())
    rope = config.rope_parameters or {}
    blocks = cast(list[LlamaDecoderLayer], body.layers)
    around = [body, *blocks, *(block.self_attn for block in blocks)]
    reasons = {
        "a layer of it is not the library's own": {type(m) for m in around} != PLAIN,
        "it computes layers again to save memory": any(
            getattr(m, "gradient_checkpointing", False) for m in modules
        ),
        "a module of it has a hook or another forward": any(
            "forward" in vars(m) or any(hooks_of(m)) for m in modules
        ),
        "it has dropout": body.training
        and any([config.attention_dropout, *(m.p for m in modules if isinstance(m, nn.Dropout))]),
        "its attention is not sdpa": config._attn_implementation != "sdpa",
        "its angles depend on the longest row": rope.get("rope_type") not in STATIC_ROPE,
        "it is not on the CPU": body.device.type != "cpu",
        "it is float16": body.dtype == torch.float16,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _llama_states(body: LlamaModel, tree: PrefixTree) -> Float[Tensor, "M D"]:
    """Last hidden state of every node; only attention sees rows, in float32 at least.

    In bfloat16 its backward pass would cost six times as much on a CPU, and the gradient of a
    prefix would be a sum over rows that is rounded at every one of them.
    """
    x = body.embed_tokens(tree.ids)
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (angles[0] for angles in body.rotary_emb(x, tree.position[None]))
    for block in cast(list[LlamaDecoderLayer], body.layers):
        a, h = block.self_attn, block.input_layernorm(x)
        q, k, v = (p(h).unflatten(-1, (-1, a.head_dim)) for p in (a.q_proj, a.k_proj, a.v_proj))
        heads = [q.shape[1], k.shape[1], v.shape[1]]
        qkv = torch.cat([*apply_rotary_pos_emb(q, k, cos, sin), v], 1)
        along = take(qkv.to(wide), tree.paths).split([rows * width for rows, width in tree.blocks])
        mixed = []
        for rows, shape in zip(along, tree.blocks, strict=True):
            q, k, v = rows.unflatten(0, shape).transpose(1, 2).split(heads, 1)
            each = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=a.scaling, enable_gqa=heads[0] > heads[1]
            )
            mixed.append(each.transpose(1, 2).flatten(0, 1))
        x = x + a.o_proj(torch.cat(mixed).flatten(1)[tree.first].to(x.dtype))
        x = x + block.mlp(block.post_attention_layernorm(x))
    return cast(Tensor, body.norm(x))
