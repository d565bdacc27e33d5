"""How weights travel from the trainer to a generator: one class per transport.

Nothing is ever whole on a rank but a tensor at a time. Gathering it takes all ranks, so whoever
stops in the middle (a full disk, a generator that dies) goes through the rest all the same: the
others wait in these gathers. The other transport is in `nccl`.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.durable import publish_folder
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.layout import Layout
from rlbook.scale.train.parallel import Ranks
from rlbook.training.step import full_tensor

KEPT_FOLDERS = 2  # a generator may be reading the version before
FILE_BYTES = 2 * 2**30  # of weights in one file: as much of the host's memory is taken


class Transport:
    """Brings one version of the weights at a time to any number of generators."""

    turn: AbstractAsyncContextManager = nullcontext()  # to be held by whoever connects and sends

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        self.dtype = getattr(torch, str(config.generate.dtype))
        self.width = config.generate.tensor_parallel
        self.layout, self.ranks = layout, ranks

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Collective: from now on `send` sends these weights."""
        raise NotImplementedError

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Make sure of a connection; a `fresh` generator knows nothing of an earlier one."""

    async def send(self, client: GeneratorClient) -> None:
        """Send the weights to a generator that waits for them."""
        raise NotImplementedError

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed."""

    def follow(self) -> None:
        """What the other ranks do while rank 0 sends, until it `release`s them."""

    def release(self) -> None:
        """Rank 0 has sent what it had to send."""


class FileTransport(Transport):
    """A folder of safetensors that the generators read; needs a file system they share."""

    gathered = -1  # version
    error: Exception | None = None  # that kept it from being written

    @property
    def folder(self) -> Path:
        """Where the gathered version lies."""
        return self.layout.version(self.gathered)

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Collective; rank 0 publishes the folder. A full disk is an error of `connect`."""
        if self.gathered == version and not self.ranks.share(bool(self.error)):
            return
        self.gathered, self.error = version, None
        tensors = whole_tensors(policy, self.dtype, self.ranks.alive)
        if self.ranks.first:
            try:
                publish_folder(self.folder, partial(write_files, tensors), durable=False)
                for partly in self.layout.weights.glob(".v*.partial"):  # of a killed trainer
                    shutil.rmtree(partly, ignore_errors=True)
                others = set(self.layout.weights.glob("v*")) - {self.folder}
                for old in sorted(others, key=lambda v: v.stat().st_mtime)[: 1 - KEPT_FOLDERS]:
                    shutil.rmtree(old, ignore_errors=True)
            except (OSError, SafetensorError) as error:
                self.error = error
        for _ in tensors:
            pass

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Nothing to connect; raises what kept the folder from being written."""
        if self.error:
            raise self.error

    async def send(self, client: GeneratorClient) -> None:
        """Have a generator load the folder."""
        await client.reload(str(self.folder.resolve()))


def whole_tensors(
    policy: PreTrainedModel, dtype: torch.dtype, alive: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, Tensor]]:
    """All tensors, whole, one after the other, under their Hugging Face names; collective.

    They travel in the generators' dtype already. A tied head comes with a name of its own: vLLM on
    a CPU packs the head's weights and would keep the old ones otherwise.
    """
    for name, tensor in policy.state_dict().items():
        alive()
        yield name, full_tensor(tensor.to(dtype)).contiguous()


def write_files(tensors: Iterator[tuple[str, Tensor]], folder: Path) -> None:
    """Fill a folder with safetensors; a file is written as soon as `FILE_BYTES` are together."""
    part: dict[str, Tensor] = {}
    written = size = 0
    for name, tensor in tensors:
        part[name] = tensor.to("cpu", copy=True)
        size += tensor.nbytes
        if size >= FILE_BYTES:
            save_file(part, folder / f"model-{written:05d}.safetensors")
            part, size, written = {}, 0, written + 1
    if part:
        save_file(part, folder / f"model-{written:05d}.safetensors")
