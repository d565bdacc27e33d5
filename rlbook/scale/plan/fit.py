"""What speaks against a budget, each with its fix, and the division of its GPUs that is fastest."""

import math
from collections.abc import Iterator

from rlbook.scale.plan.budget import GB, Budget
from rlbook.scaling.pipeline import ceilings, pipeline_rl

ROOM = 0.95  # of a GPU's memory that a plan may fill: counts and fragmentation err by some per cent


def check(budget: Budget) -> None:
    """Raises `ValueError` with every reason why the run cannot work, each with its fix."""
    if found := [*impossible(budget), *too_large(budget)]:
        raise ValueError("; ".join(found))


def impossible(budget: Budget) -> Iterator[str]:
    """What no hardware can do."""
    config, rollout, longest = budget.config, budget.config.rollout, budget.prompts.longest
    room = budget.shape.positions - longest
    if rollout.max_new_tokens > room:
        yield (
            f"rollout.max_new_tokens {rollout.max_new_tokens}: with prompts of up to {longest} "
            f"tokens it exceeds the model's context of {budget.shape.positions}: set {room} at most"
        )
    pool, needed = config.data.pool, config.prompts_per_update
    if pool is not None and pool < needed:
        yield (
            f"data.pool {pool} is smaller than the {needed} prompts of an update (rollout.prompts "
            "/ optimizer.minibatches): it would ask a prompt twice, raise data.pool"
        )


def too_large(budget: Budget) -> Iterator[str]:
    """What does not fit into the memory that `budget.gpu_memory_gb` says there is."""
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb * GB
    generate, cache = config.generate, budget.generator_memory["keys and values"]
    taken = generate.gpu_memory * capacity if generate.colocated else 0.0
    room = ROOM * capacity - taken
    if budget.trainer_bytes > room:
        shared = f", beside generators that take {taken / GB:.1f} GB" if taken else ""
        yield (
            f"a trainer needs {budget.trainer_bytes / GB:.1f} GB of {capacity / GB:.1f} GB, "
            f"{1 - ROOM:.0%} of which stay free{shared}: {trainer_fixes(budget, room)}"
        )
    sequence = budget.prompts.longest + config.rollout.max_new_tokens
    if budget.cache_room < sequence * budget.cache_bytes_per_token:
        yield (
            f"a generator's weights ({budget.generator_memory['weights'] / GB:.1f} GB) leave no "
            f"room for the cache of one completion of {sequence} tokens: raise "
            "generate.tensor_parallel or generate.gpu_memory"
        )
    elif cache > budget.cache_room:
        yield (
            f"generate.slots {generate.slots} need {cache / GB:.1f} GB of cache, "
            f"{budget.cache_room / GB:.1f} GB are left: set {fitting_slots(budget)} at most, or "
            "raise generate.tensor_parallel or generate.gpu_memory"
        )


def trainer_fixes(budget: Budget, room: float) -> str:
    """The changes, each by itself, that would make a trainer fit."""
    config = budget.config
    changes = [("train.activation_checkpointing", [True]), ("train.dtype", ["bfloat16"])]
    tokens = [config.optimizer.micro_batch_tokens >> halved for halved in range(1, 16)]
    changes.append(("optimizer.micro_batch_tokens", [n for n in tokens if n >= 256]))
    changes.append(("train.processes", [config.train.processes << n for n in range(1, 8)]))
    fixes = []
    for name, values in changes:
        fits = (v for v in values if changed(budget, {name: v}).trainer_bytes <= room)
        if (value := next(fits, None)) is not None:
            fixes.append(f"set {name} to {value}")
    return " or ".join(fixes) or "no single change helps: take more GPUs or a smaller model"


def fitting_slots(budget: Budget) -> int:
    """Completions whose cache a generator has room for, at their mean length."""
    share = budget.cache_room / budget.generator_memory["keys and values"]
    return math.floor(budget.config.generate.slots * share)


def changed(budget: Budget, settings: dict[str, object]) -> Budget:
    """The same budget with settings replaced, named as in an override."""
    config = budget.config
    for name, value in settings.items():
        section, field = name.split(".")
        part = getattr(config, section).model_copy(update={field: value})
        config = config.model_copy(update={section: part})
    return Budget(config, budget.shape, budget.prompts)


def fastest_split(budget: Budget) -> Budget | None:
    """The GPUs divided into trainers and generators as the simulator's ceilings favour.

    Only what fits counts; a generator's slots are lowered to what its memory holds. None if
    nothing can be divided, or no division fits. `generate.tensor_parallel` stays.
    """
    generate, gpus = budget.config.generate, budget.config.gpus
    if generate.colocated:
        return None
    fitting = []
    for count in range(1, (gpus - 1) // generate.tensor_parallel + 1):
        ranks = gpus - count * generate.tensor_parallel
        split = changed(budget, {"train.processes": ranks, "generate.count": count})
        if 0 < (slots := fitting_slots(split)) < generate.slots:
            split = changed(split, {"generate.slots": slots})
        if not list(too_large(split)):
            fitting.append(split)
    return max(fitting, key=slower_side, default=None)


def slower_side(budget: Budget) -> float:
    """Tokens per second that trainers and generators could both keep up with."""
    schedule = pipeline_rl(budget.config.generate.max_staleness)
    speeds = ceilings(schedule, budget.cluster, budget.lengths, budget.config.batch_size)
    return min(speeds["generators"], speeds["trainers"])
