"""How weights travel from the trainer to a generator: one class per transport.

All ranks gather the weights first and rank 0 sends them afterwards, so a generator that fails in
the middle of a transfer leaves no rank waiting in a gather. The other transport is in `nccl`.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.layout import Layout, publish_folder
from rlbook.scale.train.parallel import Ranks
from rlbook.training.step import full_tensor

KEPT_FOLDERS = 2  # a generator may be reading the version before


class Transport:
    """Gathers one version of the weights at a time and sends it to any number of generators."""

    device: str | torch.device = "cpu"  # where the gathered weights are kept

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks):
        self.dtype = getattr(torch, config.generate.dtype)
        self.width = config.generate.tensor_parallel
        self.layout, self.ranks = layout, ranks
        self.gathered: int | None = None  # version
        self.weights: dict[str, Tensor] = {}

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Collective: from now on `send` sends these weights."""
        if self.gathered != version:
            self.weights = gather_weights(policy, self.dtype, self.device, keep=self.ranks.first)
            self.gathered = version

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Make sure of a connection; a `fresh` generator knows nothing of an earlier one."""

    async def send(self, client: GeneratorClient) -> None:
        """Send the gathered weights to a generator that waits for them."""
        raise NotImplementedError

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed."""

    def release(self) -> None:
        """Collective: give back memory that training needs."""


class FileTransport(Transport):
    """A folder of safetensors that the generators read; needs a file system they share."""

    @property
    def folder(self) -> Path:
        return self.layout.version(self.gathered)

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Publish the folder, if no other generator's push has."""
        if self.weights:
            publish_folder(self.folder, self.write, durable=False)
            self.weights = {}
            self.prune()

    def write(self, folder: Path) -> None:
        save_file(self.weights, folder / "model.safetensors")

    async def send(self, client: GeneratorClient) -> None:
        await client.reload(str(self.folder.resolve()))

    def prune(self) -> None:
        """Delete all but the last folders, and what killed trainers left unfinished."""
        for partial in self.layout.weights.glob(".v*.partial"):
            shutil.rmtree(partial, ignore_errors=True)
        folders = set(self.layout.weights.glob("v*")) - {self.folder}
        by_age = sorted(folders, key=lambda folder: folder.stat().st_mtime)
        for old in by_age[: len(by_age) - KEPT_FOLDERS + 1]:
            shutil.rmtree(old, ignore_errors=True)


def gather_weights(
    policy: PreTrainedModel, dtype: torch.dtype, device: str | torch.device, keep: bool
) -> dict[str, Tensor]:
    """Copies of all tensors, whole, under their Hugging Face names; empty without `keep`.

    Collective, one tensor at a time, which travels in the generators' dtype already. A tied head
    comes with a name of its own: vLLM on a CPU packs the head's weights and would keep the old
    ones otherwise.
    """
    gathered = {}
    for name, tensor in policy.state_dict().items():
        full = full_tensor(tensor.to(dtype))
        if keep:
            gathered[name] = full.to(device, copy=True).contiguous()
    return gathered
