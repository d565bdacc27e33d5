"""What runs inside vLLM: weights from a folder, from gloo, or from the memory of the same GPU.

vLLM finds `register` through the entry point `vllm.general_plugins` and calls it in each of its
processes. Each engine below plays the receiving end of a transport; the sending ends are in
`rlbook.scale.train.weights`. They exist because vLLM's own transports need CUDA, and because its
CUDA IPC over HTTP unpickles what it is sent.
"""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rlbook.scale.generate.cuda_ipc import tensor_from_handle
from rlbook.scale.generate.vllm_server import STARTED_BY_US
from rlbook.scale.process import die_with_parent

GLOO_LIMIT = timedelta(seconds=120)


def register() -> None:
    """Make the transports known to vLLM, once per process."""
    for name, engine in ENGINES.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, engine)
    if STARTED_BY_US in os.environ and multiprocessing.parent_process():
        die_with_parent()  # vLLM's engine outlives a killed API server, with all its memory


@dataclass
class NoInit(base.WeightTransferInitInfo):
    pass


class ReloadEngine(base.WeightTransferEngine):
    """An update in vLLM's layerwise reload; subclasses say where the tensors come from."""

    init_info_cls = NoInit

    def init_transfer_engine(self, init_info) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info) -> None:
        self.model.load_weights(self.tensors(update_info))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def tensors(self, update_info) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def shutdown(self) -> None:
        pass


@dataclass
class Folder(base.WeightTransferUpdateInfo):
    path: str


class FileEngine(ReloadEngine):
    """All safetensors files of a folder."""

    update_info_cls = Folder

    def tensors(self, update_info: Folder) -> Iterator[tuple[str, Tensor]]:
        files = sorted(Path(update_info.path).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no safetensors files in {update_info.path}")
        for file in files:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no mapping
                    yield name, tensors.get_tensor(name)


@dataclass
class Meeting(base.WeightTransferInitInfo):
    """Where the trainer (rank 0) waits; workers are `rank_offset` + their rank in the server."""

    host: str
    port: int
    world_size: int
    rank_offset: int


@dataclass
class Announcement(base.WeightTransferUpdateInfo):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooEngine(ReloadEngine):
    """Broadcasts of the trainer, one per tensor, in the announced order."""

    init_info_cls, update_info_cls = Meeting, Announcement
    group: ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        self.group = None
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size
        store = TCPStore(init_info.host, init_info.port, is_master=False, timeout=GLOO_LIMIT)
        self.group = ProcessGroupGloo(
            PrefixStore("weights", store), rank + parallel.rank, init_info.world_size, GLOO_LIMIT
        )

    def tensors(self, update_info: Announcement) -> Iterator[tuple[str, Tensor]]:
        if self.group is None:
            raise RuntimeError("init_weight_transfer_engine comes before an update")
        columns = update_info.names, update_info.dtypes, update_info.shapes
        for name, dtype, shape in zip(*columns, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
            self.group.broadcast([tensor]).wait()
            yield name, tensor

    def shutdown(self) -> None:
        self.group = None


@dataclass
class SharedMemory(base.WeightTransferUpdateInfo):
    """Handles from `generate.cuda_ipc.handle_of`, of tensors on the GPU with UUID `gpu`."""

    gpu: str
    names: list[str]
    handles: list[list]


class IPCEngine(ReloadEngine):
    """Tensors in the memory of a trainer process on the same GPU."""

    update_info_cls = SharedMemory

    def tensors(self, update_info: SharedMemory) -> Iterator[tuple[str, Tensor]]:
        own = str(torch.cuda.get_device_properties(self.device).uuid)
        if own != update_info.gpu:
            raise ValueError(f"weights are on GPU {update_info.gpu}, this worker is on {own}")
        for name, handle in zip(update_info.names, update_info.handles, strict=True):
            yield name, tensor_from_handle(handle, self.device.index)


ENGINES = {"rlbook_file": FileEngine, "rlbook_gloo": GlooEngine, "rlbook_ipc": IPCEngine}
