"""How the cost of a token grows with completions per step, sequence length and group size."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from rlbook.objectives import METHODS
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import get_task
from rlbook.training.batch import collate
from rlbook.training.rollouts import collect_rollouts
from rlbook.training.step import train_step
from workshop.bench.timing import alternate

NEVER = -1  # no token ends a completion
REPEATS = {"smoke": 1, "full": 5}


@dataclass(frozen=True)
class Point:
    """A step's size; `full_length` makes every completion as long as the limit."""

    completions: int = 64
    group_size: int = 8
    max_new_tokens: int = 80
    full_length: bool = False


AXES = {
    "smoke": {
        "completions": [Point(completions=8, max_new_tokens=8)],
        "length": [Point(completions=8, max_new_tokens=8, full_length=True)],
        "group size": [Point(completions=8, group_size=4, max_new_tokens=8)],
    },
    "full": {
        "completions": [Point(completions=n) for n in (8, 16, 32, 64, 128, 256, 512)],
        "length": [Point(max_new_tokens=n, full_length=True) for n in (16, 32, 64, 128, 224)],
        "group size": [Point(completions=128, group_size=n) for n in (2, 4, 8, 16, 32, 64)],
    },
}
VALUE = {"completions": "completions", "length": "max_new_tokens", "group size": "group_size"}


def run(size: str) -> list[dict]:
    """One row per point of each axis: microseconds per completion token, sampling and updating.

    `distinct` are the `tokens` that are left when equal beginnings are counted once: the longer a
    group's answers are alike, and the larger the group, the fewer. See `bench.sharing`.
    """
    model, tokenizer = load_policy("tiny")
    rows = []
    for axis, points in AXES[size].items():
        work = [_work(model, tokenizer, point) for point in points]
        runs = {(i, part): w[part] for i, w in enumerate(work) for part in ("sample", "train")}
        seconds = {key: median(s) for key, s in alternate(runs, REPEATS[size]).items()}
        for i, point in enumerate(points):
            per_token = 1e6 / work[i]["tokens"]
            rows.append(
                {"axis": axis, "value": getattr(point, VALUE[axis])}
                | {name: work[i][name] for name in ("tokens", "distinct")}
                | {f"{part}_us": seconds[i, part] * per_token for part in ("sample", "train")}
            )
    return rows


def _work(model, tokenizer, point: Point) -> dict[str, Callable | int]:
    """Sampling, and one update on what was sampled, as functions to be timed."""
    engine = Sampler(model, NEVER if point.full_length else tokenizer.eos_token_id)
    task = get_task("sums")
    problems = task.sample(seed=0, n=point.completions // point.group_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def collect():
        limit = point.max_new_tokens
        return collect_rollouts(
            engine, tokenizer, task, problems, point.group_size, max_new_tokens=limit, seed=0
        )

    rollouts = collect()
    collated = collate(rollouts)
    noise = torch.Generator().manual_seed(0)
    batch = collated.prepared(advantages=torch.randn(len(collated), generator=noise))

    def update():
        train_step(model, optimizer, batch, METHODS["dapo"])

    said = {(r.group, *r.token_ids[:end]) for r in rollouts for end in range(1, r.length + 1)}
    counts = {"tokens": sum(r.length for r in rollouts), "distinct": len(said)}
    return {"sample": collect, "train": update} | counts
