"""Checkpoints of a sharded policy: a Hugging Face folder, and what each rank holds beside it.

step_000020/model.safetensors, …     the weights, whole, with config and tokenizer: `load_policy`
step_000020/adapter_model.safetensors  or, in their place, an adapter's, as peft has them
step_000020/rank_00000.safetensors   a rank's rows of the AdamW moments
step_000020/state.json               the step, how many ranks wrote, what else the trainer remembers
step_000020/orchestrator.json        the orchestrator's state after the last batch trained
step_000020/checksums.json           SHA-256 of each of the other files
latest                               the newest complete step; moves when all files are durable

The ranks' files are as `torch.distributed.checkpoint` has them, which brings every row to where it
belongs: any number of ranks reads what any number wrote. A step is copied to the host's memory
while training waits, and written by a thread while it goes on.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.durable import CHECKSUMS, checksum, damage, publish_folder, sync_to_disk, write_json
from rlbook.policy.adapters import adapter_weights, save_adapter
from rlbook.scale.batch_log import prune
from rlbook.scale.layout import Layout
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.weights import whole_tensors
from rlbook.training.checkpoint import (
    LATEST,
    complete_steps,
    point_latest,
    read_state,
    save_description,
)

POLL_SECONDS = 0.02
PLACES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # where a rank's rows begin: torch's names
FILE_BYTES = 4 * 2**30  # of weights in one file
Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


class Checkpoints:
    """Saves and restores policy and optimizer of all ranks; every method is collective."""

    def __init__(self, layout: Layout, ranks: Ranks, keep: int = 2):
        self.layout, self.ranks, self.keep = layout, ranks, keep
        self.folder = layout.checkpoints
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.step, self.failures = 0, 0  # the step begun last, or loaded; saves that failed
        self.written: Future[bool] = Future()  # of that step: whether it is durable
        self.written.set_result(True)

    def begin(
        self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict, orchestrator: dict
    ) -> None:
        """Copy step `state["step"]` and have it written once the one before is; states are JSON."""
        self.settle()
        self.step, (model, tokenizer) = state["step"], policy
        rows, places = own_tensors(model, optimizer, self.ranks)
        once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
        adapter = adapter_weights(model)
        kept, alive = adapter.keys() or once, self.ranks.alive
        whole = whole_tensors(model, torch.float32, bool(adapter), alive)
        weights = {name: to_host(t) for name, t in whole if self.ranks.first and name in kept}

        def write(partial: Path) -> dict[str, str]:
            partial.mkdir(parents=True, exist_ok=True)
            files = [partial / f"rank_{self.ranks.rank:05d}.safetensors"]
            save_file(rows, files[0], {PLACES: json.dumps(places)})
            sync_to_disk(files[0])
            if self.ranks.first:
                if adapter:
                    save_adapter(model, partial, weights)
                else:
                    save_torch_state_dict(weights, partial, max_shard_size=FILE_BYTES)
                save_description(partial, model, tokenizer)
                write_json(partial / "state.json", {**state, "ranks": self.ranks.count})
                write_json(partial / "orchestrator.json", orchestrator)
                files += [f for f in partial.rglob("*") if not f.name.startswith("rank_")]
            return {str(f.relative_to(partial)): checksum(f) for f in files if f.is_file()}

        self.written = self.thread.submit(self.complete, write)

    def complete(self, write: Callable[[Path], dict[str, str]]) -> bool:
        """Whether the step is durable once every rank has done its part; why not, in a warning."""
        partial, words = self.folder / f".step_{self.step:06d}.partial", self.ranks.background
        part: dict[str, str] | str
        try:
            part = write(partial)
        except Exception as error:
            part = str(error)
        parts, durable = self.ranks.collect(part, words), False
        if self.ranks.first:
            try:
                self.publish(partial, parts)
                durable = True
            except Exception as error:
                self.failures += 1
                text = f"checkpoint {self.step} is not written, the one before stays the newest"
                warnings.warn(f"{text}: {error}", RuntimeWarning, stacklevel=2)
            shutil.rmtree(partial, ignore_errors=True)
        return self.ranks.share(durable, words)

    def publish(self, partial: Path, parts: Sequence[dict[str, str] | str]) -> None:
        """Complete the folder, name it, move `latest`; delete what that makes superfluous.

        `parts` are the checksums of each rank's files, or what kept it from writing them.
        """
        sums: dict[str, str] = {}
        for part in parts:
            if isinstance(part, str):
                raise OSError(part)
            sums |= part
        write_json(partial / CHECKSUMS, sums)
        final = publish_folder(self.folder / f"step_{self.step:06d}", partial.replace)
        point_latest(final)
        for old in complete_steps(self.folder)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        oldest, *_ = complete_steps(self.folder)
        prune(self.layout, before=int(oldest.name.removeprefix("step_")))

    def settle(self) -> bool:
        """Wait for the step begun last; whether it is durable on every rank."""
        while not wait([self.written], POLL_SECONDS).done:
            self.ranks.alive()
        return self.written.result()

    @property
    def failed(self) -> bool:
        """Whether the step begun last is known not to be durable."""
        return self.written.done() and not self.written.result()

    def load(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict | None:
        """Restore the newest intact checkpoint in place; returns its state, None without any.

        Raises `ValueError` if it is of another model, or if there are some and none is intact.
        """
        if (folder := self.newest_intact()) is None:
            return None
        get_optimizer_state_dict(model, optimizer)  # torch makes the moments, where they belong
        if not any(name.startswith("exp_avg.") for name in stored_names(folder)):
            optimizer.state.clear()  # it was saved before the first update
        weights = adapter_weights(model) or dict(model.named_parameters())
        tensors = weights | moments_of(model, optimizer)
        read_tensors(tensors, folder, self.ranks)
        state = read_state(folder)
        self.step = state["step"]
        return state

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
        for folder in reversed(ranks.share(complete_steps(self.folder))):
            found = [d for d in ranks.collect(damage(folder, ranks.rank, ranks.count)) if d]
            if not found:
                if damages and ranks.first:
                    point_latest(folder)
                return folder
            reason, aside = "; ".join(found), folder.with_name(f"{folder.name}.damaged")
            damages.append(f"{folder.name}: {reason}")
            if ranks.first:
                shutil.rmtree(aside, ignore_errors=True)  # it may have been damaged before
                folder.rename(aside)
                text = f"{folder} is damaged ({reason}) and set aside as {aside.name}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        if ranks.share((self.folder / LATEST).exists()):  # there were some, at this start or before
            what = "; ".join(damages) or "those there were are set aside as .damaged"
            raise ValueError(
                f"{self.folder}: no checkpoint is intact ({what}); start a new run from the last "
                "weights you trust"
            )
        return None


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
    """Copies of this rank's rows of the moments, and the place of each one's first element.

    A scalar is written by rank 0, no rows by nobody, of several copies the first one.
    """
    rows, places = {}, {}
    for name, value in moments_of(model, optimizer).items():
        own, start = value.to_local() if isinstance(value, DTensor) else value, [0] * value.ndim
        if value.ndim:
            start[0] = ranks.rank * -(-len(value) // ranks.shards)
        if own.numel() and (ranks.rank < ranks.shards if value.ndim else ranks.first):
            rows[name], places[name] = to_host(own), {OFFSETS: start}
    return rows, places


def to_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, which no later update changes."""
    return tensor.detach().to("cpu", copy=True).contiguous()
