"""Token-by-token evaluation of a decoder model over a cache with one row per sequence."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin


def decoder_for(model: PreTrainedModel, capacity: int) -> "Decoder":
    """The decoder for `model`, with room for `capacity` tokens per sequence."""
    return Decoder(model, capacity)


class Decoder:
    """Next-token logits of many sequences through the model's own forward pass.

    Prompts are padded on the left, so all sequences write the same cache column at each step.
    """

    def __init__(self, model: PreTrainedModel, capacity: int):
        layer_types = set(getattr(model.config, "layer_types", None) or ())
        if unknown := layer_types - {"full_attention", "sliding_attention"}:
            raise ValueError(f"the sampler has no cache for layers of type {sorted(unknown)}")
        layers = model.config.num_hidden_layers
        self.model = model
        self.cache = Cache(layers=[BufferedLayer(capacity) for _ in range(layers)])

    def prefill(self, prompts: list[list[int]]) -> Float[Tensor, "P V"]:
        """Read the prompts; logits of each one's next token."""
        ids, present = left_pad(prompts, self.model.device)
        self.present = present.new_ones(len(prompts), self.cache.layers[0].capacity)
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
    """Keys and values of one layer in buffers allocated once, (rows, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity, self.length, self.rows = capacity, 0, 0

    def lazy_initialization(self, keys: Tensor, values: Tensor) -> None:
        rows, heads, _, dim = keys.shape
        self.keys = keys.new_empty(rows, heads, self.capacity, dim)
        self.values = values.new_empty(rows, heads, self.capacity, values.shape[-1])
        self.rows, self.is_initialized = rows, True

    def update(self, keys: Tensor, values: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write new columns; views of all columns so far."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        end = self.length + keys.shape[2]
        self.keys[: self.rows, :, self.length : end] = keys
        self.values[: self.rows, :, self.length : end] = values
        self.length = end
        return self.keys[: self.rows, :, :end], self.values[: self.rows, :, :end]

    def repeat(self, rows: Int[Tensor, " B"]) -> None:
        self.rows = len(rows)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(self.rows, *old.shape[1:])
            new[:, :, : self.length] = old[rows, :, : self.length]
            setattr(self, name, new)

    def keep(self, rows: Int[Tensor, " K"]) -> None:
        self.rows = len(rows)
        place = torch.arange(self.rows, device=rows.device)
        moved = rows != place
        source, target = rows[moved], place[moved]
        for buffer in (self.keys, self.values):
            buffer[target, :, : self.length] = buffer[source, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

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
