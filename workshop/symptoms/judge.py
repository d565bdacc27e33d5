"""How many faults the doctor names, and how many healthy runs it calls ill.

Rules were made on other seeds and are judged on those of `JUDGED_ON`. A fault counts as named if
the first symptom that the doctor gives is its own; a healthy run is every row of `METHODS` with
nothing broken.
"""

import csv
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rlbook.doctor import Log, diagnose, symptoms
from rlbook.manifest import SUFFIX, manifest, write_manifest
from rlbook.objectives import METHODS
from rlbook.paths import data_dir
from rlbook.policy import set_threads
from rlbook.training import write_csv
from workshop.symptoms.faults import FAULTS, healthy

JUDGED_ON, HEALTHY_ON = (3,), (2,)
KEPT = Path("runs/troubles")
Key = tuple[str, int]  # of a run: fault or row, seed


def judge(workers: int = 0) -> list[Path]:
    """Make the runs that are missing and write two tables: what was named, and curves to draw."""
    facts, keys = manifest(), all_keys()
    todo = [key for key in keys if not path_of(key).exists()]
    spawn = get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), spawn, set_threads, (1,)) as pool:
        for _ in tqdm(pool.map(make, todo), total=len(todo), disable=not todo):
            pass
    seconds = round(sum(kept(key)["seconds"] for key in keys), 1)
    tables = {"named": [row_of(key) for key in keys], "curves": curves()}
    written = [folder() / f"{name}.csv" for name in tables]
    for path, rows in zip(written, tables.values(), strict=True):
        write_csv(path, rows)
        write_manifest(path.with_suffix(SUFFIX), facts | {"seconds": seconds}, [path])
    return written


def all_keys() -> list[Key]:
    """Every fault and every row, on their seeds."""
    return [*product(FAULTS, JUDGED_ON), *product(METHODS, HEALTHY_ON)]


def folder() -> Path:
    """Where the tables are."""
    return data_dir() / "results" / "troubles"


def path_of(key: Key) -> Path:
    """Where the log of a run is kept."""
    return KEPT / f"{key[0].replace(' ', '_')}-{key[1]}.json"


def make(key: Key) -> None:
    """Run and keep its log."""
    (name, seed), begin = key, time.process_time()
    log = (FAULTS[name] if name in FAULTS else healthy(name)).log(seed)
    beside = None if log.beside is None else list(log.beside.rows)
    said = {"rows": list(log.rows), "text": log.text, "beside": beside}
    KEPT.mkdir(parents=True, exist_ok=True)
    path_of(key).write_text(json.dumps(said | {"seconds": time.process_time() - begin}))


def kept(key: Key) -> dict[str, Any]:
    """What was kept of a run."""
    return json.loads(path_of(key).read_text())


def load(key: Key) -> Log:
    """The log of a run that was made."""
    said = kept(key)
    return Log(said["rows"], said["text"], said["beside"] and Log(said["beside"]))


def row_of(key: Key) -> dict[str, Any]:
    """A run, what ails it, and what the doctor says."""
    name, seed = key
    fault = FAULTS.get(name)
    said = [one.name for one in diagnose(load(key))]
    return {
        "run": name,
        "seed": seed,
        "symptom": fault.symptom if fault else "",
        "variant": bool(fault and fault.variant),
        "named": said[0] if said else "",
        "also": " ".join(said[1:]),
    }


def load_named() -> list[dict[str, Any]]:
    """The rows of the committed table."""
    with (folder() / "named.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row | {"variant": row["variant"] == "True"} for row in rows]


def curves() -> Iterator[dict[str, Any]]:
    """What the appendix draws: the columns that symptoms look at, of one seed."""
    looked_at = {name for one in symptoms().values() for name in one.look}
    for name, seed in [*((name, JUDGED_ON[0]) for name in FAULTS), ("grpo", HEALTHY_ON[0])]:
        for row in load((name, seed)).rows:
            wanted = {k: float(f"{v:.4g}") for k, v in row.items() if k in looked_at}
            yield {"run": name, **wanted, "step": row["step"]}


def is_alarm(symptom: str) -> bool:
    """Whether it asks for a cure; a note on what looks odd and is not does not."""
    return bool(symptom) and not symptoms()[symptom].harmless


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many were named, how many healthy runs called ill, and every confusion."""
    ill = [row for row in rows if row["symptom"]]
    well = [row for row in rows if not row["symptom"]]
    named = sum(row["named"] == row["symptom"] for row in ill)
    alarms = sum(is_alarm(row["named"]) for row in well)
    lines = [f"{named} of {len(ill)} named, {alarms} alarms in {len(well)} healthy"]
    confused = [row for row in rows if row["named"] != row["symptom"]]
    lines += [
        f"  {row['run']} / seed {row['seed']}: {row['symptom'] or 'healthy'} called "
        f"{row['named'] or 'healthy'}" for row in confused
    ]  # fmt: skip
    return "\n".join(lines)
