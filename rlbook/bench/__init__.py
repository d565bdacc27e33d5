"""Benchmarks against the library everybody uses and against the machine's own limit."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlbook.extras import require

require("scale", "aiohttp", "ipywidgets", "matplotlib", "pandas", "scipy")

from rlbook.bench import growth, head, pipeline, profiles, rl_step, sampler, startup, train_step
from rlbook.bench.figures import save_figure
from rlbook.bench.record import Skipped, bench_dir, record

PARTS = {
    "trl": rl_step.run,
    "trl_learning": rl_step.run_learning,
    "sampler": sampler.run,
    "train_step": train_step.run,
    "profiles": profiles.run,
    "head": head.run,
    "growth": growth.run,
    "startup": startup.run,
    "pipeline": pipeline.run,
}
ARMS = {"trl": rl_step.arms, "trl_learning": rl_step.arms}  # parts that train, as data
SIZES = ("smoke", "full")


def main(
    parts: Sequence[str] = tuple(PARTS), size: str = "full", folder: Path | None = None
) -> list[Path]:
    """Run the parts and write `<part>.csv`, its manifest and its figure; paths of the CSV files.

    A part that cannot run here is named with the reason and left out. "smoke" only shows that a
    part works; its numbers mean nothing. The default folder is `data/results/bench`. Raises
    `ValueError` for an unknown part or size.
    """
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"unknown benchmark {sorted(unknown)}: choose from {sorted(PARTS)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}: choose from {SIZES}")
    written = []
    for part in parts:
        settings = {"size": size, **({"arms": ARMS[part](size)} if part in ARMS else {})}
        try:
            path = record(part, partial(PARTS[part], size), folder or bench_dir(), **settings)
        except Skipped as reason:
            print(f"skipped {part}: {reason}")
            continue
        save_figure(path)
        written.append(path)
    return written
