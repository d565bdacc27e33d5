"""Checkpoints: one folder a step, tensors in safetensors, everything else in JSON.

A step's folder appears under its final name only when complete, and `latest` names the newest.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

LATEST = "latest"


def save_checkpoint(
    root: Path,
    step: int,
    models: dict[str, nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
    state: dict,
    keep: int = 2,
) -> Path:
    """Write `root/step_<step>`, move `latest` to it, keep the newest `keep` steps.

    `state` is JSON: config, step, counters. Tensors never pass through pickle.
    """
    final = root / f"step_{step:06d}"
    partial = final.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, model in models.items():
        save_file(_contiguous(model.state_dict()), partial / f"{name}.safetensors")
    groups = {}
    for name, optimizer in optimizers.items():
        tensors, groups[name] = pack_optimizer(optimizer)
        save_file(tensors, partial / f"{name}.optimizer.safetensors")
    save_file({"torch": torch.get_rng_state()}, partial / "rng.safetensors")
    document = {**state, "step": step, "param_groups": groups}
    (partial / "state.json").write_text(json.dumps(document, indent=2))
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)
    _point_latest(root, final.name)
    for old in sorted(root.glob("step_??????"))[:-keep]:
        shutil.rmtree(old)
    return final


def load_checkpoint(
    path: Path, models: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]
) -> dict:
    """Restore models, optimizers and the torch RNG in place; return the JSON state.

    `path` is a step folder or a run folder (its `latest` is taken). Raises `FileNotFoundError`
    naming the missing piece.
    """
    folder = resolve(path)
    for name, model in models.items():
        model.load_state_dict(load_file(folder / f"{name}.safetensors"))
    state = read_state(folder)
    for name, optimizer in optimizers.items():
        tensors = load_file(folder / f"{name}.optimizer.safetensors")
        unpack_optimizer(optimizer, tensors, state["param_groups"][name])
    torch.set_rng_state(load_file(folder / "rng.safetensors")["torch"])
    return state


def read_state(path: Path) -> dict:
    """The JSON part of a checkpoint (step folder or run folder)."""
    return json.loads((resolve(path) / "state.json").read_text())


def resolve(path: Path) -> Path:
    """The step folder that `path` means."""
    pointer = path / LATEST
    folder = path / pointer.read_text().strip() if pointer.is_file() else path
    if not (folder / "state.json").is_file():
        raise FileNotFoundError(
            f"no checkpoint in {path}: expected state.json, or `{LATEST}` naming a step folder"
        )
    return folder


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict]]:
    """Optimizer state as flat named tensors plus its JSON-able parameter groups."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{key}": torch.as_tensor(value)
        for index, entry in state["state"].items()
        for key, value in entry.items()
    }
    return _contiguous(tensors), state["param_groups"]


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], param_groups: list[dict]
) -> None:
    """Inverse of `pack_optimizer`."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = value
    for group in param_groups:
        group["betas"] = tuple(group["betas"])
    optimizer.load_state_dict({"state": entries, "param_groups": param_groups})


def _point_latest(root: Path, name: str) -> None:
    temporary = root / f".{LATEST}.partial"
    temporary.write_text(name + "\n")
    os.replace(temporary, root / LATEST)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Own storage for each entry: safetensors refuses shared memory (tied weights)."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
