"""What speaks against a budget, and which other settings would fit, the fastest of each kind."""

from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from itertools import combinations, product, starmap
from math import floor

from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scaling.shape import ModelShape
from rlbook.scaling.simulator import ceilings, pipeline_rl
from rlbook.training.resume import fixed_differences

Settings = MutableMapping[str, bool | float | str]  # by their names without sections
ROOM = 0.95  # of a GPU's memory that a plan may fill: counts and fragmentation err by some per cent


def check(budget: Budget) -> None:
    """Raises `ValueError` with every reason why the run cannot work, and the fixes."""
    wrong, small = [*impossible(budget)], "; ".join(too_large(budget))
    if small:
        wrong.append(f"{small}: {fixes(budget)}")
    if wrong:
        raise ValueError("; ".join(wrong))


def impossible(budget: Budget) -> Iterator[str]:
    """What no hardware can do."""
    shape, parts = budget.shape, budget.config.generate.tensor_parallel
    limit = budget.config.rollout.max_new_tokens
    yield from beyond_context("rollout.max_new_tokens", limit, budget.prompts, shape)
    if shape.experts:
        yield (
            f"model.policy {budget.config.model.policy}: a mixture of {shape.experts} experts, "
            "whose weights have other names in the trainer than in generators: choose a dense model"
        )
    if shape.heads % parts or (shape.kv_heads % parts and parts % shape.kv_heads):
        yield (
            f"generate.tensor_parallel {parts} does not divide the model's {shape.heads} heads and "
            f"{shape.kv_heads} of keys and values: set it to a power of two up to {shape.kv_heads}"
        )


def beyond_context(setting: str, limit: int, prompts: Prompts, shape: ModelShape) -> Iterator[str]:
    """Completions too long for the model's context after the longest prompt."""
    if (room := shape.positions - prompts.longest) < limit:
        yield (
            f"{setting} {limit}: with prompts of up to {prompts.longest} tokens it exceeds the "
            f"model's context of {shape.positions}: set {room} at most"
        )


def too_large(budget: Budget) -> Iterator[str]:
    """What does not fit into the memory that `budget.gpu_memory_gb` says there is."""
    generate, capacity = budget.config.generate, budget.config.budget.gpu_memory_gb
    served = generate.gpu_memory * capacity
    taken = served if generate.colocated else 0.0
    if generate.sleep:  # then it keeps its context and kernels alone
        taken = budget.floors["server"] / GB
        if budget.resting > (ROOM * capacity - served) * GB:
            yield (
                f"between updates a trainer keeps {budget.resting / GB:.1f} GB of {capacity:.1f} "
                f"GB, beside generators that take {served:.1f} GB"
            )
    if budget.trainer_bytes > (ROOM * capacity - taken) * GB:
        beside = f", beside generators that take {taken:.1f} GB" if taken else ""
        yield (
            f"a trainer needs {budget.trainer_bytes / GB:.1f} GB of {capacity:.1f} GB, "
            f"{1 - ROOM:.0%} of which stay free{beside}"
        )
    longest = budget.prompts.longest + budget.config.rollout.max_new_tokens
    one = longest * budget.cache_bytes_per_token
    if (needed := max(one, budget.generator_memory["keys and values"])) > budget.cache_room:
        yield (
            f"generate.slots {generate.slots} need {needed / GB:.1f} GB of cache, "
            f"{max(0, budget.cache_room) / GB:.1f} GB are left beside a generator's weights"
        )


def fixes(budget: Budget) -> str:
    """Changes that make all fit: the fastest of each kind, or of each pair of kinds."""
    for size in (0, 1, 2):
        kinds = combinations(ways_to_fit(budget), size)
        plans = [fastest(budget, starmap(ChainMap, product(*ways))) for ways in kinds]
        if found := [f"set {changes(budget, plan)}" for plan in plans if plan]:
            return " or ".join(found)
    return "no two changes help: take more GPUs, wider generators or a smaller model"


def ways_to_fit(budget: Budget) -> list[list[Settings]]:
    """What makes a trainer or a generator smaller; the GPUs stay as many as they are."""
    tokens = budget.config.optimizer.micro_batch_tokens
    return [
        [{"activation_checkpointing": True}],
        [{"accumulate": False}],
        [{"train_dtype": "bfloat16"}],
        [{"micro_batch_tokens": max(1, tokens >> halvings)} for halvings in range(1, 8)],
        [{"gpu_memory": tenths / 10} for tenths in range(9, 0, -1)],
        splits(budget),
    ]


def splits(budget: Budget) -> list[Settings]:
    """The divisions of the GPUs into trainers and generators; none if these share them."""
    if budget.config.generate.colocated:
        return []
    config = budget.config
    return divided(config.gpus, config.generate.tensor_parallel, config.train.shard or 1)


def divided(gpus: int, width: int, shard: int) -> list[Settings]:
    """All ways to give generators of this width some GPUs, and whole copies of the trainer's."""
    counts = [n for n in range(1, (gpus - 1) // width + 1) if not (gpus - n * width) % shard]
    return [{"processes": gpus - count * width, "count": count} for count in counts]


def fastest_split(budget: Budget) -> Budget | None:
    """The GPUs divided into trainers and generators as the simulator's ceilings favour.

    None if nothing can be divided, or no division fits. `generate.tensor_parallel` stays.
    """
    return fastest(budget, splits(budget))


def fastest(budget: Budget, candidates: Iterable[Settings]) -> Budget | None:
    """Of the plans with these changes that fit the one whose slower side is the fastest.

    The first of equals. A generator's slots are lowered to what its memory holds.
    """
    plans = (changed(budget, settings) for settings in candidates)
    return max((plan for plan in plans if not any(too_large(plan))), key=speed, default=None)


def changed(budget: Budget, settings: Settings) -> Budget:
    """The budget of other settings, with no more slots than there is memory for."""
    plan = replace(budget, config=budget.config.replace(**settings))
    slots = plan.config.generate.slots
    held = floor(slots * plan.cache_room / plan.generator_memory["keys and values"])
    return replace(plan, config=plan.config.replace(slots=held)) if 0 < held < slots else plan


def changes(budget: Budget, plan: Budget) -> str:
    """What the settings of a plan change, in words."""
    differing = fixed_differences(budget.config, plan.config, ())
    return " and ".join(f"{name} to {value}" for name, (_, value) in differing.items())


def speed(budget: Budget) -> float:
    """Tokens per second that trainers and generators could both keep up with."""
    schedule = pipeline_rl(budget.config.generate.max_staleness)
    speeds = ceilings(schedule, budget.cluster, budget.lengths, budget.config.batch_size)
    return min(speeds["generators"], speeds["trainers"])
