"""What a process of a run finds on its node, as JSON: `… <scratch folder> <policy> <device>`.

Started once for every node, by `rlbook scale … --check-nodes`; all of them meet.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from huggingface_hub import snapshot_download

import rlbook
from rlbook.durable import checksum
from rlbook.policy.loading import policy_source
from rlbook.scale.process import waited
from rlbook.scale.train.parallel import join_process_group

PACKAGES = "torch transformers tokenizers safetensors numpy peft pydantic aiohttp ray vllm"
VARIABLES = ("CUDA_", "GLOO_", "HF_", "NCCL_", "PYTORCH_", "TORCH_", "VLLM_")
UNSEEN = ("_TOKEN", "_VISIBLE_DEVICES", "_SOCKET_IFNAME")  # a secret, and what differs rightly
MEET = timedelta(minutes=3)
SEEN_WITHIN = 10.0  # seconds for a file to be seen by all
CLOCK_ROUNDS = 5
ELEMENTS, SUMS = 2**24, 4  # of an all-reduce: 64 MB; the first one finds the way
TAKEN = 2 * 1024  # MiB of a GPU that is in use


def look_around(scratch: Path, policy: str, device: str) -> None:
    """Print by check its value, or what is wrong; collective. The last line counts."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}

    def note(check: str, look: Callable[[], Any]) -> bool:
        try:
            values[check] = look()
        except Exception as error:
            wrong[check] = (str(error) or type(error).__name__).splitlines()[0]
        return check not in wrong

    note("python", platform.python_version)
    note("packages", packages)
    note("environment", environment)
    note("model", lambda: fingerprint(policy))
    note("GPU", lambda: gpus(device))
    note("memory", lambda: psutil.virtual_memory().available)
    note("disk", lambda: shutil.disk_usage(scratch).free)
    here = note("run folder", lambda: leave_word(scratch, os.environ.get("RANK", "0")))
    if note("all-reduce", lambda: join_process_group("cpu", MEET)):
        note("clock", clock)
        if here:
            note("run folder", lambda: words_seen(scratch, dist.get_world_size()))
        hung = {"all-reduce": "it has not ended"}  # NCCL ends a process that waits too long
        print(json.dumps({"values": values, "wrong": wrong | hung}), flush=True)
        note("all-reduce", lambda: all_reduce(device))
    print(json.dumps({"values": values, "wrong": wrong}), flush=True)


def packages() -> dict[str, str]:
    """Versions of what a run imports, and which state of this package it is."""
    own = sha256()
    for file in sorted(Path(rlbook.__file__).parent.rglob("*.py")):
        own.update(file.read_bytes())
    known = {found.name: found.version for found in distributions()}
    return {n: known[n] for n in PACKAGES.split() if n in known} | {"rlbook": own.hexdigest()[:8]}


def environment() -> dict[str, str]:
    """The variables that decide how libraries work."""
    known = os.environ.items()
    return {n: v for n, v in known if n.startswith(VARIABLES) and not n.endswith(UNSEEN)}


def fingerprint(policy: str) -> str:
    """Of a model that is at hand without a download: its configuration and its size."""
    source = policy_source(policy)
    if not isinstance(source, Path):
        try:
            source = Path(snapshot_download(source, local_files_only=True))
        except OSError:
            raise OSError(f"{policy} is not in the cache here: `hf download {policy}`") from None
    size = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    return f"{checksum(source / 'config.json')[:6]} {size / 1e9:.3g} GB"


def gpus(device: str) -> dict[str, str] | None:
    """What the driver says of the GPUs; None where the run needs none, or the node has none."""
    if device != "cuda" or not torch.cuda.is_available():
        return None
    query = "--query-gpu=name,driver_version,memory.used"
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rows = [line.split(", ") for line in said.strip().splitlines()]
    for number, (*_, used) in enumerate(rows):
        if used.isdecimal() and int(used) > TAKEN:
            raise OSError(f"{int(used) / 1024:.0f} GB of GPU {number} are taken already")
    names = f"{len(rows)} × {rows[0][0]}"
    return {"GPUs": names, "driver": rows[0][1], "CUDA": torch.version.cuda or ""}


def leave_word(scratch: Path, name: str) -> None:
    """Write a file into the folder that the launcher has made."""
    if not waited(scratch.is_dir, SEEN_WITHIN):
        raise OSError(f"what the launcher has made in {scratch.parent} is not there")
    (scratch / name).write_text(name)


def words_seen(scratch: Path, count: int) -> str:
    """Wait for the files of all processes."""
    if not waited(lambda: len([*scratch.iterdir()]) >= count, SEEN_WITHIN):
        seen = len([*scratch.iterdir()])
        raise OSError(f"only {seen} of {count} nodes' files are seen in {scratch.parent}")
    return "shared"


def clock() -> list[float]:
    """The time here, several times, each as soon as all have come together."""
    times = []
    for _ in range(CLOCK_ROUNDS):
        dist.barrier()
        times.append(time.time())
    return times


def all_reduce(device: str) -> float | None:
    """GB per second that pass each process in a sum of 64 MB, by NCCL between GPUs, else by gloo.

    As NCCL's own tests count: 2 (n − 1) / n of its size, over the seconds. None for one alone.
    """
    able: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(able, device == "cuda" and torch.cuda.is_available())
    ranks = [rank for rank, has in enumerate(able) if has or not any(able)]
    group = dist.new_group(ranks, MEET, "nccl" if any(able) else "gloo")
    if dist.get_rank() not in ranks or len(ranks) == 1:
        return None
    place = f"cuda:{int(os.environ['LOCAL_RANK'])}" if any(able) else "cpu"
    seconds = []
    for _ in range(SUMS):
        tensor, start = torch.ones(ELEMENTS, device=place), time.perf_counter()
        dist.all_reduce(tensor, group=group)
        total = float(tensor[-1])
        seconds.append(time.perf_counter() - start)
        if total != len(ranks):
            raise OSError(f"the sum of {len(ranks)} ones came as {total:g}")
    return 2 * (len(ranks) - 1) / len(ranks) * tensor.nbytes / min(seconds[1:]) / 1e9


if __name__ == "__main__":
    look_around(Path(sys.argv[1]), *sys.argv[2:4])
    os._exit(0)  # whoever waits for another in vain is not waited for
