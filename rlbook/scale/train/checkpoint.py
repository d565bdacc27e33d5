"""Checkpoints of a sharded policy: a Hugging Face folder, and what each rank holds beside it.

step_000020/model.safetensors, …     the weights, whole, with config and tokenizer: `load_policy`
step_000020/rank_00000.safetensors   a rank's rows of the AdamW moments, its RNG state
step_000020/state.json               the step, how many ranks wrote, what else the trainer remembers
step_000020/orchestrator.json        the orchestrator's state after the last batch trained
step_000020/checksums.json           SHA-256 of each of the other files
latest                               the newest complete step; moves when all files are durable

Any number of ranks reads what any number wrote. A step is copied to the host's memory while
training waits, and written by a thread while it goes on.
"""

import copy
import re
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import load_policy
from rlbook.scale.layout import (
    CHECKSUMS,
    checksum,
    damage,
    publish_folder,
    replace_text,
    sync_to_disk,
    write_json,
)
from rlbook.scale.train.parallel import Ranks
from rlbook.training.checkpoint import LATEST, read_state, resolve
from rlbook.training.step import full_tensor

WEIGHTS, RNG = "model", "rng"
FILE_BYTES = 4 * 2**30  # of weights in one file
Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


@dataclass
class Writing:
    """A step that a thread is writing; its result are checksums of this rank's files, or None."""

    step: int
    partial: Path
    sums: Future


class Checkpoints:
    """Saves and restores policy, optimizer and RNG of all ranks; every method is collective."""

    def __init__(self, folder: Path, ranks: Ranks, keep: int = 2):
        self.folder, self.ranks, self.keep = folder, ranks, keep
        self.writing: Writing | None = None
        self.thread = ThreadPoolExecutor(1, "checkpoint")

    def save(
        self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict, orchestrator: dict
    ) -> bool:
        """Write step `state["step"]`; returns whether it is durable on every rank."""
        self.begin(policy, optimizer, state, orchestrator)
        return bool(self.settle(wait=True))

    def begin(
        self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict, orchestrator: dict
    ) -> None:
        """Copy step `state["step"]` and have it written; `settle` the one before first.

        `policy` is the model and its tokenizer, `state` and the orchestrator's state are JSON.
        """
        step, (model, tokenizer) = state["step"], policy
        partial = self.folder / f".step_{step:06d}.partial"
        documents = {
            "state.json": {**state, "ranks": self.ranks.count},
            "orchestrator.json": orchestrator,
        }
        own, weights = own_tensors(model, optimizer), self.whole_weights(model)

        def write() -> None:
            self.write_own(partial, own)
            if self.ranks.first:
                for file, tensors in weights.items():
                    save_file(tensors, partial / file, {"format": "pt"})
                describe_model(partial, model, tokenizer, weights)
                for name, document in documents.items():
                    write_json(partial / name, document)

        def written() -> dict[str, str] | None:
            if not attempt(write, step):
                return None
            files = [f for f in partial.rglob("*") if self.ranks.first and f.is_file()]
            files = [f for f in files if not f.name.startswith("rank_")]
            files.append(partial / rank_file(self.ranks.rank))
            return {str(f.relative_to(partial)): checksum(f) for f in files if f.exists()}

        made = attempt(lambda: fresh_folder(partial) if self.ranks.first else None, step)
        ready = self.ranks.all(made)
        sums = self.thread.submit(written if ready else lambda: None)
        self.writing = Writing(step, partial, sums)

    def settle(self, wait: bool) -> bool | None:
        """Whether the step begun last is durable on every rank; None as long as nobody knows.

        What keeps it from being written (a full disk) is named in a warning, and the checkpoint
        before stays the newest.
        """
        if (writing := self.writing) is None:
            return None
        if not (wait or self.ranks.all(writing.sums.done())):
            return None
        sums = self.ranks.collect(writing.sums.result())
        done = None not in sums
        if done:
            final = self.folder / f"step_{writing.step:06d}"

            def publish() -> None:
                if self.ranks.first:
                    self.publish(writing.partial, final, {k: v for s in sums for k, v in s.items()})

            done = self.ranks.all(attempt(publish, writing.step))
        if self.ranks.first:
            shutil.rmtree(writing.partial, ignore_errors=True)
            self.retire()
        self.writing = None
        return done

    def write_own(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """This rank's file, durable."""
        file = folder / rank_file(self.ranks.rank)
        save_file(tensors, file)
        sync_to_disk(file)

    def whole_weights(self, model: PreTrainedModel) -> dict[str, dict[str, Tensor]]:
        """Copies of the weights by file and name, on rank 0; gathered tensor by tensor."""
        files: dict[str, dict[str, Tensor]] = {}
        for file, tensors in weight_files(model).items():
            files[file] = {}
            for name, tensor in tensors.items():
                whole = full_tensor(tensor.detach())
                if self.ranks.first:
                    files[file][name] = to_host(whole)
        return files

    def publish(self, partial: Path, final: Path, sums: dict[str, str]) -> None:
        """Complete the folder, give it its name and move `latest` to it."""
        missing = [r for r in range(self.ranks.count) if not (partial / rank_file(r)).is_file()]
        if missing:
            raise OSError(
                f"{partial.parent} lacks the files of ranks {missing}: the run folder has to be "
                "on a file system that all trainer nodes share"
            )
        write_json(partial / CHECKSUMS, sums)
        for path in (*partial.rglob("*"), partial):
            sync_to_disk(path)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        replace_text(self.folder / LATEST, f"{final.name}\n")

    def retire(self) -> None:
        """Delete all but the newest `keep` steps."""
        if self.keep and (self.folder / LATEST).is_file():
            newest = (self.folder / LATEST).read_text().strip()
            steps = [path for path in step_folders(self.folder) if path.name <= newest]
            for old in steps[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict | None:
        """Restore the newest intact checkpoint in place; returns its state, None without any.

        Raises `ValueError` if it is of another model, or if there are some and none is intact.
        """
        found = self.ranks.share(self.choose() if self.ranks.first else None)
        if "error" in found:
            raise ValueError(found["error"])
        if not found["name"]:
            return None
        folder = self.folder / found["name"]
        shards = Shards(folder)
        self.load_weights(shards, model)
        self.load_moments(shards, model, optimizer)
        own = folder / rank_file(self.ranks.rank)
        if own.is_file():
            with safe_open(own, "pt") as file:
                torch.set_rng_state(file.get_tensor(RNG))
        return read_state(folder)

    def choose(self) -> dict[str, str | None]:
        """The newest intact step's name; those that are not are set aside and named in a warning.

        The batches since the oldest step are still in the spool: they are trained once more.
        """
        if not (self.folder / LATEST).is_file():
            return {"name": None}
        newest, damages = (self.folder / LATEST).read_text().strip(), []
        for step in reversed([p for p in step_folders(self.folder) if p.name <= newest]):
            if (found := damage(step)) is None:
                if damages:
                    replace_text(self.folder / LATEST, f"{step.name}\n")
                return {"name": step.name}
            damages.append(f"{step.name}: {found}")
            aside = step.with_name(f"{step.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)  # it may have been damaged before
            step.rename(aside)
            warnings.warn(
                f"{step} is damaged ({found}) and set aside as {aside.name}",
                RuntimeWarning,
                stacklevel=2,
            )
        return {
            "error": f"{self.folder}: no checkpoint is intact ({'; '.join(damages)}); start a new "
            "run from the last weights you trust"
        }

    @property
    def oldest(self) -> int | None:
        """The oldest step kept; None without any."""
        steps = step_folders(self.folder)
        return int(steps[0].name.removeprefix("step_")) if steps else None

    @torch.no_grad()
    def load_weights(self, shards: "Shards", model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            fill(parameter, shards, f"{WEIGHTS}.{name}", self.ranks)

    @torch.no_grad()
    def load_moments(
        self, shards: "Shards", model: PreTrainedModel, optimizer: torch.optim.Optimizer
    ) -> None:
        kinds = {name.partition(".")[0] for name in shards.names} - {WEIGHTS, RNG}
        for name, parameter in model.named_parameters():
            for kind in sorted(kinds):
                key = f"{kind}.{name}"
                scalar = not shards.shape(key)
                value = torch.tensor(0.0) if scalar else torch.zeros_like(parameter)
                fill(value, shards, key, self.ranks)
                optimizer.state[parameter][kind] = value


class Shards:
    """A checkpoint's tensors, `model.<name>` and `<moment>.<name>`, whoever wrote their rows."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ranks = [safe_open(path, "pt") for path in sorted(folder.glob("rank_*.safetensors"))]
        self.places: dict[str, list[tuple]] = defaultdict(list)  # files, and the names there
        for file in self.ranks:
            for name in file.keys():  # noqa: SIM118
                self.places[name].append((file, name))
        for path in folder.glob("model*.safetensors"):
            file = safe_open(path, "pt")
            for name in file.keys():  # noqa: SIM118
                self.places[f"{WEIGHTS}.{name}"].append((file, name))

    @property
    def names(self) -> set[str]:
        return set(self.places)

    def shape(self, name: str) -> list[int]:
        """Shape of the whole tensor. Raises `ValueError` if it is not in the checkpoint."""
        if name not in self.places:
            raise ValueError(f"{self.folder} lacks {name}: the checkpoint is of another model")
        shapes = [file.get_slice(key).get_shape() for file, key in self.places[name]]
        return shapes[0] and [sum(shape[0] for shape in shapes), *shapes[0][1:]]

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, by default all; a scalar as it is."""
        if not self.shape(name):
            file, key = self.places[name][0]
            return file.get_tensor(key)
        stop, offset, pieces = stop if stop is not None else self.shape(name)[0], 0, []
        for file, key in self.places[name]:
            piece = file.get_slice(key)
            count = piece.get_shape()[0]
            first, last = max(start - offset, 0), min(stop - offset, count)
            if first < last:
                pieces.append(piece[first:last])
            offset += count
        return torch.cat(pieces)


def fill(tensor: Tensor, shards: Shards, key: str, ranks: Ranks) -> None:
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
        start = ranks.rank * -(-len(tensor) // ranks.count)
        own.copy_(shards.rows(key, start, start + len(own)))


def export(run: Path, target: Path, dtype: torch.dtype | None = None) -> Path:
    """Write a run's newest checkpoint as a plain Hugging Face folder, without the run's state.

    `run` is the folder of any run, or of one of its steps. Its weights come in the dtype of their
    training, unless another is asked for. Raises `FileExistsError` if `target` exists, and
    `FileNotFoundError` if there is no checkpoint. Chapter 17.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists: name a new folder, nothing is overwritten")
    folder = resolve(run)
    dtype = dtype or getattr(torch, read_state(folder).get("dtype", "float32"))
    model, tokenizer = load_policy(str(folder), dtype)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return publish_folder(target, write)


def weight_files(model: PreTrainedModel) -> dict[str, dict[str, Tensor]]:
    """Names of files with the tensors of each, a tied one once, filled in order to `FILE_BYTES`."""
    state = model.state_dict()
    saved = {name: p for name, p in model.named_parameters()}
    saved |= {name: b for name, b in model.named_buffers() if name in state}
    parts: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in saved.items():
        if parts[-1] and filled + size_of(tensor) > FILE_BYTES:
            parts.append({})
            filled = 0
        parts[-1][name], filled = tensor, filled + size_of(tensor)
    if len(parts) == 1:
        return {f"{WEIGHTS}.safetensors": parts[0]}
    count = len(parts)
    return {f"{WEIGHTS}-{i:05d}-of-{count:05d}.safetensors": p for i, p in enumerate(parts, 1)}


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor, of all ranks together if it is sharded."""
    return tensor.numel() * tensor.element_size()


def describe_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: dict[str, dict[str, Tensor]],
) -> None:
    """What `from_pretrained` reads besides the weights, which are given by file and name.

    The model's own are not touched: an update may have them gathered just now.
    """
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], torch.float32
    config.save_pretrained(folder)
    if model.generation_config is not None:
        # as it is: whether its settings go together is not for a checkpoint to judge
        model.generation_config.to_json_file(folder / "generation_config.json")
    tokenizer.save_pretrained(folder)
    if len(weights) > 1:
        total = sum(size_of(t) for tensors in weights.values() for t in tensors.values())
        places = {name: file for file, tensors in weights.items() for name in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_json(folder / f"{WEIGHTS}.safetensors.index.json", index)


def own_tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies of a rank's rows of the AdamW moments, and of its RNG state."""
    tensors = {
        f"{kind}.{name}": to_host(local(value))
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }
    return tensors | {RNG: torch.get_rng_state()}


def to_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, which no later update changes."""
    return tensor.detach().to("cpu", copy=True).contiguous()


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


def step_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("step_*") if re.fullmatch(r"step_\d{6,}", p.name))


def rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.safetensors"
