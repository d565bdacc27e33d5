"""Running the reference experiments: one process per core, a finished run is never repeated.

`python -m workshop experiments reuse` runs what is missing and writes `data/results/reuse.csv` (a
row per step), `reuse_eval.csv` (a row per run, on held-out prompts), `reuse_sweep.csv` (the same
for what was tried before an arm was chosen), `reuse_start.csv` (the same for the policy before
step 1) and `reuse.manifest.json`. With `--second` the next best rate of every arm is run with all
seeds too, and the one beyond where the best is an edge: `reuse_second.csv`, so that the ledger can
tell a verdict from the choice of a rate. Chapters draw their evidence from these files, and another
machine goes on from them: what they hold is not run again.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from rlbook.evaluation import evaluate_run
from rlbook.jsonl import read_jsonl
from rlbook.manifest import SUFFIX, manifest, run_as_data, write_manifest
from rlbook.paths import data_dir
from rlbook.policy import Sampler, set_threads
from rlbook.training import RunLog, Trainer, write_csv
from workshop.experiments.catalogue import EXPERIMENTS
from workshop.shared.choice import AtRate, near
from workshop.shared.design import Arm, Experiment, Variant
from workshop.shared.recorded import Run, as_data, is_recorded, rounded, rows_of, stored


def run_experiment(
    name: str,
    seeds: Iterable[int] | None = None,
    workers: int = 0,
    so_far: bool = False,
    second: bool = False,
) -> Path:
    """Run the missing runs of an experiment and write its tables; returns the CSV's path.

    `workers` processes (0: one per core), each on one thread. A finished run is never repeated, nor
    one that the tables hold, unless its settings have changed since. With `second` those of
    `second_runs` are run as well; with `so_far` nothing is, and the tables hold what has finished.
    Raises `ValueError` for an unknown name.
    """
    experiment, facts, start = find_experiment(name), manifest(), time.perf_counter()
    seeds = tuple(seeds or experiment.seeds)
    restore(name, seeds)
    if so_far:
        return write_tables(name, seeds, facts)
    spawn, workers = get_context("spawn"), workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, spawn, set_threads, (1,)) as pool:
        train_missing(pool, tuning_runs(name), f"{name}, tuning")
        train_missing(pool, reported_runs(name, seeds), name)
        if second:
            train_missing(pool, second_runs(name, seeds), f"{name}, second rates")
    return write_tables(name, seeds, facts | {"seconds": round(time.perf_counter() - start, 1)})


def train_missing(pool: ProcessPoolExecutor, runs: Iterable[Run], title: str) -> None:
    """Run what is missing, in the order of `by_rounds`; the first that fails ends the others."""
    futures = [pool.submit(train, run) for run in by_rounds(runs) if not run.finished]
    done = tqdm(as_completed(futures), total=len(futures), desc=title, disable=not futures)
    try:
        for future in done:
            future.result()
    finally:
        for future in futures:
            future.cancel()


def by_rounds(runs: Iterable[Run]) -> list[Run]:
    """Round by round of seeds, and in a round every arm before a variant; a rate beyond is last."""

    def turn(run: Run) -> tuple[int, int]:
        tried = run.arm.tried
        return run.seed, tried.index(run.variant) if run.variant in tried else len(tried)

    return sorted(runs, key=turn)


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
    """Every arm at its best where arms are tuned, with all its variants where they are not.

    An arm whose tuning has not finished has no best yet, and no runs for the record.
    """
    experiment = find_experiment(name)
    chosen = [(arm, best(name, arm) if experiment.tunes else arm.tried) for arm in experiment.arms]
    return [
        Run(name, arm, variant, seed)
        for seed in seeds
        for arm, variants in chosen
        for variant in variants
    ]


def second_runs(name: str, seeds: Sequence[int]) -> list[Run]:
    """The rates of each arm that may be the best, or else the next best, with the record's seeds.

    Where the best is an edge also the one beyond, which the tuning seeds have not seen either.
    """
    experiment = find_experiment(name)
    runs = []
    for arm in experiment.arms if experiment.tunes else ():
        first, *others = ranked(name, arm) or (None,)
        close = nearest(name, arm, (first, *others), seeds) if others else 0
        runs += [Run(name, arm, other, seed) for other in others[: max(1, close)] for seed in seeds]
        for variant in beyond(arm, first) if first else ():
            trials = *experiment.tuning_seeds, *seeds
            runs += [Run(name, arm, variant, seed) for seed in trials]
    return runs


def nearest(name: str, arm: Arm, variants: Sequence[Variant], seeds: Sequence[int]) -> int:
    """How many variants the tuning seeds do not set apart from the first, where that has run."""
    experiment = find_experiment(name)
    tried = []
    for variant in variants:
        runs = [Run(name, arm, variant, seed) for seed in (*experiment.tuning_seeds, *seeds)]
        scores = {
            run.seed: run.record["evaluation"][experiment.chosen_by] for run in runs if run.finished
        }
        values = {seed: scores[seed] for seed in seeds if seed in scores}
        tried.append(AtRate(variant.values.get("lr", 0.0), values, scores))
    return len(near(tried)) if len(tried[0].values) > 1 else 0


def beyond(arm: Arm, best: Variant) -> tuple[Variant, ...]:
    """The rate one step of the grid further, where the best is an edge of several."""
    beside = [v.values for v in arm.variants if {**v.values, "lr": 0} == {**best.values, "lr": 0}]
    rates = sorted(values["lr"] for values in beside if "lr" in values)
    for edge, inner in (rates[:2], rates[:-3:-1]) if len(rates) > 1 else ():
        if best.values["lr"] == edge:
            further = float(f"{edge * edge / inner:.3g}")
            values = {**best.values, "lr": further}
            return (Variant(values, best.config.replace(lr=further)),)
    return ()


def best(name: str, arm: Arm) -> tuple[Variant, ...]:
    """The first of those `ranked`, if there is one; the arm as it is where nothing is varied."""
    return ranked(name, arm)[:1] if arm.variants else arm.tried


def ranked(name: str, arm: Arm) -> tuple[Variant, ...]:
    """The variants by their mean of the experiment's `chosen_by` over the tuning seeds.

    The highest first, of equals the last; nothing while one of these runs is missing.
    """
    experiment = find_experiment(name)
    trials = [
        [Run(name, arm, variant, seed) for seed in experiment.tuning_seeds]
        for variant in arm.variants
    ]
    if not all(run.finished for runs in trials for run in runs):
        return ()

    def score(runs: Sequence[Run]) -> float:
        found = fmean(run.record["evaluation"][experiment.chosen_by] for run in runs)
        return round(found, 4)  # a table holds five digits

    return tuple(runs[0].variant for runs in sorted(reversed(trials), key=score, reverse=True))


def train(run: Run) -> None:
    """Train and evaluate one run; its log and its record appear in its folder."""
    experiment, start = find_experiment(run.experiment), time.perf_counter()
    trainer = experiment.world(run.variant.config.replace(seed=run.seed))
    trainer.measure, log = evaluate_run, RunLog(run.folder)
    steps = of_policy(trainer, train_steps(trainer, experiment, run.variant.config.steps))
    for row in steps:
        log(row)
    log.close()
    evaluation = evaluate_run(trainer, **experiment.evaluation) | experiment.measure(trainer)
    run.keep(evaluation, round(time.perf_counter() - start, 1))


def train_steps(trainer: Trainer, experiment: Experiment, steps: int) -> Iterator[dict[str, float]]:
    """The metrics of every step, until the steps are done or the answers are written.

    A batch that would end further above the budget than the run is below it is not begun.
    """
    budget, written, last = experiment.answers or inf, 0.0, 0.0
    for _ in range(steps):
        if written and written + last / 2 > budget:
            return
        rollouts = trainer.collect()
        row = trainer.learn(rollouts) | experiment.watch(trainer, rollouts)
        last = row["completions"]
        written += last
        yield row


def of_policy(trainer: Trainer, rows: Iterable[dict[str, float]]) -> Iterator[dict[str, float]]:
    """The rows with the accuracy of answers that another policy wrote under that name."""
    engine = trainer.source.engine
    taught = isinstance(engine, Sampler) and engine.model is not trainer.source.weights
    for row in rows:
        yield {
            name.replace("accuracy", "accuracy_of_writer") if taught else name: value
            for name, value in row.items()
        }


def write_tables(name: str, seeds: Sequence[int], facts: dict[str, Any]) -> Path:
    """Gather finished runs into the tables of `data/results` and their manifest.

    `facts` is the `manifest()` from before the runs. Where runs are missing, its `finished` says
    how many of how many there are.
    """
    experiment, folder = find_experiment(name), data_dir() / "results"
    planned = tuning_runs(name), reported_runs(name, seeds), second_runs(name, seeds)
    tried, reported, others = ([run for run in runs if run.finished] for runs in planned)
    tables = {
        folder / f"{name}.csv": [row for run in reported for row in step_rows(run)],
        folder / f"{name}_eval.csv": [evaluation_row(run) for run in reported],
        folder / f"{name}_sweep.csv": [evaluation_row(run) for run in tried],
        folder / f"{name}_second.csv": [evaluation_row(run) for run in others],
    }
    written = [table for table, rows in tables.items() if rows]
    if not written:
        raise ValueError(f"no run of {name} has finished: there is nothing to write")
    for table in written:
        write_csv(table, tables[table])
    spent = sum(run.record["seconds"] for run in tried + reported + others)
    facts = (
        {"seconds": round(spent, 1)}
        | facts
        | {
            "question": experiment.question,
            "seeds": list(seeds),
            "arms": {arm.label: arm_as_data(arm, tried, reported) for arm in experiment.arms},
        }
    )
    each = sum(1 if experiment.tunes else len(arm.tried) for arm in experiment.arms)
    wanted, there = len(planned[0]) + len(seeds) * each, len(tried) + len(reported)
    if there < wanted:
        facts["finished"] = {"runs": there, "of": wanted}
    if others:
        facts["second"] = {"runs": len(others), "of": len(planned[2])}
    if tried:
        facts |= {
            "tuning_seeds": list(experiment.tuning_seeds),
            "chosen_by": experiment.chosen_by,
        }
    start = folder / f"{name}_start.csv"
    hashed = [*written, start] if start.is_file() else written
    write_manifest(folder / f"{name}{SUFFIX}", facts, hashed)
    return written[0]


def restore(name: str, seeds: Sequence[int]) -> int:
    """Take finished runs from the tables of `data/results`; how many were not there before.

    Only those whose arm the manifest records with the settings that the catalogue has now.
    """
    path, taken = data_dir() / "results" / name, 0
    beside = path.with_name(f"{name}{SUFFIX}")
    arms = json.loads(beside.read_text())["arms"] if beside.is_file() else {}
    logs = stored(path.with_name(f"{name}.csv"))
    for kind, of in (
        ("sweep", tuning_runs),
        ("eval", partial(reported_runs, seeds=seeds)),
        ("second", partial(second_runs, seeds=seeds)),
    ):
        rows = stored(path.with_name(f"{name}_{kind}.csv"))
        for run in of(name):
            if run.finished or not is_recorded(run, arms) or not (found := rows_of(run, rows)):
                continue
            seconds = found[0].pop("seconds", 0.0)
            log = RunLog(run.folder)
            for row in rows_of(run, logs):
                log(row)
            log.close()
            run.keep(found[0], seconds)
            taken += 1
    return taken


def arm_as_data(arm: Arm, tried: Sequence[Run], reported: Sequence[Run]) -> dict[str, Any]:
    """What an arm trains, what was tried for it, what was run for the record, and how long."""
    mine, trials = (
        [run for run in runs if run.arm.label == arm.label] for runs in (reported, tried)
    )
    first = mine[0].variant if mine else arm.tried[0]
    data = run_as_data(first.config) | {"seconds": sum_of_seconds(mine)}
    if mine and first.values:
        data["values"] = dict(first.values)
    if trials:
        data["tuning_seconds"] = sum_of_seconds(trials)
    if arm.variants:
        data["variants"] = [as_data(variant, first.config) for variant in arm.variants]
    return data


def sum_of_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Seconds by seed, summed over what was run with it."""
    seconds: dict[str, float] = {}
    for run in runs:
        total = seconds.get(str(run.seed), 0.0) + run.record["seconds"]
        seconds[str(run.seed)] = round(total, 1)
    return seconds


def step_rows(run: Run) -> Iterator[dict[str, Any]]:
    columns = find_experiment(run.experiment).columns
    for row in read_jsonl(run.folder / "metrics.jsonl"):
        kept = row if columns is None else {k: row[k] for k in ("step", *columns) if k in row}
        yield {**run.key, **rounded(kept, 4)}


def evaluation_row(run: Run) -> dict[str, Any]:
    record = run.record
    return {**run.key, **rounded(record["evaluation"], 5), "seconds": record["seconds"]}


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
