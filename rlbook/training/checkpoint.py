"""Checkpoints: a Hugging Face folder per step, with the rest of the run's state beside it.

Tensors are in safetensors, everything else in JSON; nothing passes through pickle. A step's folder
appears under its final name only when complete, and `latest` names the newest.
"""

import copy
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.durable import publish_folder, replace_text
from rlbook.policy import load_policy
from rlbook.policy.adapters import (
    CONFIG,
    WEIGHTS,
    adapted,
    adapter_weights,
    base_named,
    load_adapter,
    name_base,
    save_adapter,
)

__all__ = ["load_checkpoint", "save_checkpoint"]

LATEST = "latest"
MODEL = "model.safetensors"


def save_checkpoint(
    root: Path,
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    others: dict[str, nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
    state: dict[str, Any],
    keep: int = 2,
) -> Path:
    """Write `root/step_<step>`, move `latest` to it, keep the newest `keep` steps.

    `policy` is the model and its tokenizer; `others` further models by name; `state` is JSON with
    the `step`. Raises `TypeError` or `ValueError` for state that JSON cannot hold and `OSError` for
    a disk without the room, before anything is written.
    """
    final = root / f"step_{state['step']:06d}"
    partial = final.with_suffix(".partial")
    packed = {name: pack_optimizer(optimizer) for name, optimizer in optimizers.items()}
    groups = {name: param_groups for name, (_, param_groups) in packed.items()}
    document = json.dumps({**state, "param_groups": groups}, indent=2)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model, tokenizer = policy
    weights = adapter_weights(model) or model.state_dict()
    modules = [module.state_dict() for module in others.values()]
    kept = [weights, *modules, *(tensors for tensors, _ in packed.values())]
    size = sum(t.numel() * t.element_size() for tensors in kept for t in tensors.values())
    try:
        if size > (free := shutil.disk_usage(partial).free):
            raise OSError(f"no room for {final}: it takes {size:,} bytes, and {free:,} are free")
        save_policy(partial, model, tokenizer)
        for name, module in others.items():
            save_file(_contiguous(module.state_dict()), partial / f"{name}.safetensors")
        for name, (tensors, _) in packed.items():
            save_file(tensors, partial / f"{name}.optimizer.safetensors")
        (partial / "state.json").write_text(document)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, SafetensorError):  # what it calls a full disk
            raise OSError(f"cannot write {final}: {error}") from error
        raise
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)
    point_latest(final)
    for old in step_folders(root)[:-keep]:
        shutil.rmtree(old)
    return final


def save_policy(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write what `load_policy` takes: the whole model, or, where it has one, its adapter alone."""
    if weights := adapter_weights(model):
        save_adapter(model, folder, weights)
        save_description(folder, model, tokenizer)
    else:
        model.save_pretrained(folder, max_shard_size="1000GB")
        tokenizer.save_pretrained(folder)


def save_base(root: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the model below an adapter to `base` in a run's folder, once, and name it there.

    Raises `ValueError` if another model is there.
    """
    folder = root / "base"
    if base_named(model) == str(folder.resolve()):
        return  # by this process: it is the one
    weights = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)

        def write(empty: Path) -> None:
            save_file(_contiguous(weights), empty / MODEL, {"format": "pt"})
            save_description(empty, model, tokenizer)

        publish_folder(folder, write)
    elif not same_tensors(load_file(folder / MODEL), weights):
        raise ValueError(
            f"the policy that is given is not the one below this run's adapter, {folder}: give "
            f"that, load_policy({str(folder)!r})"
        )
    name_base(model, str(folder.resolve()))


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether both have the same names with the same values."""
    if first.keys() != second.keys():
        return False
    return all(torch.equal(tensor, second[name].to("cpu")) for name, tensor in first.items())


def load_checkpoint(
    path: Path,
    model: nn.Module,
    others: dict[str, nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
) -> None:
    """Restore models and optimizers in place; `read_state` gives the rest.

    `path` is a step folder or a run folder (its `latest` is taken). Raises `FileNotFoundError`
    naming the missing piece.
    """
    folder = resolve(path)
    if adapted(model):
        load_adapter(model, folder)
    else:
        load_model(model, folder / MODEL)
    for name, module in others.items():
        module.load_state_dict(load_file(folder / f"{name}.safetensors"))
    param_groups = read_state(folder)["param_groups"]
    for name, optimizer in optimizers.items():
        tensors = load_file(folder / f"{name}.optimizer.safetensors")
        unpack_optimizer(optimizer, tensors, param_groups[name])


def read_state(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint (step folder or run folder)."""
    return dict(json.loads((resolve(path) / "state.json").read_text()))


def resolve(path: Path) -> Path:
    """The step folder that `path` means."""
    pointer = path / LATEST
    folder = path / pointer.read_text().strip() if pointer.is_file() else path
    if not (folder / "state.json").is_file():
        raise FileNotFoundError(
            f"no checkpoint in {path}: expected state.json, or `{LATEST}` naming a step folder"
        )
    return folder


def step_folders(folder: Path) -> list[Path]:
    """Folders of checkpoints, complete or not, oldest first."""
    return sorted(folder.glob("step_*[0-9]"))


def complete_steps(folder: Path) -> list[Path]:
    """Those up to the one that `latest` names; none without it."""
    newest = (folder / LATEST).read_text().strip() if (folder / LATEST).is_file() else ""
    return [path for path in step_folders(folder) if path.name <= newest]


def point_latest(folder: Path) -> None:
    """Make `latest` name this step folder."""
    replace_text(folder.with_name(LATEST), f"{folder.name}\n")


def export(
    run: Path, target: Path, dtype: torch.dtype | None = None, adapter: bool = False
) -> Path:
    """Write a run's newest checkpoint as a plain Hugging Face folder, without the run's state.

    `run` is the folder of any run, or of one of its steps. Its weights come in the dtype of their
    training, unless another is asked for; an adapter is merged into its base, unless it is asked
    for alone (`adapter`: a folder of peft's). Raises `FileExistsError` if `target` exists,
    `FileNotFoundError` if there is no checkpoint, `ValueError` if it has no adapter. Chapter 18.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists: name a new folder, nothing is overwritten")
    folder = resolve(run)
    if adapter and not (folder / CONFIG).is_file():
        raise ValueError(f"{run} has no adapter, for it was trained without model.lora: export all")
    if adapter:
        files = (*(folder / name for name in (CONFIG, WEIGHTS)), *folder.glob("*token*"))
        return publish_folder(target, lambda empty: [shutil.copy(f, empty) for f in files])
    state = read_state(folder)
    trained = getattr(torch, state.get("dtype") or state["config"]["model"]["dtype"])
    policy = load_policy(str(folder), dtype or trained)
    return publish_folder(target, lambda empty: [part.save_pretrained(empty) for part in policy])


def save_description(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """What `from_pretrained` reads besides the weights, which may be in use or elsewhere."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__.removeprefix("FSDP")], torch.float32
    config.save_pretrained(folder)
    if model.generation_config is not None:
        # as it is: whether its settings go together is not for a checkpoint to judge
        model.generation_config.to_json_file(folder / "generation_config.json")
    tokenizer.save_pretrained(folder)


def pack_optimizer(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Optimizer state as flat named tensors plus its JSON-able parameter groups."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{key}": torch.as_tensor(value)
        for index, entry in state["state"].items()
        for key, value in entry.items()
    }
    return _contiguous(tensors), state["param_groups"]


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], param_groups: list[dict[str, Any]]
) -> None:
    """Inverse of `pack_optimizer`."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = value
    for group in param_groups:
        group["betas"] = tuple(group["betas"])
    optimizer.load_state_dict({"state": entries, "param_groups": param_groups})


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Own storage for each entry: safetensors refuses shared memory (tied weights)."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
