"""Low-rank adapters (LoRA, arXiv:2106.09685) by peft, inside an ordinary Hugging Face model.

h = W x + s B A x,  s = α / r,  W (m, n) frozen,  A (r, n) and B (m, r) float32, B = 0 at first
"""

import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rlbook.extras import require

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as AdaptedLinear

NAME = "default"  # peft's, of a model's only adapter
PREFIX = "base_model.model."  # of every name in peft's files
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's files


def add_adapter(
    model: PreTrainedModel,
    rank: int,
    alpha: float,
    targets: Collection[str] | None = None,
    base: str = "",
) -> None:
    """Put adapters beside linear layers, in place, and freeze all else; see `start_adapter`.

    `targets` are names such as "q_proj"; by default all linear layers but the head, which keeps its
    chunks. `base` names the model in the adapter's file. Raises `ValueError` for a name that is no
    such layer.
    """
    require("lora", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    if not (linear := linear_names(model)):
        raise ValueError(
            f"model.lora: {type(model).__name__} has no nn.Linear below its head (GPT-2 has "
            "Conv1D), and adapters stand beside those: train all weights, or the last "
            "model.trainable_layers"
        )
    wanted = set(linear if targets is None else targets)
    if strangers := sorted(wanted - linear):
        there = ", ".join(sorted(linear))
        raise ValueError(f"lora.targets: {strangers[0]!r} is no linear layer: there are {there}")
    settings = LoraConfig(
        r=rank,
        lora_alpha=cast(int, alpha),
        target_modules=sorted(wanted),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(settings, model, low_cpu_mem_usage=True)  # A and B on `meta`
    for layer in adapted(model).values():
        layer.lora_A.float()
        layer.lora_B.float()


def linear_names(model: PreTrainedModel) -> set[str]:
    """Names of linear layers in the model's body, without their places."""
    named = model.base_model.named_modules()
    return {name.rpartition(".")[2] for name, m in named if isinstance(m, nn.Linear)}


@torch.no_grad()
def start_adapter(model: PreTrainedModel, seed: int, device: torch.device | str) -> None:
    """Give adapters memory, where they have none, and first values.

    A ~ U(−1/√n, 1/√n) as in peft, drawn by seed and name, so that any number of ranks has the same;
    B = 0.
    """
    for layer in adapted(model).values():
        for part in (layer.lora_A[NAME], layer.lora_B[NAME]):
            if part.weight.is_meta:
                part.to_empty(device=device)
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            weight.zero_()
            continue
        word = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        draws = torch.Generator().manual_seed(int.from_bytes(word[:7]))
        bound = weight.shape[1] ** -0.5
        first = torch.empty(weight.shape).uniform_(-bound, bound, generator=draws).to(weight.device)
        if isinstance(weight, DTensor):
            first = distribute_tensor(first, weight.device_mesh, weight.placements)
        weight.copy_(first)


def adapted(model: nn.Module) -> "dict[str, AdaptedLinear]":
    """The layers that have an adapter, by name."""
    named = model.named_modules()
    return {name: cast("AdaptedLinear", m) for name, m in named if hasattr(m, "lora_A")}


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """A and B of every adapter under peft's names; none of a model without."""
    return {
        f"{PREFIX}{name}.{kind}.weight": getattr(layer, kind)[NAME].weight
        for name, layer in adapted(model).items()
        for kind in ("lora_A", "lora_B")
    }


@torch.no_grad()
def merged(
    layer: nn.Module, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Float[Tensor, "m n"]:
    """W + s B A of a layer with an adapter, summed in float32; W of any other.

    `whole` gathers what is spread over ranks.
    """
    weight = whole(cast(Tensor, layer.weight))
    if not hasattr(layer, "lora_A"):
        return weight
    one = cast("AdaptedLinear", layer)
    a, b = (whole(cast(Tensor, part[NAME].weight)).float() for part in (one.lora_A, one.lora_B))
    wide = torch.promote_types(weight.dtype, torch.float32)
    return torch.addmm(weight.to(wide), b.to(wide), a.to(wide), alpha=one.scaling[NAME])


def plain_weights(
    model: nn.Module,
    dtype: torch.dtype | None = None,
    whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the model would have without adapters, those merged; in a dtype if given."""
    layers = adapted(model)
    for name, tensor in model.state_dict().items():
        layer, _, part = name.partition(".base_layer.")
        if part == "weight":
            yield f"{layer}.weight", merged(layers[layer], whole).to(dtype or tensor.dtype)
        elif ".lora_" not in name:
            yield name.replace(".base_layer.", "."), whole(tensor.to(dtype or tensor.dtype))


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are no adapter's, by the names that they have without any."""
    named = model.named_parameters()
    return {name.replace(".base_layer.", "."): p for name, p in named if ".lora_" not in name}


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is its base."""
    layers = adapted(model).values()
    for layer in layers:
        layer._disable_adapters = True  # peft's own switch would also stop them from learning
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def base_named(model: PreTrainedModel) -> str | None:
    """Of which model the adapter is, as its file will say."""
    named: str | None = cast(Any, model).peft_config[NAME].base_model_name_or_path
    return named


def name_base(model: PreTrainedModel, base: str) -> None:
    """Say in the adapter's file, as it is written next, of which model it is."""
    cast(Any, model).peft_config[NAME].base_model_name_or_path = base


def save_adapter(model: PreTrainedModel, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write peft's two files: what `PeftModel.from_pretrained` takes, and `load_policy`."""
    cast(Any, model).peft_config[NAME].save_pretrained(folder)
    save_file({name: w.detach().contiguous() for name, w in weights.items()}, folder / WEIGHTS)


@torch.no_grad()
def load_adapter(model: nn.Module, folder: Path) -> None:
    """Fill the model's adapter from `save_adapter`'s file; `ValueError` if they differ in shape."""
    own, stored = adapter_weights(model), load_file(folder / WEIGHTS)
    if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in stored.items()}:
        raise ValueError(f"{folder / WEIGHTS} has other layers or another rank than model.lora")
    for name, weight in own.items():
        weight.copy_(stored[name])


@torch.no_grad()
def merge_stored(model: PreTrainedModel, folder: Path) -> None:
    """Add a stored adapter to the weights of its base, in place: a plain model comes out."""
    from peft import PeftConfig

    require("lora", "peft")
    settings = PeftConfig.from_pretrained(str(folder))
    add_adapter(model, settings.r, settings.lora_alpha, settings.target_modules)
    start_adapter(model, 0, model.device)
    load_adapter(model, folder)
    for name, layer in adapted(model).items():
        base = layer.base_layer
        cast(Tensor, base.weight).copy_(merged(layer))
        model.set_submodule(name, base)
    del model.peft_config
    model.requires_grad_(True)
