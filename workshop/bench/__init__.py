"""Benchmarks against the library everybody uses and against the machine's own limit."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from rlbook.extras import require
from workshop.bench.record import Skipped, bench_dir, record


def of(module: str, function: str = "run") -> Callable[[str], list | dict]:
    """A function of a part's module, which is imported when it is called."""
    return lambda size: getattr(import_module(f"workshop.bench.{module}"), function)(size)


PARTS = {
    "trl": of("rl_step"),
    "trl_late": of("rl_step", "run_late"),
    "trl_learning": of("rl_step", "run_learning"),
    "versions": of("versions"),
    "sampler": of("sampler"),
    "train_step": of("train_step"),
    "profiles": of("profiles"),
    "head": of("head"),
    "growth": of("growth"),
    "sharing": of("sharing"),
    "gaps": of("gaps"),
    "startup": of("startup"),
    "pipeline": of("pipeline"),
}
ARMS = dict.fromkeys(("trl", "trl_late", "trl_learning"), of("rl_step", "arms"))  # parts that train
SIZES = ("smoke", "full")


def main(
    parts: Sequence[str] = tuple(PARTS), size: str = "full", folder: Path | None = None
) -> list[Path]:
    """Run the parts and write `<part>.csv`, its manifest and its figure; paths of the CSV files.

    A part that cannot run here is named with the reason and left out. "smoke" only shows that a
    part works; its numbers mean nothing. The default folder is `data/results/bench`. Raises
    `ValueError` for an unknown part or size. What a GPU makes of the package is in `bench.gpu`.
    """
    require("scale", "aiohttp", "matplotlib", "pandas")
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"unknown benchmark {sorted(unknown)}: choose from {sorted(PARTS)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}: choose from {SIZES}")
    from workshop.bench.plots import save_figure

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
