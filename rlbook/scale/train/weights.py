"""How weights travel from the trainer to a generator: one class per transport.

All ranks gather the weights first and rank 0 sends them afterwards, so a generator that fails in
the middle of a transfer leaves no rank waiting. The receiving ends are in `receivers` (built-in
server) and `vllm_plugin`. nccl and ipc have not run yet: they need CUDA.
"""

import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo
from transformers import PreTrainedModel

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.layout import Layout, publish_folder
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.rendezvous import LIMIT, both, free_port, listening_store, own_address
from rlbook.training.step import full_tensor

KEPT_FOLDERS = 2  # a generator may be reading the version before


class Transport:
    """Gathers one version of the weights at a time and sends it to any number of generators."""

    def __init__(self, config: ScaleConfig, layout: Layout, ranks: Ranks, urls: Sequence[str] = ()):
        self.dtype = getattr(torch, config.generate.dtype)
        self.width = config.generate.tensor_parallel
        self.layout, self.ranks, self.urls = layout, ranks, list(urls)
        self.weights: dict[str, Tensor] = {}

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        """Collective: from now on `send` sends these weights."""
        self.weights = gather_weights(policy, self.dtype, "cpu", keep=self.ranks.first)

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Make sure of a connection; a `fresh` generator knows nothing of an earlier one."""

    async def send(self, client: GeneratorClient) -> None:
        """Send the gathered weights to a generator that has an update open."""
        raise NotImplementedError

    def forget(self, client: GeneratorClient) -> None:
        """Drop a connection that failed."""


class FileTransport(Transport):
    """A folder of safetensors that the generators read; needs a file system they share."""

    folder: Path

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        super().gather(policy, version)
        self.folder = self.layout.version(version)

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        """Publish the folder, if no other generator's push has."""
        if self.weights:
            publish_folder(self.folder, self.write, durable=False)
            self.weights = {}
            self.prune()

    def write(self, folder: Path) -> None:
        save_file(self.weights, folder / "model.safetensors")

    async def send(self, client: GeneratorClient) -> None:
        await client.update({"path": str(self.folder.resolve())})

    def prune(self) -> None:
        """Delete all but the last folders, and what killed trainers left unfinished."""
        for partial in self.layout.weights.glob(".v*.partial"):
            shutil.rmtree(partial, ignore_errors=True)
        folders = set(self.layout.weights.glob("v*")) - {self.folder}
        by_age = sorted(folders, key=lambda folder: folder.stat().st_mtime)
        for old in by_age[: len(by_age) - KEPT_FOLDERS + 1]:
            shutil.rmtree(old, ignore_errors=True)


class GroupTransport(Transport):
    """Broadcasts in a process group of rank 0 and one generator, made at the first transfer.

    A group per generator: one that is started again remakes its own and disturbs no other.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.groups: dict[str, Any] = {}

    async def connect(self, client: GeneratorClient, fresh: bool) -> None:
        if not fresh and client.url in self.groups:
            return
        self.forget(client)
        info, meet = self.meeting(own_address(client.url), 1 + self.width)
        self.groups[client.url] = await both(meet, client.init_transfer(info))

    async def send(self, client: GeneratorClient) -> None:
        group = self.groups[client.url]
        await both(lambda: self.broadcast(group), client.update(self.announcement()))

    def forget(self, client: GeneratorClient) -> None:
        self.groups.pop(client.url, None)

    def meeting(self, host: str, world_size: int) -> tuple[dict, Callable[[], Any]]:
        """What the generator is told, and what rank 0 does meanwhile to make the group."""
        raise NotImplementedError

    def broadcast(self, group: Any) -> None:
        raise NotImplementedError

    def announcement(self) -> dict:
        """The update's tensors, in the order in which they are broadcast."""
        return {
            "names": list(self.weights),
            "dtypes": [dtype_name(t) for t in self.weights.values()],
            "shapes": [list(t.shape) for t in self.weights.values()],
        }


class GlooTransport(GroupTransport):
    """Broadcasts over TCP from CPU memory: for generators that share no file system."""

    def meeting(self, host: str, world_size: int) -> tuple[dict, Callable[[], Any]]:
        store = listening_store(host, world_size)
        info = {"host": host, "port": store.port, "world_size": world_size, "rank_offset": 1}

        def meet() -> ProcessGroupGloo:
            return ProcessGroupGloo(PrefixStore("weights", store), 0, world_size, LIMIT)

        return info, meet

    def broadcast(self, group: ProcessGroupGloo) -> None:
        for tensor in self.weights.values():
            group.broadcast([tensor]).wait()


class NCCLTransport(GroupTransport):
    """vLLM's own transport from GPU to GPU; needs vLLM in the trainer's environment as well."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        if find_spec("vllm") is None:
            raise ValueError(
                "generate.transport nccl needs vLLM in the trainer's own environment: install it "
                "there, or set the transport to file or gloo"
            )

    def meeting(self, host: str, world_size: int) -> tuple[dict, Callable[[], Any]]:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        where = {"master_address": host, "master_port": free_port(host), "world_size": world_size}

        def meet() -> Any:
            torch.cuda.set_device(self.ranks.device)  # a property of the thread
            return trainer_init(where)

        return where | {"rank_offset": 1, "packed": False}, meet

    def broadcast(self, group: Any) -> None:
        torch.cuda.set_device(self.ranks.device)
        stream = torch.cuda.current_stream()
        for tensor in self.weights.values():
            group.broadcast(tensor.to(self.ranks.device), src=0, stream=stream)
        stream.synchronize()

    def announcement(self) -> dict:
        announced = super().announcement()
        announced["dtype_names"] = announced.pop("dtypes")
        return announced


class IPCTransport(Transport):
    """Handles of the copy that the rank on the generator's GPU keeps; generator i is on GPU i."""

    infos: list[dict]  # of every rank

    def gather(self, policy: PreTrainedModel, version: int) -> None:
        from rlbook.scale.generate.cuda_ipc import handle_of

        self.weights = {}  # free the version before, which no generator reads any more
        self.weights = gather_weights(policy, self.dtype, self.ranks.device, keep=True)
        info = {
            "gpu": str(torch.cuda.get_device_properties(self.ranks.device).uuid),
            "names": list(self.weights),
            "handles": [handle_of(tensor) for tensor in self.weights.values()],
        }
        torch.cuda.synchronize()
        self.infos = self.ranks.collect(info)

    async def send(self, client: GeneratorClient) -> None:
        await client.update(self.infos[self.urls.index(client.url)])


def gather_weights(
    policy: PreTrainedModel, dtype: torch.dtype, device: str | torch.device, keep: bool
) -> dict[str, Tensor]:
    """Copies of all tensors, whole, under their Hugging Face names; empty without `keep`.

    Collective, one tensor at a time. A tied head comes with a name of its own: vLLM on a CPU
    packs the head's weights and would keep the old ones otherwise.
    """
    gathered = {}
    for name, tensor in policy.state_dict().items():
        full = full_tensor(tensor)
        if keep:
            gathered[name] = full.to(device, dtype, copy=True).contiguous()
    return gathered


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


TRANSPORTS = {
    "file": FileTransport,
    "gloo": GlooTransport,
    "nccl": NCCLTransport,
    "ipc": IPCTransport,
}
