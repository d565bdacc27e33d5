"""What speaks against a budget, each with its fix, and the division of its GPUs that is fastest."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from rlbook.scale.plan.budget import GB, Budget
from rlbook.scaling.simulator import ceilings, pipeline_rl

Settings = dict[str, object]  # by their names, as on the command line
ROOM = 0.95  # of a GPU's memory that a plan may fill: counts and fragmentation err by some per cent


def check(budget: Budget) -> None:
    """Raises `ValueError` with every reason why the run cannot work, each with its fix."""
    if found := [*impossible(budget), *too_large(budget)]:
        raise ValueError("; ".join(found))


def impossible(budget: Budget) -> Iterator[str]:
    """What no hardware can do."""
    config, shape, longest = budget.config, budget.shape, budget.prompts.longest
    room, rollout = shape.positions - longest, config.rollout
    if rollout.max_new_tokens > room:
        yield (
            f"rollout.max_new_tokens {rollout.max_new_tokens}: with prompts of up to {longest} "
            f"tokens it exceeds the model's context of {shape.positions}: set {room} at most"
        )
    parts, heads, kv_heads = config.generate.tensor_parallel, shape.heads, shape.kv_heads
    if heads % parts or (kv_heads % parts and parts % kv_heads):
        yield (
            f"generate.tensor_parallel {parts} does not divide the model's {heads} heads and "
            f"{kv_heads} of keys and values: set it to a power of two up to {kv_heads}"
        )
    if (pool := config.data.pool) is not None and pool < rollout.prompts:
        yield (
            f"data.pool {pool} is smaller than rollout.prompts {rollout.prompts}: a batch would "
            "ask one twice, raise data.pool"
        )


def too_large(budget: Budget) -> Iterator[str]:
    """What does not fit into the memory that `budget.gpu_memory_gb` says there is."""
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb
    generate, cache = config.generate, budget.generator_memory["keys and values"]
    if budget.trainer_bytes > trainer_room(budget):
        taken = generate.gpu_memory * capacity
        shared = f", beside generators that take {taken:.1f} GB" if generate.colocated else ""
        yield (
            f"a trainer needs {budget.trainer_bytes / GB:.1f} GB of {capacity:.1f} GB, "
            f"{1 - ROOM:.0%} of which stay free{shared}: {fixes(budget)}"
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


def fits(budget: Budget) -> bool:
    """Whether trainers and generators find room."""
    sequence = budget.prompts.longest + budget.config.rollout.max_new_tokens
    cache = max(budget.generator_memory["keys and values"], sequence * budget.cache_bytes_per_token)
    return budget.trainer_bytes <= trainer_room(budget) and cache <= budget.cache_room


def trainer_room(budget: Budget) -> float:
    """Bytes of a GPU that a trainer may fill, beside a generator if it shares it with one."""
    config = budget.config
    taken = config.generate.gpu_memory if config.generate.colocated else 0.0
    return (ROOM - taken) * config.budget.gpu_memory_gb * GB


def ways_to_fit(budget: Budget) -> list[list[Settings]]:
    """What makes a trainer smaller, each way step by step; the GPUs stay as many as they are."""
    config, generate = budget.config, budget.config.generate
    tokens, width = config.optimizer.micro_batch_tokens, generate.tensor_parallel
    shares: list[Settings] = [
        {"generate.gpu_memory": tenths / 10}
        for tenths in range(9, 0, -1)
        if tenths / 10 < generate.gpu_memory
    ]
    splits: list[Settings] = [
        {"train.processes": config.gpus - n * width, "generate.count": n}
        for n in range(generate.count - 1, 0, -1)
    ]
    return [
        [{"train.activation_checkpointing": True}],
        [{"train.accumulate": False}],
        [{"train.dtype": "bfloat16"}],
        [{"optimizer.micro_batch_tokens": tokens >> n} for n in range(1, 16) if tokens >> n >= 256],
        shares if generate.colocated else splits,
    ]


def fixes(budget: Budget) -> str:
    """The changes that would make all fit: those that do by themselves, else pairs of them."""
    for size in (1, 2):
        found = [
            "set " + " and ".join(f"{name} to {value}" for name, value in settings.items())
            for ways in combinations(ways_to_fit(budget), size)
            if (settings := first_that_fits(budget, ways))
        ]
        if found:
            return " or ".join(found)
    return "no two changes help: take more GPUs or a smaller model"


def first_that_fits(budget: Budget, ways: Sequence[Sequence[Settings]]) -> Settings | None:
    """Of the combinations of a step of each way the one that changes least, and fits."""
    for steps in sorted(product(*map(enumerate, ways)), key=lambda steps: sum(n for n, _ in steps)):
        settings = {name: value for _, step in steps for name, value in step.items()}
        settings |= fewer_slots(changed(budget, settings))
        if fits(changed(budget, settings)):
            return settings
    return None


def fewer_slots(budget: Budget) -> Settings:
    """As many slots as a generator's memory holds, if they are too many."""
    slots = fitting_slots(budget)
    return {"generate.slots": slots} if 0 < slots < budget.config.generate.slots else {}


def fitting_slots(budget: Budget) -> int:
    """Completions whose cache a generator has room for, at their mean length."""
    share = budget.cache_room / budget.generator_memory["keys and values"]
    return math.floor(budget.config.generate.slots * share)


def changed(budget: Budget, settings: Settings) -> Budget:
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
        split = changed(split, fewer_slots(split))
        if fits(split):
            fitting.append(split)
    return max(fitting, key=slower_side, default=None)


def slower_side(budget: Budget) -> float:
    """Tokens per second that trainers and generators could both keep up with."""
    schedule = pipeline_rl(budget.config.generate.max_staleness)
    speeds = ceilings(schedule, budget.cluster, budget.lengths, budget.config.batch_size)
    return min(speeds["generators"], speeds["trainers"])
