"""Where the runs of an experiment begin: every arm's policy before step 1, measured as at the end.

`python -m workshop.experiments.start [NAME …]` writes `data/results/NAME_start.csv`, a row per arm,
and adds its hash to the manifest; all experiments that have a manifest if none is named.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlbook.evaluation import evaluate_run
from rlbook.manifest import SUFFIX, sha256, write_manifest
from rlbook.paths import data_dir
from rlbook.policy import set_threads
from rlbook.training import RunConfig, write_csv
from workshop.experiments.catalogue import EXPERIMENTS
from workshop.shared.design import Experiment
from workshop.shared.recorded import rounded


def starts(experiment: Experiment) -> list[dict[str, Any]]:
    """A row per arm; arms that begin with the same policy, asked alike, share one measurement."""
    measured: dict[str, dict[str, Any]] = {}
    for arm in experiment.arms:
        config = arm.tried[0].config
        if asked(config) not in measured:
            measured[asked(config)] = start_of(experiment, config)
    return [{"arm": a.label, **measured[asked(a.tried[0].config)]} for a in experiment.arms]


def asked(config: RunConfig) -> str:
    """Which policy, and how it is asked."""
    rollout = config.rollout
    parts = config.model.policy, config.data.task, config.data.levels
    return str((*parts, rollout.max_new_tokens, rollout.temperature))


def start_of(experiment: Experiment, config: RunConfig) -> dict[str, Any]:
    """The evaluation of a run that has not made a step."""
    trainer = (experiment.begins or experiment.world)(config.replace(seed=0))
    return evaluate_run(trainer, **experiment.evaluation) | experiment.measure(trainer)


def write_start(name: str, folder: Path) -> Path:
    """Write the table of an experiment's starts, and its hash into the manifest if there is one."""
    path, beside = folder / f"{name}_start.csv", folder / f"{name}{SUFFIX}"
    write_csv(path, [rounded(row, 5) for row in starts(EXPERIMENTS[name])])
    if beside.is_file():
        facts = json.loads(beside.read_text())
        facts["tables"] |= {path.name: sha256(path)}
        write_manifest(beside, facts)
    return path


def main(names: Sequence[str] = ()) -> None:
    folder = data_dir() / "results"
    there = [name for name in EXPERIMENTS if (folder / f"{name}{SUFFIX}").is_file()]
    for name in names or there:
        print(f"wrote {write_start(name, folder)}", flush=True)


if __name__ == "__main__":
    set_threads(1)
    main(sys.argv[1:])
