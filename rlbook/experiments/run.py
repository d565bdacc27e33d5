"""Running the reference experiments: one process per core, a finished run is never repeated.

`python -m rlbook experiments baselines` runs what is missing and writes
`data/results/baselines.csv` (a row per step), `baselines_eval.csv` (a row per run, on held-out
prompts) and `baselines.manifest.json`. Chapters draw their evidence from these files.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rlbook.experiments.catalogue import EXPERIMENTS, Arm, Experiment
from rlbook.manifest import SUFFIX, manifest, run_as_data, write_manifest
from rlbook.paths import data_dir
from rlbook.policy import set_threads
from rlbook.training import RunLog, Trainer, read_jsonl, write_csv

EVALUATION: dict[str, Any] = {"prompts": 96, "n": 16, "ks": (1, 4, 8, 16)}


def run_experiment(name: str, seeds: Iterable[int] | None = None, workers: int = 0) -> Path:
    """Run the missing runs of an experiment and write its tables; returns the CSV's path.

    `workers` processes (0: one per core), each on one thread. A finished run is never repeated,
    unless its arm has changed since. Raises `ValueError` for an unknown name.
    """
    experiment = find_experiment(name)
    seeds, facts, start = tuple(seeds or experiment.seeds), manifest(), time.perf_counter()
    pending = [
        (index, seed)
        for seed in seeds
        for index, arm in enumerate(experiment.arms)
        if not is_finished(name, arm, seed)
    ]
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, get_context("spawn"), set_threads, (1,)) as pool:
        futures = [pool.submit(run_arm, name, index, seed) for index, seed in pending]
        for done in tqdm(as_completed(futures), total=len(futures), desc=name):
            done.result()
    return write_tables(name, seeds, facts | {"seconds": round(time.perf_counter() - start, 1)})


def run_arm(name: str, index: int, seed: int) -> None:
    """Train one arm with one seed; its log and its record appear under `runs/experiments`."""
    experiment, start = find_experiment(name), time.perf_counter()
    arm = experiment.arms[index]
    trainer = Trainer(arm.config.replace(seed=seed))
    log = RunLog(run_folder(name, arm, seed))
    for metrics in trainer:
        log(metrics)
    log.close()
    evaluation = trainer.evaluate(**EVALUATION) | experiment.measure(trainer)
    seconds = round(time.perf_counter() - start, 1)
    record = {"config": arm.config.to_dict(), "seconds": seconds, "evaluation": evaluation}
    partial = record_path(name, arm, seed).with_suffix(".partial")
    partial.write_text(json.dumps(record))
    os.replace(partial, record_path(name, arm, seed))


def write_tables(name: str, seeds: Sequence[int], facts: dict[str, Any]) -> Path:
    """Gather finished runs into `data/results/<name>.csv`, `_eval.csv` and the manifest.

    `facts` is the `manifest()` from before the runs.
    """
    experiment, folder = find_experiment(name), data_dir() / "results"
    steps, evaluations, arms = [], [], {}
    for arm in experiment.arms:
        records = {seed: read_record(name, arm, seed) for seed in seeds}
        seconds = {str(seed): record["seconds"] for seed, record in records.items()}
        arms[arm.label] = {**run_as_data(arm.config), "seconds": seconds}
        for seed, record in records.items():
            key = {"arm": arm.label, "seed": seed}
            log = read_jsonl(run_folder(name, arm, seed) / "metrics.jsonl")
            steps += [{**key, **rounded(row)} for row in log]
            evaluations.append({**key, **rounded(record["evaluation"])})
    tables = [folder / f"{name}.csv", folder / f"{name}_eval.csv"]
    for table, rows in zip(tables, (steps, evaluations), strict=True):
        write_csv(table, rows)
    facts = facts | {"question": experiment.question, "seeds": list(seeds), "arms": arms}
    write_manifest(folder / f"{name}{SUFFIX}", facts, tables)
    return tables[0]


def rounded(row: dict, digits: int = 5) -> dict:
    return {k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in row.items()}


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def is_finished(name: str, arm: Arm, seed: int) -> bool:
    """Whether this run has ended, with the settings that the arm has now."""
    path = record_path(name, arm, seed)
    return path.is_file() and read_record(name, arm, seed)["config"] == arm.config.to_dict()


def read_record(name: str, arm: Arm, seed: int) -> dict[str, Any]:
    return json.loads(record_path(name, arm, seed).read_text())


def record_path(name: str, arm: Arm, seed: int) -> Path:
    return run_folder(name, arm, seed) / "run.json"


def run_folder(name: str, arm: Arm, seed: int) -> Path:
    slug = "".join(c if c.isalnum() else "-" for c in arm.label)
    return Path("runs/experiments") / name / slug / f"seed{seed}"
