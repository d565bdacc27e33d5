"""Token-by-token evaluation of a decoder model over a cache with one row per sequence."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK = 32


def decoder_for(model: PreTrainedModel, capacity: int) -> "Decoder":
    """The decoder for `model`, with room for `capacity` tokens per sequence."""
    from rlbook.policy.llama_decode import LlamaDecoder

    kind = LlamaDecoder if LlamaDecoder.supports(model) else Decoder
    return kind(model, capacity)


class Decoder:
    """Next-token logits of many sequences through the model's own forward pass.

    Prompts are padded on the left, so all sequences write the same cache column at each step.
    """

    def __init__(self, model: PreTrainedModel, capacity: int):
        layer_types = set(getattr(model.config, "layer_types", None) or ())
        if unknown := layer_types - {"full_attention", "sliding_attention"}:
            raise ValueError(f"the sampler has no cache for layers of type {sorted(unknown)}")
        layers = model.config.num_hidden_layers
        self.model, self.capacity = model, capacity
        self.cache = Cache(layers=[BufferedLayer() for _ in range(layers)])

    def prefill(self, prompts: list[list[int]]) -> Float[Tensor, "P V"]:
        """Read the prompts; logits of each one's next token."""
        ids, present = left_pad(prompts, self.model.device)
        self.present = present.new_ones(len(prompts), BufferedLayer.width(self.capacity))
        self.present[:, : ids.shape[1]] = present
        self.position = (present.cumsum(-1) - 1).clamp_(min=0)
        return self._forward(ids)

    def step(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Append one token per sequence; logits of the next."""
        self.position = self.position[:, -1:] + 1
        return self._forward(token[:, None])

    def repeat(self, rows: Int[Tensor, " B"]) -> None:
        """Start B sequences as copies of the prefilled ones."""
        for layer in self.cache.layers:
            layer.repeat(rows)
        self.present, self.position = self.present[rows], self.position[rows]

    def keep(self, rows: Int[Tensor, " K"]) -> None:
        """Go on with these rows only; row i becomes what row rows[i] was."""
        for layer in self.cache.layers:
            layer.keep(rows)
        self.present, self.position = self.present[rows], self.position[rows]

    def _forward(self, ids: Int[Tensor, "B S"]) -> Float[Tensor, "B V"]:
        end = self.cache.get_seq_length() + ids.shape[1]
        output = self.model(
            input_ids=ids,
            attention_mask=self.present[:, :end],
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


class BufferedLayer(CacheLayerMixin):
    """Keys and values of one layer, (rows, heads, columns, head_dim), allocated in blocks.

    Room for the next `BLOCK` columns is allocated at once. Buffers much wider than what they hold
    would be slow to read: the gaps between one row's columns and the next row's defeat prefetching.
    """

    is_sliding = False

    def __init__(self):
        super().__init__()
        self.length = 0

    def lazy_initialization(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys[:, :, :0], values[:, :, :0]
        self.is_initialized = True

    def update(self, keys: Tensor, values: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write new columns; views of all columns so far."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        start, self.length = self.length, self.length + keys.shape[2]
        if self.length > self.keys.shape[2]:
            self.keys, self.values = self._widened(self.keys), self._widened(self.values)
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    @staticmethod
    def width(length: int) -> int:
        """Columns allocated for `length` tokens."""
        return -(-length // BLOCK) * BLOCK

    def _widened(self, old: Tensor) -> Tensor:
        return F.pad(old, (0, 0, 0, self.width(self.length) - old.shape[2]))

    def repeat(self, rows: Int[Tensor, " B"]) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def keep(self, rows: Int[Tensor, " K"]) -> None:
        place = torch.arange(len(rows), device=rows.device)
        moved = rows != place
        for buffer in (self.keys, self.values):
            buffer[place[moved]] = buffer[rows[moved]]
        self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


def left_pad(
    prompts: list[list[int]], device: torch.device
) -> tuple[Int[Tensor, "P S"], Bool[Tensor, "P S"]]:
    """Prompts ending in the same column, and where they are."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    starts = torch.tensor([width - len(p) for p in prompts], device=device)
    return ids, torch.arange(width, device=device) >= starts[:, None]
