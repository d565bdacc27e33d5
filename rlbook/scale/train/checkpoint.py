"""Checkpoints of a sharded policy: a Hugging Face folder, and what each rank holds beside it.

step_000020/model.safetensors, …     the weights, whole, with config and tokenizer: `load_policy`
step_000020/rank_00000.safetensors   a rank's rows of the AdamW moments, its RNG state
step_000020/state.json               the step, how many ranks wrote, what else the trainer remembers
step_000020/orchestrator.json        the orchestrator's state after the last batch trained
step_000020/checksums.json           SHA-256 of each of the other files
latest                               the newest complete step; moves when all files are durable

The ranks' files are as `torch.distributed.checkpoint` has them, which brings every row to where it
belongs: any number of ranks reads what any number wrote. A step is copied to the host's memory
while training waits, and written by a thread while it goes on.
"""

import copy
import json
import re
import shutil
import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.durable import (
    CHECKSUMS,
    checksum,
    damage,
    publish_folder,
    replace_text,
    sync_to_disk,
    write_json,
)
from rlbook.policy import load_policy
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.weights import whole_tensors
from rlbook.training.checkpoint import LATEST, read_state, resolve

RNG = "rng"
POLL_SECONDS = 0.02
PLACES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # where a rank's rows begin: torch's names
FILE_BYTES = 4 * 2**30  # of weights in one file
Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Result = TypeVar("Result")


class Checkpoints:
    """Saves and restores policy, optimizer and RNG of all ranks; every method is collective."""

    def __init__(self, folder: Path, ranks: Ranks, keep: int = 2):
        self.folder, self.ranks, self.keep = folder, ranks, keep
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        # A step that the thread is writing, where, and what will be its files' checksums.
        self.writing: tuple[int, Path, Future[dict[str, str]]] | None = None

    def begin(
        self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict, orchestrator: dict
    ) -> None:
        """Copy step `state["step"]` and have it written; `settle` the one before first.

        `policy` is the model and its tokenizer, `state` and the orchestrator's state are JSON.
        """
        step, (model, tokenizer) = state["step"], policy
        partial = self.folder / f".step_{step:06d}.partial"
        rows, places = own_tensors(model, optimizer, self.ranks)
        once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
        whole = whole_tensors(model, torch.float32, self.ranks.alive)
        weights = {name: to_host(t) for name, t in whole if self.ranks.first and name in once}

        def write() -> dict[str, str]:
            partial.mkdir(parents=True, exist_ok=True)
            files = [partial / rank_file(self.ranks.rank)]
            save_file(rows, files[0], {PLACES: json.dumps(places)})
            sync_to_disk(files[0])
            if self.ranks.first:
                save_torch_state_dict(weights, partial, max_shard_size=FILE_BYTES)
                describe_model(partial, model, tokenizer)
                write_json(partial / "state.json", {**state, "ranks": self.ranks.count})
                write_json(partial / "orchestrator.json", orchestrator)
                files += [f for f in partial.rglob("*") if not f.name.startswith("rank_")]
            return {str(f.relative_to(partial)): checksum(f) for f in files if f.is_file()}

        self.writing = step, partial, self.thread.submit(write)

    def settle(self, wait: bool) -> bool | None:
        """Whether the step begun last is durable on every rank; None as long as nobody knows.

        What keeps it from being written (a full disk) is named in a warning, and the checkpoint
        before stays the newest.
        """
        if self.writing is None:
            return None
        step, partial, written = self.writing
        while not self.ranks.all(written.done()):
            if not wait:
                return None
            self.ranks.alive()
            time.sleep(POLL_SECONDS)
        sums, durable = self.ranks.collect(attempt(step, written.result)), False
        if self.ranks.first:
            if None not in sums:
                known = ChainMap(*sums)
                durable = bool(attempt(step, lambda: self.publish(step, partial, known)))
            shutil.rmtree(partial, ignore_errors=True)
            for old in complete_steps(self.folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        self.writing = None
        return self.ranks.share(durable)

    def publish(self, step: int, partial: Path, sums: Mapping[str, str]) -> Path:
        """Complete the folder, give it its name and move `latest` to it."""
        if missing := [name for name in sums if not (partial / name).is_file()]:
            raise OSError(
                f"{self.folder} lacks {', '.join(missing)}: the run folder has to be on a file "
                "system that all trainer nodes share"
            )
        write_json(partial / CHECKSUMS, dict(sums))
        final = publish_folder(self.folder / f"step_{step:06d}", partial.replace)
        replace_text(self.folder / LATEST, f"{final.name}\n")
        return final

    def load(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict | None:
        """Restore the newest intact checkpoint in place; returns its state, None without any.

        Raises `ValueError` if it is of another model, or if there are some and none is intact.
        """
        if (folder := self.newest_intact()) is None:
            return None
        get_optimizer_state_dict(model, optimizer)  # torch makes the moments, where they belong
        if not any(name.startswith("exp_avg.") for name in stored_names(folder)):
            optimizer.state.clear()  # it was saved before the first update
        tensors = dict(model.named_parameters()) | moments_of(model, optimizer)
        read_tensors(tensors, folder, self.ranks)
        if (own := folder / rank_file(self.ranks.rank)).is_file():
            with safe_open(own, "pt") as file:
                torch.set_rng_state(file.get_tensor(RNG))
        return read_state(folder)

    def newest_intact(self) -> Path | None:
        """The newest intact step; those that are not are set aside and named in a warning.

        Every rank looks at its share of the files. The batches since the oldest step are still in
        the log: they are trained once more.
        """
        ranks = self.ranks
        damages: list[str] = []
        if ranks.first:
            for unfinished in self.folder.glob(".step_*.partial"):
                shutil.rmtree(unfinished, ignore_errors=True)
        for name in ranks.share([path.name for path in reversed(complete_steps(self.folder))]):
            folder = self.folder / name
            found = [d for d in ranks.collect(damage(folder, ranks.rank, ranks.count)) if d]
            if not found:
                if damages and ranks.first:
                    replace_text(self.folder / LATEST, f"{name}\n")
                return folder
            reason, aside = "; ".join(found), folder.with_name(f"{name}.damaged")
            damages.append(f"{name}: {reason}")
            if ranks.first:
                shutil.rmtree(aside, ignore_errors=True)  # it may have been damaged before
                folder.rename(aside)
                text = f"{folder} is damaged ({reason}) and set aside as {aside.name}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        if damages:
            raise ValueError(
                f"{self.folder}: no checkpoint is intact ({'; '.join(damages)}); start a new run "
                "from the last weights you trust"
            )
        return None

    @property
    def oldest(self) -> int | None:
        """The oldest step kept; None without any."""
        steps = step_folders(self.folder)
        return int(steps[0].name.removeprefix("step_")) if steps else None


def read_tensors(wanted: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Fill tensors in place, each rank its own rows, from the safetensors of a folder; collective.

    Raises `ValueError` for a tensor that is not there, or has another shape.
    """
    reader = dcp.HuggingFaceStorageReader(str(folder))
    try:
        with torch.no_grad():
            dcp.load(wanted, storage_reader=reader, process_group=ranks.words)
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise ValueError(f"{folder} is of another model: {reason}") from None


def stored_names(folder: Path) -> set[str]:
    """Of the tensors in a folder's safetensors."""
    return set(dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)


def export(run: Path, target: Path, dtype: torch.dtype | None = None) -> Path:
    """Write a run's newest checkpoint as a plain Hugging Face folder, without the run's state.

    `run` is the folder of any run, or of one of its steps. Its weights come in the dtype of their
    training, unless another is asked for. Raises `FileExistsError` if `target` exists, and
    `FileNotFoundError` if there is no checkpoint. Chapter 17.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists: name a new folder, nothing is overwritten")
    folder = resolve(run)
    trained = getattr(torch, read_state(folder).get("dtype", "float32"))
    policy = load_policy(str(folder), dtype or trained)
    return publish_folder(target, lambda empty: [part.save_pretrained(empty) for part in policy])


def describe_model(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """What `from_pretrained` reads besides the weights, which an update may gather just now."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], torch.float32
    config.save_pretrained(folder)
    if model.generation_config is not None:
        # as it is: whether its settings go together is not for a checkpoint to judge
        model.generation_config.to_json_file(folder / "generation_config.json")
    tokenizer.save_pretrained(folder)


def moments_of(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of AdamW by kind and name, sharded as the parameters are."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def own_tensors(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> tuple[dict[str, Tensor], dict[str, dict]]:
    """Copies of what this rank has to write, and the place of each one's first element.

    Its rows of the moments, its RNG state; a scalar is written by rank 0, no rows by nobody.
    """
    rows, places = {RNG: torch.get_rng_state()}, {RNG: {OFFSETS: [0]}}
    for name, value in moments_of(model, optimizer).items():
        own, start = value.to_local() if isinstance(value, DTensor) else value, [0] * value.ndim
        if value.ndim:
            start[0] = ranks.rank * -(-len(value) // ranks.count)
        if own.numel() and (value.ndim or ranks.first):
            rows[name], places[name] = to_host(own), {OFFSETS: start}
    return rows, places


def to_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, which no later update changes."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def attempt(step: int, stage: Callable[[], Result]) -> Result | None:
    """The result of one stage of a save; None, and a warning, if it fails."""
    try:
        return stage()
    except (OSError, SafetensorError) as error:
        text = f"checkpoint {step} is not written, the one before stays the newest: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


def step_folders(folder: Path) -> list[Path]:
    """Folders of checkpoints, complete or not, oldest first."""
    return sorted(p for p in folder.glob("step_*") if re.fullmatch(r"step_\d{6,}", p.name))


def complete_steps(folder: Path) -> list[Path]:
    """Those up to the one that `latest` names; none without it."""
    if not (folder / LATEST).is_file():
        return []
    newest = (folder / LATEST).read_text().strip()
    return [path for path in step_folders(folder) if path.name <= newest]


def rank_file(rank: int) -> str:
    """Where rank `rank` writes its part."""
    return f"rank_{rank:05d}.safetensors"
