"""Running the reference experiments: one process per core, a finished run is never repeated.

`python -m rlbook experiments baselines` runs what is missing and writes
`data/results/baselines.csv` (a row per step), `baselines_eval.csv` (a row per run, on held-out
prompts) and `baselines.manifest.json`. Chapters draw their evidence from these files.
"""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from rlbook.experiments.catalogue import EXPERIMENTS, Arm, Experiment
from rlbook.manifest import write_manifest
from rlbook.paths import data_dir
from rlbook.policy import Sampler, set_threads
from rlbook.stats import pass_at_k
from rlbook.tiny.decisions import decisions
from rlbook.training import (
    Rollout,
    RunLog,
    TrainConfig,
    Trainer,
    collect_rollouts,
    read_jsonl,
    write_csv,
)
from rlbook.training.metrics import group_by, mean

EVAL_SEED = 1_000_003  # training seeds stay small, so held-out prompts never meet a training run


def run_experiment(name: str, seeds: Iterable[int] | None = None, workers: int = 0) -> Path:
    """Run the missing runs of an experiment and write its tables; returns the CSV's path.

    `workers` processes (0: one per core), each on one thread. A finished run is never repeated.
    Raises `ValueError` for an unknown name.
    """
    experiment = find_experiment(name)
    seeds = tuple(seeds or experiment.seeds)
    pending = [
        (index, seed)
        for seed in seeds
        for index, arm in enumerate(experiment.arms)
        if not eval_path(name, arm, seed).is_file()
    ]
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, get_context("spawn"), set_threads, (1,)) as pool:
        futures = [pool.submit(run_arm, name, index, seed) for index, seed in pending]
        for done in tqdm(as_completed(futures), total=len(futures), desc=name):
            done.result()
    return write_tables(name, seeds)


def run_arm(name: str, index: int, seed: int) -> None:
    """Train one arm with one seed; its log and its evaluation appear under `runs/experiments`."""
    experiment = find_experiment(name)
    arm = experiment.arms[index]
    trainer = Trainer(arm.config.model_copy(update={"seed": seed}), arm.method)
    log = RunLog(run_folder(name, arm, seed))
    for metrics in trainer:
        if experiment.eval_every and trainer.step % experiment.eval_every == 0:
            metrics["heldout"] = accuracy(held_out_rollouts(trainer, prompts=96, n=4))
        log(metrics)
    log.close()
    result = evaluate(trainer)
    partial = eval_path(name, arm, seed).with_suffix(".partial")
    partial.write_text(json.dumps(result))
    os.replace(partial, eval_path(name, arm, seed))


def evaluate(
    trainer: Trainer, prompts: int = 96, n: int = 16, ks: tuple[int, ...] = (1, 4, 8, 16)
) -> dict[str, float]:
    """Unbiased pass@k, length, truncation on held-out prompts; for sums the policy's decisions."""
    rollouts = held_out_rollouts(trainer, prompts, n)
    right = [sum(r.correct for r in g) for g in group_by(rollouts, lambda r: r.group).values()]
    sums = trainer.task.name == "sums"
    return {
        **{f"pass@{k}": float(pass_at_k(n, right, k).mean()) for k in ks},
        "length": mean(r.length for r in rollouts),
        "truncated": mean(r.truncated for r in rollouts),
        **(decisions(trainer.model, trainer.tokenizer) if sums else {}),
    }


def held_out_rollouts(trainer: Trainer, prompts: int, n: int) -> list[Rollout]:
    """`n` completions by the current policy of each of `prompts` problems no run trains on."""
    config = trainer.config
    return collect_rollouts(
        Sampler(trainer.model, trainer.tokenizer.eos_token_id),
        trainer.tokenizer,
        trainer.task,
        trainer.task.sample(EVAL_SEED, prompts, config.levels),
        n,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        seed=EVAL_SEED,
    )


def accuracy(rollouts: list[Rollout]) -> float:
    return mean(r.correct for r in rollouts)


def write_tables(name: str, seeds: tuple[int, ...]) -> Path:
    """Gather finished runs into `data/results/<name>.csv`, `_eval.csv` and the manifest."""
    experiment, folder = find_experiment(name), data_dir() / "results"
    steps, evals = [], []
    for arm in experiment.arms:
        for seed in seeds:
            key = {"arm": arm.label, "seed": seed}
            log = read_jsonl(run_folder(name, arm, seed) / "metrics.jsonl")
            steps += [{**key, **rounded(row)} for row in log]
            evals.append({**key, **rounded(json.loads(eval_path(name, arm, seed).read_text()))})
    write_csv(folder / f"{name}.csv", steps)
    write_csv(folder / f"{name}_eval.csv", evals)
    write_manifest(
        folder / f"{name}.manifest.json",
        question=experiment.question,
        seeds=list(seeds),
        arms={a.label: {"method": a.method.name, **overrides(a.config)} for a in experiment.arms},
    )
    return folder / f"{name}.csv"


def overrides(config: TrainConfig) -> dict:
    """The settings that differ from the defaults."""
    return config.model_dump(exclude_defaults=True)


def rounded(row: dict, digits: int = 5) -> dict:
    return {k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in row.items()}


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def run_folder(name: str, arm: Arm, seed: int) -> Path:
    slug = "".join(c if c.isalnum() else "-" for c in arm.label)
    return Path("runs/experiments") / name / slug / f"seed{seed}"


def eval_path(name: str, arm: Arm, seed: int) -> Path:
    return run_folder(name, arm, seed) / "eval.json"
