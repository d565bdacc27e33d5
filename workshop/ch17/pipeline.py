"""ScaleRL's recipe in a true pipeline, with one part exchanged at a time: arms, runs, table.

    python -m workshop.ch17.pipeline seeds=[0,1,2] arms=[PipelineRL-0,PipelineRL-8]

Every arm that `rlbook.scale` can run is run by its processes; those it cannot (PPO-off-policy-k, a
rounded sampler) by one process. Seconds compare only between arms that took turns on one machine,
seed by seed. Policies are evaluated after a run, from its checkpoints: no evaluation takes time or
slots from the run. A finished run is never repeated; `data/results/pipeline.csv` has a row per
evaluation, with answers, tokens and seconds until then. Chapter 17.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlbook.durable import read_json, write_json
from rlbook.evaluation import evaluate
from rlbook.jsonl import join_rows, read_jsonl
from rlbook.manifest import SUFFIX, manifest, run_as_data, write_manifest
from rlbook.objectives import METHODS, PromptFilter, RatioClip, WeightClip
from rlbook.paths import ROOT, data_dir
from rlbook.policy import load_policy
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.start import launch
from rlbook.scale.layout import Layout
from rlbook.tasks import get_task
from rlbook.training import RunConfig, Trainer, write_csv
from rlbook.training.checkpoint import read_state, step_folders
from rlbook.verbs import configured
from workshop.shared.recorded import rounded as short
from workshop.shared.recorded import same_settings, seed_folder
from workshop.shared.worlds import RoughSampler

NAME = "pipeline"
FOLDER = Path("runs/experiments") / NAME
CONFIG = ROOT / "configs" / "cpu-tiny.yaml"
EVERY = 5  # updates between evaluations
HELD_OUT = {"prompts": 96, "n": 4, "ks": (1, 4)}
BITS = 4  # of a rounded sampler's weights, as in chapter 11
SUMMED = {"completions": "answers", "tokens": "tokens", "seconds": "seconds"}
MEANS = (
    "accuracy",
    "length",
    "truncated",
    "interrupted",
    "equal_rewards",
    "staleness",
    "grad_norm",
    "above_cap",
)
RATIO_CAP = METHODS["scalerl"].trust_region.max

OneProcess = Callable[[RunConfig], Trainer]


@dataclass(frozen=True)
class PipelineArm:
    """A label, settings, and for what one process has to run, how and with which trainer."""

    label: str
    config: ScaleConfig
    one_process: OneProcess | None = None
    how: str = "the processes of rlbook.scale"


def recipe(steps: int = 80) -> ScaleConfig:
    """ScaleRL on sums, in a pipeline with every token two updates old at most."""
    config = load_config(CONFIG).replace(
        steps=steps,
        data={"pool": 256, "retire_at": 0.9, "levels": RunConfig().data.levels},
        rollout={"prompts": 8},
        optimizer={"lr": 4e-4},
        evaluation={"every": 0},
        checkpoint={"every": EVERY, "keep": steps},
        generate={"engine": "builtin"},
    )
    return stale(config, 2)


def stale(config: ScaleConfig, k: int) -> ScaleConfig:
    """PipelineRL-k as ScaleRL means it: k is the bound and what generators work ahead."""
    return config.replace(generate={"max_staleness": k, "target_staleness": k})


def at_half_the_rate(label: str, config: ScaleConfig) -> PipelineArm:
    slow = config.replace(optimizer={"lr": config.optimizer.lr / 2})
    return PipelineArm(f"{label}, half the rate", slow)


def arms(steps: int = 80) -> Iterator[PipelineArm]:
    """The pipeline, the schedule, the objective, the data, the length, the head."""
    base = recipe(steps)
    for k in (0, 1, 2, 8):
        yield PipelineArm(f"PipelineRL-{k}", stale(base, k))
    for k in (0, 8):
        yield at_half_the_rate(f"PipelineRL-{k}", stale(base, k))
    for k in (2, 8):
        how = f"one process, the sampler's weights stay for {k} updates"
        yield PipelineArm(f"PPO-off-policy-{k}", base, partial(off_policy, k), how)
    exchanged = {
        "DAPO's clip": {"trust_region": RatioClip(0.2, 0.26)},
        "σ per prompt": {"advantage": METHODS["grpo"].advantage},
        "mean per answer": {"aggregation": "sequence_mean"},
        "all prompts": {"prompt_filter": None},
    }
    recipes = {
        label: base.replace(method=replace(base.method, **change))
        for label, change in exchanged.items()
    }
    recipes["solved prompts again"] = base.replace(data={"retire_at": None})
    recipes["DAPO's clip, k = 8"] = stale(recipes["DAPO's clip"], 8)
    for label, config in recipes.items():
        yield PipelineArm(label, config)
    for label, config in {"PipelineRL-2": base, **recipes}.items():
        yield at_half_the_rate(label, config)
    low = replace(base.method, trust_region=WeightClip(max=1.26))  # bound of the clip, no mask
    yield PipelineArm("cap 1.26, k = 8", stale(base.replace(method=low), 8))
    tight = base.replace(rollout={"max_new_tokens": 40})
    cut = {"after": 30, "text": "</think><answer>", "answer_tokens": 6}
    yield PipelineArm("limit 40", tight)
    yield PipelineArm("limit 30", base.replace(rollout={"max_new_tokens": 30}))
    yield PipelineArm("limit 40, interrupted", tight.replace(generate={"interruption": cut}))
    by_word = PromptFilter("correct")  # a ramp makes rewards of equal answers differ
    ramp = replace(base.method, reward_shaping="overlong", prompt_filter=by_word)
    yield PipelineArm("limit 40, length penalty", tight.replace(method=ramp))
    one_process: dict[str, tuple[OneProcess, str]] = {
        "exact sampler": (Trainer, "weights as trained"),
        "rounded sampler": (partial(rough, False), f"weights of {BITS} bits"),
        "rounded but for the head": (partial(rough, True), f"{BITS} bits, but for the head"),
    }
    for label, (train, weights) in one_process.items():
        how = f"one process, sampler with {weights}"
        yield PipelineArm(f"one process, {label}", base, train, how)


def off_policy(k: int, config: RunConfig) -> Trainer:
    """k batches by the same weights, one update on each."""
    return Trainer(config.replace(rollout={"sync_every": k}))


def rough(exact_head: bool, config: RunConfig) -> Trainer:
    _, tokenizer = load_policy(config.model.policy)
    return Trainer(config, engine=RoughSampler(tokenizer, BITS, exact_head))


def run_arm(arm: PipelineArm, seed: int, root: Path = FOLDER) -> dict[str, Any]:
    """The record of one run: its settings, wall seconds and a row per evaluation; run if missing.

    What is left of a run that was stopped is removed: its seconds would not be those of one run.
    """
    folder = seed_folder(root, arm.label, seed)
    config, record = arm.config.replace(seed=seed, run=str(folder)), folder / "run.json"
    if (known := read_json(record)) and same_settings(known, config):
        return known
    shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    updates, rewards = in_one_process(arm, config) if arm.one_process else in_processes(config)
    made = {
        "config": config.to_dict(),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": [*evaluation_rows(updates, rewards)],
    }
    write_json(folder / "updates.json", updates)
    write_json(record, made)
    return made


def in_processes(config: ScaleConfig) -> tuple[list[dict], dict[int, dict]]:
    """Rows of the updates and held-out results by step of a run of `rlbook.scale`.

    The first update's seconds contain the start of the processes; it is given those of the median
    update. All but its logs is removed from the folder once it is measured.
    """
    launch(config)
    layout = Layout(config.folder)
    rows = join_rows(*(read_jsonl(layout.log(name)) for name in ("rollouts", "metrics")))
    for row in rows:
        row |= {"seconds": row["tokens"] / row["tokens_per_second"]}
        row |= {"staleness": row["staleness_mean"]}
    rows[0]["seconds"] = median(row["seconds"] for row in rows[1:])
    rewards = {0: before(config.model.policy, config.data.task, config.data.levels)}
    for folder in step_folders(layout.checkpoints):
        rewards[read_state(folder)["step"]] = held_out(load_policy(str(folder)), config)
        shutil.rmtree(folder)
    for part in (layout.batches, layout.weights):
        shutil.rmtree(part, ignore_errors=True)
    return rows, rewards


def in_one_process(arm: PipelineArm, config: ScaleConfig) -> tuple[list[dict], dict[int, dict]]:
    """The same of a run in one process, its clock stopped while it is evaluated."""
    trainer = arm.one_process(RunConfig(**config.shared()))
    rewards = {0: before(config.model.policy, config.data.task, config.data.levels)}
    rows = []
    for step in range(1, config.steps + 1):
        start = time.perf_counter()
        metrics = trainer.learn(trainer.collect())
        rows.append({**metrics, "seconds": time.perf_counter() - start})
        if step % EVERY == 0 or step == config.steps:
            rewards[step] = held_out((trainer.model, trainer.tokenizer), config)
    return rows, rewards


@cache
def before(policy: str, task: str, levels: tuple[int, ...] | None) -> dict[str, float]:
    return evaluate(load_policy(policy), get_task(task), levels=levels, **HELD_OUT)


def held_out(policy: tuple, config: ScaleConfig) -> dict[str, float]:
    """Held-out results with the limit of the recipe, whatever the run's own was."""
    return evaluate(policy, get_task(config.data.task), levels=config.data.levels, **HELD_OUT)


def evaluation_rows(
    updates: Sequence[dict[str, Any]], rewards: dict[int, dict]
) -> Iterator[dict[str, Any]]:
    """A row per evaluation: what it found, compute until then, means since the one before."""
    spent = dict.fromkeys(SUMMED.values(), 0)
    yield {"step": 0, **rewards[0], **spent}
    for last, step in pairwise(sorted(rewards)):
        part = [row | above_cap(row) for row in updates[last:step]]
        for column, total in SUMMED.items():
            spent[total] += sum(row[column] for row in part)
        seen = {n: [row[n] for row in part if n in row] for n in MEANS}  # a skipped update has less
        means = {n: fmean(values) for n, values in seen.items() if values}
        yield {"step": step, **rewards[step], **spent, **means}


def above_cap(row: Mapping[str, Any]) -> dict[str, float]:
    """Whether a token's ratio was above the recipe's cap; nothing of a skipped update."""
    return {"above_cap": float(row["ratio_max"] > RATIO_CAP)} if "ratio_max" in row else {}


def run_arms(
    labels: Sequence[str] = (), seeds: Iterable[int] = range(10), steps: int = 80
) -> Iterator[tuple[PipelineArm, int, dict]]:
    """Every seed of every arm, seed by seed, so that what is there at any time can be compared."""
    chosen = list(arms(steps))
    if unknown := set(labels) - {arm.label for arm in chosen}:
        known = ", ".join(arm.label for arm in chosen)
        raise ValueError(f"no arm {', '.join(sorted(unknown))}; there are {known}")
    for seed in seeds:
        for arm in chosen:
            if not labels or arm.label in labels:
                yield arm, seed, run_arm(arm, seed)


@dataclass(frozen=True)
class Asked:
    """Labels of the arms to run, all if absent, and seeds."""

    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = tuple(range(10))


def main(arms: tuple[str, ...] = (), seeds: tuple[int, ...] = tuple(range(10))) -> None:
    """Run what is missing and write data/results/pipeline.csv with its manifest."""
    facts, rows, settings, seconds = manifest(), [], {}, {}
    facts["command"] = "python -m workshop.ch17.pipeline"
    for arm, seed, record in run_arms(arms, seeds):
        print(f"{arm.label}, seed {seed}: {record['seconds']:.0f} s", flush=True)
        rows += [{"arm": arm.label, "seed": seed, **short(row, 4)} for row in record["rows"]]
        settings[arm.label] = run_as_data(arm.config) | {"run by": arm.how}
        seconds.setdefault(arm.label, {})[str(seed)] = record["seconds"]
    table = data_dir() / "results" / f"{NAME}.csv"
    write_csv(table, rows)
    facts |= {"seeds": list(seeds), "arms": settings, "seconds": seconds}
    write_manifest(table.with_name(f"{NAME}{SUFFIX}"), facts, [table])


if __name__ == "__main__":
    main(**vars(configured(Asked, sys.argv[1:])))
