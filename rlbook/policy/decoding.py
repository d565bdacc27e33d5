"""Token-by-token evaluation of a decoder model over a cache with one row per sequence."""

from collections.abc import Sequence
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from rlbook.policy.adapters import merged

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import (
        LlamaAttention,
        LlamaDecoderLayer,
        LlamaRMSNorm,
    )

BLOCK = 32


def decoder_for(model: PreTrainedModel) -> "Decoder":
    """The decoder for `model`: steps written out where that is possible, else its own forward."""
    return (LlamaDecoder if LlamaDecoder.supports(model) else Decoder)(model)


class Decoder:
    """Next-token logits of many sequences through the model's own forward pass.

    All sequences end in the same cache column; row i begins in column `start[i]`.
    """

    start: Int[Tensor, " B"]

    def __init__(self, model: PreTrainedModel) -> None:
        layer_types = set(getattr(model.config, "layer_types", None) or ())
        if unknown := layer_types - {"full_attention", "sliding_attention"}:
            raise ValueError(f"the sampler has no cache for layers of type {sorted(unknown)}")
        self.model, self.cache_argument = model, cache_argument(model)
        self.layers, self.cache = empty_cache(model.config.num_hidden_layers)

    def fresh(self) -> "Decoder":
        """A decoder of the same model without sequences."""
        other = copy(self)
        other.layers, other.cache = empty_cache(len(self.layers))
        return other

    def follow_weights(self) -> None:
        """Use the model's weights as they are now, here and in all `fresh` copies."""

    @property
    def length(self) -> int:
        """Cache columns in use."""
        return self.layers[0].length

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "P V"]:
        """Read the prompts, equal ones once; logits of each one's next token."""
        logits, copy_of = self.prefill_once(prompts)
        self.take(copy_of)
        return logits[copy_of]

    def prefill_once(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[Float[Tensor, "R V"], Int[Tensor, " P"]]:
        """Read the different prompts; each one's next logits, and the row that is each prompt's.

        A beginning that all of them have, such as worked examples, is read once if it is long.
        """
        different, row_of = deduplicate(prompts)
        row_of = row_of.to(self.model.device)
        common = min(common_length(different), min(map(len, different)) - 1)
        if len(different) > 1 and common >= BLOCK:
            return self._read_behind(common, different), row_of
        ids, self.start = left_pad(different, self.model.device)
        return self._forward(ids)[:, -1], row_of

    def _read_behind(self, common: int, prompts: list[list[int]]) -> Float[Tensor, "R V"]:
        """Read the first `common` tokens in one row, and behind them what the prompts differ in."""
        device, rows = self.model.device, len(prompts)
        self.start = torch.zeros(1, dtype=torch.long, device=device)
        self._forward(torch.tensor([prompts[0][:common]], device=device))
        self.take(torch.zeros(rows, dtype=torch.long, device=device))
        lengths = torch.tensor([len(prompt) - common for prompt in prompts], device=device)
        width = int(lengths.max())
        rest = [prompt[common:] + [0] * (common + width - len(prompt)) for prompt in prompts]
        last, place = (lengths - 1).unique(return_inverse=True)
        logits = self._forward(torch.tensor(rest, device=device), last)
        self.start = width - lengths
        for layer in self.layers:
            layer.end_together(self.start)
        return logits[torch.arange(rows, device=device), place]

    def step(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Append one token per sequence; logits of the next."""
        return self._forward(token[:, None])[:, -1]

    def take(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with B rows; row i becomes what row rows[i] was. Those that stay cost nothing."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        if len(moved) or len(rows) < len(self.start):
            for layer in self.layers:
                layer.take(rows[moved], moved, len(rows))
            self.start = self.start[rows]

    def join(self, other: "Decoder") -> None:
        """Append the rows of another decoder of this model, and drop columns that no row needs."""
        columns = max(each.length - int(each.start.min()) for each in (self, other))
        starts = [each.start + columns - each.length for each in (self, other)]
        for layer, joining in zip(self.layers, other.layers, strict=True):
            layer.join(joining, columns)
        self.start = torch.cat(starts)

    def _forward(
        self, ids: Int[Tensor, "B S"], wanted: Int[Tensor, " K"] | int = 1
    ) -> Float[Tensor, "B K V"]:
        """Append tokens; logits after those `wanted` by their place, or after the last so many."""
        return cast(Tensor, self._through(self.model, ids, logits_to_keep=wanted).logits)

    def _through(self, module: nn.Module, ids: Int[Tensor, "B S"], **more: Any) -> Any:
        """What a module of the library says of tokens behind those in the cache."""
        begin = self.length
        position = torch.arange(begin + ids.shape[1], device=ids.device) - self.start[:, None]
        return module(
            input_ids=ids,
            attention_mask=position >= 0,
            position_ids=position[:, begin:].clamp(min=0),
            use_cache=True,
            **{self.cache_argument: self.cache},
            **more,
        )


def cache_argument(model: nn.Module) -> str:
    """What a model calls its cache: `cache` since transformers 5.24."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


class BufferedLayer(CacheLayerMixin):
    """Keys and values of one layer, (rows, heads, columns, head_dim), allocated in blocks.

    Room for the next `BLOCK` columns is allocated at once. Buffers much wider than what they hold
    would be slow to read: the gaps between one row's columns and the next row's defeat prefetching.
    Rows that are free lie behind those in use, and new ones come with room for half as many again.
    """

    keys: Tensor
    values: Tensor
    buffers: list[Tensor]  # keys and values with the rows that are free
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take batch size, heads and dtype from the first keys and values."""
        self._hold([key_states[:, :, :0], value_states[:, :, :0]], len(key_states))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new columns; views of all columns so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = self._columns(key_states.shape[2])
        self.keys[:, :, new] = key_states
        self.values[:, :, new] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def append(
        self, key: Float[Tensor, "B heads head_dim"], value: Float[Tensor, "B heads head_dim"]
    ) -> None:
        """Write one column."""
        new = self._columns(1).start
        self.keys.select(2, new).copy_(key)
        self.values.select(2, new).copy_(value)

    def _columns(self, count: int) -> slice:
        """So many more columns to be written."""
        start, self.length = self.length, self.length + count
        if self.length > (allocated := self.keys.shape[2]):
            missing = self.width(self.length) - allocated
            self._hold([F.pad(b, (0, 0, 0, missing)) for b in self.buffers], len(self.keys))
        return slice(start, self.length)

    @staticmethod
    def width(length: int) -> int:
        """Columns allocated for `length` tokens."""
        return -(-length // BLOCK) * BLOCK

    def _hold(self, buffers: list[Tensor], rows: int) -> None:
        self.buffers = buffers
        self.keys, self.values = buffers[0][:rows], buffers[1][:rows]

    def take(self, source: Int[Tensor, " M"], target: Int[Tensor, " M"], rows: int) -> None:
        """Go on with `rows` rows, of which `target` become what `source` were."""
        buffers = self.buffers
        if rows > len(buffers[0]):
            buffers = [F.pad(b, (0, 0, 0, 0, 0, 0, 0, rows + rows // 2 - len(b))) for b in buffers]
        for buffer in buffers:
            buffer[target, :, : self.length] = buffer[source, :, : self.length]
        self._hold(buffers, rows)

    def end_together(self, free: Int[Tensor, " B"]) -> None:
        """Move each row to the right by so many columns, over those at its end."""
        columns = torch.arange(self.length, device=free.device)
        source = (columns - free[:, None]).clamp(min=0)[:, None, :, None]
        for held in (self.keys, self.values):
            moved = held[:, :, : self.length]
            moved.copy_(moved.gather(2, source.expand_as(moved)))

    def join(self, other: "BufferedLayer", columns: int) -> None:
        """Append another layer's rows, keeping the last `columns` columns of both."""
        keys = self._stacked(self.keys, other.keys, other.length, columns)
        values = self._stacked(self.values, other.values, other.length, columns)
        self._hold([keys, values], len(keys))
        self.length = columns

    def _stacked(self, above: Tensor, below: Tensor, length: int, columns: int) -> Tensor:
        """One buffer of both; each one's last columns end in column `columns`."""
        rows, heads, _, dim = above.shape
        stacked = above.new_zeros(rows + len(below), heads, self.width(columns), dim)
        for place, part, end in (
            (stacked[:rows], above, self.length),
            (stacked[rows:], below, length),
        ):
            kept = min(end, columns)
            place[:, :, columns - kept : columns] = part[:, :, end - kept : end]
        return stacked

    def get_seq_length(self) -> int:
        """Columns held, padding included."""
        return self.length

    def get_max_length(self) -> int:
        """−1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that the mask of `query_length` new tokens covers, and its offset."""
        return self.length + query_length, 0


def empty_cache(layers: int) -> tuple[list[BufferedLayer], Cache]:
    """Layers without columns, and the cache that a model's forward pass finds them in."""
    buffers = [BufferedLayer() for _ in range(layers)]
    return buffers, Cache(layers=list(buffers))


class LlamaDecoder(Decoder):
    """A `Decoder` of Llama models that takes its steps itself, written out below.

    Same weights and same arithmetic as the Hugging Face forward pass, without the general machinery
    around it, which costs more than the arithmetic when a model is small. In bfloat16, norms and
    logits are computed in float32.
    """

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether `step` is the whole arithmetic of this model."""
        config = model.config
        return (
            config.model_type == "llama"
            and config.hidden_act == "silu"
            and config.rope_parameters["rope_type"] == "default"
            and not (config.attention_bias or config.mlp_bias)
            and (
                model.dtype in (torch.float32, torch.float64)
                or (model.dtype == torch.bfloat16 and model.device.type == "cpu")
            )
        )

    model: "LlamaForCausalLM"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.blocks = cast("list[LlamaDecoderLayer]", self.model.model.layers)
        self.qkv: list[Tensor] = []  # these lists are one for all `fresh` copies
        self.out: list[Tensor] = []
        self.gate_up: list[Tensor] = []
        self.down: list[Tensor] = []
        self.head: list[Tensor] = []  # one, float32 at least
        self.follow_weights()

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Matrices that read the same input become one; queries are scaled by theirs.

        Adapters are merged into them.
        """
        attention, mlps = zip(*((b.self_attn, b.mlp) for b in self.blocks), strict=True)
        qkv = [
            (merged(a.q_proj) * a.scaling, merged(a.k_proj), merged(a.v_proj)) for a in attention
        ]
        gate_up = [(merged(m.gate_proj), merged(m.up_proj)) for m in mlps]
        dtype = self.model.dtype
        self.qkv[:] = [torch.cat(matrices).to(dtype) for matrices in qkv]
        self.out[:] = [merged(a.o_proj).to(dtype) for a in attention]
        self.gate_up[:] = [torch.cat(matrices).to(dtype) for matrices in gate_up]
        self.down[:] = [merged(m.down_proj).to(dtype) for m in mlps]
        head = self.model.lm_head.weight
        self.head[:] = [head.to(torch.promote_types(head.dtype, torch.float32))]

    def step(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Append one token per sequence; logits of the next."""
        body = self.model.model
        position = (self.length - self.start)[:, None]
        x = body.embed_tokens(token)
        cos, sin = (part.to(x.dtype) for part in rotation(position * body.rotary_emb.inv_freq))
        hidden_columns = self._hidden_columns()
        root = x.new_tensor(body.norm.variance_epsilon**0.5)
        matrices = zip(self.qkv, self.out, self.gate_up, self.down, strict=True)
        for block, (qkv, out, gate_up, down), cache in zip(
            self.blocks, matrices, self.layers, strict=True
        ):
            new = F.linear(norm(block.input_layernorm, x, root), qkv)
            mixed = attend(block.self_attn, new, cos, sin, hidden_columns, cache)
            x = torch.addmm(x, mixed, out.T)
            gate, up = F.linear(norm(block.post_attention_layernorm, x, root), gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate).mul_(up), down.T)
        return self._logits(norm(body.norm, x, root))

    def _forward(
        self, ids: Int[Tensor, "B S"], wanted: Int[Tensor, " K"] | int = 1
    ) -> Float[Tensor, "B K V"]:
        """As `Decoder` does, but for the head."""
        hidden = self._through(self.model.model, ids).last_hidden_state
        return self._logits(hidden[:, -wanted:] if isinstance(wanted, int) else hidden[:, wanted])

    def _logits(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        head = self.head[0]
        return F.linear(hidden.to(head.dtype), head)

    def _hidden_columns(self) -> Float[Tensor, "B_kv_heads 1 C"]:
        """0 where the cache holds a token, -inf at padding and at columns not yet written."""
        end = self.length + 1
        column = torch.arange(BufferedLayer.width(end), device=self.start.device)
        visible = (column >= self.start[:, None]) & (column < end)
        hidden = torch.where(visible, 0.0, -torch.inf).to(self.qkv[0].dtype)
        return hidden.repeat_interleave(int(self.model.config.num_key_value_heads or 1), 0)[:, None]


def attend(
    weights: "LlamaAttention",
    qkv: Float[Tensor, "B heads_dim"],
    cos: Float[Tensor, "B 1 head_dim"],
    sin: Float[Tensor, "B 1 head_dim"],
    hidden_columns: Float[Tensor, "B_kv_heads 1 C"],
    cache: BufferedLayer,
) -> Float[Tensor, "B D"]:
    """Attention of one new token per row to itself and the cached ones.

    Query heads that share a key-value head form the second axis, (B kv_heads, shared, head_dim).
    """
    rows, dim, shared = len(qkv), weights.head_dim, weights.num_key_value_groups
    kv_heads = qkv.shape[1] // dim // (shared + 2)
    qk, value = qkv.view(rows, -1, dim).split([(shared + 1) * kv_heads, kv_heads], dim=1)
    query, key = rotate(qk, cos, sin).split([shared * kv_heads, kv_heads], dim=1)
    cache.append(key, value)
    keys, values = cache.keys.flatten(0, 1), cache.values.flatten(0, 1)
    query = query.reshape(rows * kv_heads, shared, dim)
    scores = torch.baddbmm(hidden_columns, query, keys.transpose(1, 2))
    return torch.bmm(scores.softmax(-1), values).view(rows, -1)


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


def norm(
    weights: "LlamaRMSNorm", x: Float[Tensor, "B D"], root: Float[Tensor, ""]
) -> Float[Tensor, "B D"]:
    """x w / √(|x|² / D + ε) with `root` = √ε, in half the calls of `F.rms_norm`.

    Folding w into the matrix behind it would save one more and no time that could be measured.
    Below float32 it is `F.rms_norm`, which squares and sums in float32.
    """
    if x.dtype.itemsize < 4:
        return F.rms_norm(x, x.shape[-1:], weights.weight, weights.variance_epsilon)
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
    return cast(Tensor, (x / size.hypot_(root)).mul_(weights.weight))


def left_pad(
    prompts: list[list[int]], device: torch.device
) -> tuple[Int[Tensor, "P S"], Int[Tensor, " P"]]:
    """Prompts ending in the same column, and the column where each begins."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    return ids, torch.tensor([width - len(p) for p in prompts], device=device)


def common_length(prompts: Sequence[list[int]]) -> int:
    """How many tokens all of them begin with: those that the first and last in order share."""
    pairs = enumerate(zip(min(prompts), max(prompts), strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(map(len, prompts)))


def deduplicate(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], Int[Tensor, " N"]]:
    """Different prompts, and for each given prompt its index among them."""
    position: dict[tuple[int, ...], int] = {}
    copy_of = [position.setdefault(tuple(prompt), len(position)) for prompt in prompts]
    return [list(prompt) for prompt in position], torch.tensor(copy_of)


def fill_holes(parents: Int[Tensor, " K"]) -> Int[Tensor, " K"]:
    """An order in which K rows that go on from the ascending rows `parents` move least.

    The first child of a row below K stays in its place; the others, last rows and further children,
    move into the places that nobody stays in. Place i gets child order[i].
    """
    count = len(parents)
    stays = parents < count
    stays[1:] &= parents[1:] != parents[:-1]
    free = torch.ones_like(stays)
    free[parents[stays]] = False
    order = torch.empty_like(parents)
    order[parents[stays]] = stays.nonzero().squeeze(1)
    order[free] = (~stays).nonzero().squeeze(1)
    return order
