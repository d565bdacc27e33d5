"""Benchmarks against the library everybody uses and against the machine's own limit."""

from collections.abc import Sequence
from pathlib import Path

from rlbook.bench import head, sampler, train_step
from rlbook.bench.record import record

PARTS = {
    "sampler": sampler.run,
    "sampler_profile": sampler.run_profile,
    "train_step": train_step.run,
    "head": head.run,
}
SIZES = ("smoke", "full")


def main(
    parts: Sequence[str] = tuple(PARTS), size: str = "full", folder: Path | None = None
) -> list[Path]:
    """Run the parts and write `<part>.csv` with its manifest; the paths of the CSV files.

    "smoke" only shows that a part works; its numbers mean nothing. The default folder is
    `data/results/bench`. Raises `ValueError` for an unknown part or size.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"unknown benchmark {sorted(unknown)}: choose from {sorted(PARTS)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}: choose from {SIZES}")
    return [record(part, PARTS[part](size), size, folder) for part in parts]
