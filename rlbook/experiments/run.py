"""Running the reference experiments: one process per core, a finished run is never repeated.

`python -m rlbook experiments reuse` runs what is missing and writes `data/results/reuse.csv` (a row
per step), `reuse_eval.csv` (a row per run, on held-out prompts), `reuse_sweep.csv` (the same for
what was tried before an arm was chosen) and `reuse.manifest.json`. Chapters draw their evidence
from these files.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from rlbook.experiments.catalogue import EXPERIMENTS
from rlbook.experiments.design import Arm, Experiment, Variant
from rlbook.manifest import SUFFIX, manifest, run_as_data, write_manifest
from rlbook.paths import data_dir
from rlbook.policy import set_threads
from rlbook.training import RunConfig, RunLog, read_jsonl, write_csv


@dataclass(frozen=True)
class Run:
    """One training run of an experiment; its log and its record lie under `runs/experiments`."""

    experiment: str
    arm: Arm
    variant: Variant
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """Its first columns in a table."""
        return {"arm": self.arm.label, **self.variant.values, "seed": self.seed}

    @property
    def folder(self) -> Path:
        parts = [
            self.arm.label,
            *(f"{name} {value}" for name, value in self.variant.values.items()),
        ]
        return seed_folder(Path("runs/experiments") / self.experiment, " ".join(parts), self.seed)

    @property
    def record_path(self) -> Path:
        return self.folder / "run.json"

    @property
    def record(self) -> dict[str, Any]:
        """Settings, seconds and evaluation of a finished run."""
        return json.loads(self.record_path.read_text())

    @property
    def finished(self) -> bool:
        """Whether it has ended, with the settings that the variant has now."""
        return self.record_path.is_file() and same_settings(self.record, self.variant.config)


def seed_folder(root: Path, label: str, seed: int) -> Path:
    """Where a run is kept."""
    return root / "".join(c if c.isalnum() else "-" for c in label) / f"seed{seed}"


def same_settings(record: dict[str, Any], config: RunConfig) -> bool:
    """Whether a run was made with these; a setting that did not exist then has its default."""
    return type(config)(**record["config"]).to_dict() == config.to_dict()


def run_experiment(name: str, seeds: Iterable[int] | None = None, workers: int = 0) -> Path:
    """Run the missing runs of an experiment and write its tables; returns the CSV's path.

    `workers` processes (0: one per core), each on one thread. A finished run is never repeated,
    unless its settings have changed since. Raises `ValueError` for an unknown name.
    """
    experiment, facts, start = find_experiment(name), manifest(), time.perf_counter()
    seeds = tuple(seeds or experiment.seeds)
    spawn, workers = get_context("spawn"), workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, spawn, set_threads, (1,)) as pool:
        train_missing(pool, tuning_runs(name), f"{name}, tuning")
        train_missing(pool, reported_runs(name, seeds), name)
    return write_tables(name, seeds, facts | {"seconds": round(time.perf_counter() - start, 1)})


def train_missing(pool: ProcessPoolExecutor, runs: Iterable[Run], title: str) -> None:
    futures = [pool.submit(train, run) for run in runs if not run.finished]
    for done in tqdm(as_completed(futures), total=len(futures), desc=title, disable=not futures):
        done.result()


def tuning_runs(name: str) -> list[Run]:
    """What is tried before each arm is run for the record; nothing where nothing is tuned."""
    experiment = find_experiment(name)
    return [
        Run(name, arm, variant, seed)
        for seed in experiment.tuning_seeds
        for arm in experiment.arms
        for variant in arm.variants
        if experiment.tunes
    ]


def reported_runs(name: str, seeds: Sequence[int]) -> list[Run]:
    """Every arm at its best where arms are tuned, with all its variants where they are not."""
    experiment = find_experiment(name)
    return [
        Run(name, arm, variant, seed)
        for seed in seeds
        for arm in experiment.arms
        for variant in ((best(name, arm),) if experiment.tunes else arm.tried)
    ]


def best(name: str, arm: Arm) -> Variant:
    """The variant with the highest mean of the experiment's `chosen_by` over the tuning seeds."""
    experiment = find_experiment(name)

    def score(variant: Variant) -> float:
        runs = (Run(name, arm, variant, seed) for seed in experiment.tuning_seeds)
        return fmean(run.record["evaluation"][experiment.chosen_by] for run in runs)

    return max(arm.variants, key=score) if arm.variants else arm.tried[0]


def train(run: Run) -> None:
    """Train and evaluate one run; its log and its record appear in its folder."""
    experiment, start = find_experiment(run.experiment), time.perf_counter()
    trainer = experiment.world(run.variant.config.replace(seed=run.seed))
    log = RunLog(run.folder)
    for _ in range(run.variant.config.steps):
        rollouts = trainer.collect()
        log(trainer.learn(rollouts) | experiment.watch(trainer, rollouts))
    log.close()
    evaluation = trainer.evaluate(**experiment.evaluation) | experiment.measure(trainer)
    seconds = round(time.perf_counter() - start, 1)
    record = {
        "config": run.variant.config.to_dict(),
        "seconds": seconds,
        "evaluation": evaluation,
    }
    partial = run.record_path.with_suffix(".partial")
    partial.write_text(json.dumps(record))
    os.replace(partial, run.record_path)


def write_tables(name: str, seeds: Sequence[int], facts: dict[str, Any]) -> Path:
    """Gather finished runs into the tables of `data/results` and their manifest.

    `facts` is the `manifest()` from before the runs.
    """
    experiment, folder = find_experiment(name), data_dir() / "results"
    tried, reported = tuning_runs(name), reported_runs(name, seeds)
    tables = {
        folder / f"{name}.csv": [row for run in reported for row in step_rows(run)],
        folder / f"{name}_eval.csv": [evaluation_row(run) for run in reported],
        folder / f"{name}_sweep.csv": [evaluation_row(run) for run in tried],
    }
    written = [table for table, rows in tables.items() if rows]
    for table in written:
        write_csv(table, tables[table])
    facts = facts | {
        "question": experiment.question,
        "seeds": list(seeds),
        "arms": {arm.label: arm_as_data(arm, tried, reported) for arm in experiment.arms},
    }
    if tried:
        facts |= {
            "tuning_seeds": list(experiment.tuning_seeds),
            "chosen_by": experiment.chosen_by,
        }
    write_manifest(folder / f"{name}{SUFFIX}", facts, written)
    return written[0]


def arm_as_data(arm: Arm, tried: Sequence[Run], reported: Sequence[Run]) -> dict[str, Any]:
    """What an arm trains, what was tried for it, what was run for the record, and how long."""
    mine, trials = (
        [run for run in runs if run.arm.label == arm.label] for runs in (reported, tried)
    )
    first = mine[0].variant
    data = run_as_data(first.config) | {"seconds": sum_of_seconds(mine)}
    if first.values:
        data["values"] = dict(first.values)
    if trials:
        data["tuning_seconds"] = sum_of_seconds(trials)
    if arm.variants:
        data["variants"] = [as_data(variant, first.config) for variant in arm.variants]
    return data


def as_data(variant: Variant, beside: RunConfig) -> dict[str, Any]:
    """A variant's values, and its method where that is not the one stated beside it."""
    method = variant.config.method
    return dict(variant.values) | ({} if method == beside.method else {"method": method.to_dict()})


def sum_of_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Seconds by seed, summed over what was run with it."""
    seconds: dict[str, float] = {}
    for run in runs:
        total = seconds.get(str(run.seed), 0.0) + run.record["seconds"]
        seconds[str(run.seed)] = round(total, 1)
    return seconds


def step_rows(run: Run) -> Iterator[dict[str, Any]]:
    for row in read_jsonl(run.folder / "metrics.jsonl"):
        yield {**run.key, **rounded(row, 4)}


def evaluation_row(run: Run) -> dict[str, Any]:
    return {**run.key, **rounded(run.record["evaluation"], 5)}


def rounded(row: dict, digits: int) -> dict:
    return {k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in row.items()}


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
