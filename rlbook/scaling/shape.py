"""A model's sizes, read from its configuration: no weights are loaded, none need exist."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from rlbook.policy.loading import policy_source
from rlbook.scaling.memory import StateMemory, count_parameters, trained_memory

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # in configurations


@dataclass(frozen=True)
class ModelShape:
    """What memory and time depend on. `linear` counts the weights each token is multiplied with.

    `state` holds the bytes of float32 weights, gradients and AdamW moments.
    """

    parameters: int
    linear: int
    state: StateMemory
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int
    tied: bool
    head_norms: bool  # queries and keys are normalised per head (Qwen3)
    experts: int = 0  # per layer, in a mixture of experts
    linears: Mapping[str, int] = field(default_factory=dict)  # in the layers: by name Σ (in + out)

    @property
    def embedding(self) -> int:
        """Parameters of one matrix of vocabulary times hidden size: the embedding, or the head."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return (self.parameters - self.embedding * (2 - self.tied)) // self.layers

    def adapter(self, rank: int, targets: Collection[str] | None = None) -> int:
        """Parameters of adapters (LoRA) beside linear layers of these names, or beside all."""
        widths = (w for name, w in self.linears.items() if targets is None or name in targets)
        return rank * sum(widths)

    def cache_bytes(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    def activation_bytes(self, itemsize: int, checkpointing: bool) -> int:
        """Bytes per token that the layers keep for the backward pass.

        layer:  8 h  (inputs of the two norms, float32)
                + itemsize (4 h + 2 q + 2 k + 4 m)
                + (4 + itemsize) (q + k)  (if queries and keys have norms)

        h hidden size, q and k widths of queries and of keys, m intermediate size of a gated MLP,
        attention without its score matrix. With checkpointing: the input of every layer, and all
        of the one layer that is computed again.
        """
        q, k = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inner = 4 * self.hidden + 2 * q + 2 * k + 4 * self.intermediate
        normed = q + k if self.head_norms else 0
        layer = 8 * self.hidden + itemsize * inner + (4 + itemsize) * normed
        if checkpointing:
            return self.layers * itemsize * self.hidden + layer
        return self.layers * layer

    def training_flops(self, tokens: float, contexts: float, adapter: int = 0) -> float:
        """Operations of forward and backward on `tokens` tokens that see `contexts` keys in all.

        3 (2 · linear · tokens + 4 · layers · heads · head_dim · contexts)

        Where an `adapter` of so many parameters learns the weights have no gradients: 2 times their
        products, 3 times the adapter's. What is computed a second time to save memory is not
        counted: this is the numerator of model FLOPs utilisation (MFU).
        """
        attention = 4 * self.layers * self.heads * self.head_dim
        products = 2 * self.linear + 3 * adapter if adapter else 3 * self.linear
        return 2 * products * tokens + 3 * attention * contexts


def model_shape(policy: str) -> ModelShape:
    """Sizes of a policy by name, as `load_policy` understands it.

    Raises `FileNotFoundError` for a folder without a model and `ValueError` for a name on the hub
    that cannot be reached.
    """
    source = policy_source(policy)
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model.policy {policy!r}: its configuration cannot be read ({first_line(error)}): "
            "name a local folder with config.json, or try again where the hub can be reached"
        ) from None
    return shape_of(config)


def described_shape(settings: dict[str, Any]) -> ModelShape:
    """Sizes of the model whose config.json has these entries.

    Raises `ValueError` for a `model_type` that transformers does not know.
    """
    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"budget.shape: model_type is {kind!r}, write llama, qwen3, …")
    return shape_of(AutoConfig.for_model(**settings))


def shape_of(config: PretrainedConfig) -> ModelShape:
    """Sizes of the model that a Hugging Face configuration describes, counted on `meta`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    heads = config.num_attention_heads
    return ModelShape(
        parameters=count_parameters(model),
        linear=sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)),
        state=trained_memory(model),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        tied=config.tie_word_embeddings,
        head_norms=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        linears=widths(model),
        experts=next((n for name in EXPERTS if (n := getattr(config, name, 0))), 0),
    )


def widths(model: PreTrainedModel) -> dict[str, int]:
    """Inputs and outputs of the linear layers in a model's body, those of one name together."""
    found: dict[str, int] = {}
    for name, m in model.base_model.named_modules():
        if isinstance(m, nn.Linear):
            leaf = name.rpartition(".")[2]
            found[leaf] = found.get(leaf, 0) + m.in_features + m.out_features
    return found


def first_line(error: Exception) -> str:
    """What an error says in its first line."""
    return str(error).strip().split("\n")[0]
