"""Checkpoints of a sharded policy: every rank writes the rows it holds, any number of ranks reads.

step_000020/rank_00000.safetensors   a rank's rows of weights and AdamW moments, its RNG state
step_000020/state.json               the step, how many ranks wrote, what else the trainer remembers
step_000020/orchestrator.json        the orchestrator's state after the last batch trained
latest                               the newest complete step; moves when all files are durable
"""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rlbook.policy import load_policy
from rlbook.scale.config import load_config
from rlbook.scale.layout import Layout, publish_folder, sync_to_disk, write_json
from rlbook.scale.parallel import Ranks
from rlbook.training.checkpoint import LATEST, read_state, resolve

WEIGHTS, RNG = "model", "rng"


class Checkpoints:
    """Saves and restores policy, optimizer and RNG of all ranks; every method is collective."""

    def __init__(self, folder: Path, ranks: Ranks, keep: int = 2):
        self.folder, self.ranks, self.keep = folder, ranks, keep

    def save(
        self,
        step: int,
        policy: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        state: dict,
        orchestrator: dict,
    ) -> bool:
        """Write step `step`; returns whether it is durable on every rank.

        What keeps it from being written (a full disk) is named in a warning, and the checkpoint
        before stays the newest. `state` and the orchestrator's state are JSON.
        """
        final = self.folder / f"step_{step:06d}"
        partial = self.folder / f".{final.name}.partial"
        described = {**state, "step": step, "ranks": self.ranks.count}
        documents = {"state.json": described, "orchestrator.json": orchestrator}
        stages = (
            lambda: fresh_folder(partial) if self.ranks.first else None,
            lambda: self.write_own(partial, policy, optimizer),
            lambda: self.publish(partial, final, documents) if self.ranks.first else None,
        )
        done = all(self.ranks.all(attempt(stage, step)) for stage in stages)
        if self.ranks.first:
            shutil.rmtree(partial, ignore_errors=True)
            self.retire()
        return done

    def write_own(
        self, folder: Path, policy: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        """This rank's file, durable."""
        tensors = {name: local(t) for name, t in training_tensors(policy, optimizer)}
        tensors[RNG] = torch.get_rng_state()
        file = folder / rank_file(self.ranks.rank)
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, file)
        sync_to_disk(file)

    def publish(self, partial: Path, final: Path, documents: dict[str, dict]) -> None:
        """Complete the folder, give it its name and move `latest` to it."""
        missing = [r for r in range(self.ranks.count) if not (partial / rank_file(r)).is_file()]
        if missing:
            raise OSError(
                f"{partial.parent} lacks the files of ranks {missing}: the run folder has to be "
                "on a file system that all trainer nodes share"
            )
        for name, document in documents.items():
            write_json(partial / name, document)
            sync_to_disk(partial / name)
        sync_to_disk(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        point_latest(self.folder, final.name)

    def retire(self) -> None:
        """Delete all but the newest `keep` steps."""
        if self.keep and (self.folder / LATEST).is_file():
            newest = (self.folder / LATEST).read_text().strip()
            steps = [path for path in step_folders(self.folder) if path.name <= newest]
            for old in steps[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, policy: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict | None:
        """Restore the newest checkpoint in place; returns its state, None if there is none.

        Raises `ValueError` if it is of another model.
        """
        if not (self.folder / LATEST).is_file():
            return None
        folder = resolve(self.folder)
        shards = Shards(folder)
        self.load_weights(shards, policy)
        self.load_moments(shards, policy, optimizer)
        own = folder / rank_file(self.ranks.rank)
        if own.is_file():
            with safe_open(own, "pt") as file:
                torch.set_rng_state(file.get_tensor(RNG))
        return read_state(folder)

    @torch.no_grad()
    def load_weights(self, shards: "Shards", policy: PreTrainedModel) -> None:
        for name, parameter in policy.named_parameters():
            self.fill(parameter, shards, f"{WEIGHTS}.{name}")

    @torch.no_grad()
    def load_moments(
        self, shards: "Shards", policy: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        kinds = {name.partition(".")[0] for name in shards.names} - {WEIGHTS, RNG}
        for name, parameter in policy.named_parameters():
            for kind in sorted(kinds):
                key = f"{kind}.{name}"
                scalar = not shards.shape(key)
                value = torch.tensor(0.0) if scalar else torch.zeros_like(parameter)
                self.fill(value, shards, key)
                optimizer.state[parameter][kind] = value

    def fill(self, tensor: Tensor, shards: "Shards", key: str) -> None:
        """Copy this rank's rows of a stored tensor into `tensor`."""
        if shards.shape(key) != list(tensor.shape):
            raise ValueError(
                f"{shards.folder}: {key} has shape {shards.shape(key)}, the model's has "
                f"{list(tensor.shape)}: the checkpoint is of another model"
            )
        own = local(tensor)
        if tensor.ndim == 0:
            own.copy_(shards.rows(key))
        elif len(own):
            start = self.ranks.rank * -(-len(tensor) // self.ranks.count)
            own.copy_(shards.rows(key, start, start + len(own)))


class Shards:
    """The tensors of a checkpoint, whoever wrote their rows."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = [safe_open(path, "pt") for path in sorted(folder.glob("rank_*.safetensors"))]
        self.names = set(self.files[0].keys())

    def shape(self, name: str) -> list[int]:
        """Shape of the whole tensor. Raises `ValueError` if it is not in the checkpoint."""
        if name not in self.names:
            raise ValueError(f"{self.folder} lacks {name}: the checkpoint is of another model")
        shapes = [file.get_slice(name).get_shape() for file in self.files]
        return shapes[0] and [sum(shape[0] for shape in shapes), *shapes[0][1:]]

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, by default all; a scalar as it is."""
        if not self.shape(name):
            return self.files[0].get_tensor(name)
        stop, offset, pieces = stop if stop is not None else self.shape(name)[0], 0, []
        for file in self.files:
            piece = file.get_slice(name)
            count = piece.get_shape()[0]
            first, last = max(start - offset, 0), min(stop - offset, count)
            if first < last:
                pieces.append(piece[first:last])
            offset += count
        return torch.cat(pieces)


def export(run: Path, target: Path, dtype: torch.dtype | None = None) -> Path:
    """Write a run's newest checkpoint as an ordinary Hugging Face folder; by default in its dtype.

    `target` must be new. Raises `FileExistsError` if it is not, and `FileNotFoundError` if `run` is
    no run or has no checkpoint yet. Chapter 17.
    """
    layout = Layout(run)
    if target.exists():
        raise FileExistsError(f"{target} exists: name a new folder, nothing is overwritten")
    if not layout.config.is_file():
        raise FileNotFoundError(
            f"{run} is no run of `rlbook scale`: it has no {layout.config.name}"
        )
    config = load_config(layout.config).model
    shards = Shards(resolve(layout.checkpoints))
    policy, tokenizer = load_policy(config.policy, dtype or getattr(torch, config.dtype))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.copy_(shards.rows(f"{WEIGHTS}.{name}"))

    def write(folder: Path) -> None:
        policy.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return publish_folder(target, write)


def training_tensors(
    policy: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Weights and optimizer state under `<kind>.<parameter>`."""
    for name, parameter in policy.named_parameters():
        yield f"{WEIGHTS}.{name}", parameter
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"{kind}.{name}", value


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that is on this rank; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def attempt(stage: Callable[[], None], step: int) -> bool:
    """Run one stage of a save; a failure is a warning."""
    try:
        stage()
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"checkpoint {step} is not written, the one before stays the newest: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def fresh_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def point_latest(folder: Path, name: str) -> None:
    """Name the newest step, durably."""
    partial = folder / f".{LATEST}.partial"
    partial.write_text(name + "\n")
    sync_to_disk(partial)
    partial.replace(folder / LATEST)
    sync_to_disk(folder)


def step_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("step_*") if re.fullmatch(r"step_\d{6,}", p.name))


def rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.safetensors"
