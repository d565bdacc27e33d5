"""The receiving ends of the weight transports, for the built-in server."""

from datetime import timedelta
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

GLOO_LIMIT = timedelta(seconds=120)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Folder(Strict):
    """Transport "file": weights are in all safetensors files of a folder."""

    path: str


class Meeting(Strict):
    """Transport "gloo": the trainer (rank 0) waits at host:port; a server has one rank."""

    host: str
    port: int
    world_size: int
    rank_offset: int


class Announcement(Strict):
    """Transport "gloo": the tensors that rank 0 is about to broadcast, in this order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]

    @model_validator(mode="after")
    def _consistent(self) -> "Announcement":
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise ValueError("names, dtypes and shapes differ in length")
        for dtype in self.dtypes:
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ValueError(f"unknown dtype {dtype!r}")
        return self


def read_folder(folder: Folder) -> dict[str, Tensor]:
    """The tensors in all safetensors files of a folder, by name."""
    files = sorted(Path(folder.path).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no safetensors files in {folder.path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def join_group(meeting: Meeting) -> ProcessGroupGloo:
    """The process group of this server and the trainer; returns when both are in it."""
    where = meeting.host, meeting.port
    store = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=GLOO_LIMIT)
    shared = PrefixStore("weights", store)
    return ProcessGroupGloo(shared, meeting.rank_offset, meeting.world_size, GLOO_LIMIT)


def receive_broadcasts(
    group: ProcessGroupGloo | None, announced: Announcement
) -> dict[str, Tensor]:
    """The announced tensors, by name."""
    if group is None:
        raise RuntimeError("/init_weight_transfer_engine comes before an update")
    tensors = {}
    for name, dtype, shape in zip(announced.names, announced.dtypes, announced.shapes, strict=True):
        tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast([tensors[name]]).wait()
    return tensors
