"""`rlbook scale --dry-run`: what a run needs, and what speaks against it."""

import math
from collections.abc import Iterator

from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer

from rlbook.policy.loading import policy_source
from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.plan.budget_table import table
from rlbook.scale.plan.shape import ModelShape, model_shape, shape_of
from rlbook.scale.rollout.tickets import training_problems
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.training.collect import encode
from rlbook.training.rewards import get_reward


def dry_run(config: ScaleConfig) -> str:
    """The budget as text. Raises `ValueError` naming fields and fixes if it cannot work."""
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    return table(budget)


def check_start(config: ScaleConfig) -> None:
    """What a launcher asks first: the run's own model, context and prompts, whatever the hardware.

    Raises `ValueError` naming fields and fixes, `ImportError` for a task or reward of one's own
    that cannot be found.
    """
    if config.data.reward:
        get_reward(config.data.reward)
    own = config.budget.model_copy(update={"shape": None, "prompt_tokens": None})
    config = config.model_copy(update={"budget": own})
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    if found := list(impossible(budget)):
        raise ValueError("; ".join(found))


def measure_shape(config: ScaleConfig) -> ModelShape:
    """Of `model.policy`, or of the published sizes in `budget.shape`."""
    if config.budget.shape is None:
        return model_shape(config.model.policy)
    settings = dict(config.budget.shape)
    kind = settings.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"budget.shape: model_type is {kind!r}, write llama, qwen3, …")
    return shape_of(AutoConfig.for_model(kind, **settings))


def measure_prompts(config: ScaleConfig) -> Prompts:
    """Lengths of the run's own prompts, or those in `budget.prompt_tokens`.

    The task is asked for its prompts in both cases, unless it is a data set that is not at hand.
    Raises `ValueError` for a task that does not have the prompts the settings ask for.
    """
    known = config.budget.prompt_tokens
    try:
        problems = problems_of(config)
    except (ImportError, OSError):
        if known is None:
            raise
        return Prompts(*known)
    return Prompts(*known) if known else measured(config, problems)


def problems_of(config: ScaleConfig) -> list[Problem]:
    """The training problems. Raises `ValueError` if there are too few, or too few held out."""
    data, task, needed = config.data, get_task(config.data.task), config.prompts_per_update
    problems = training_problems(task, config)
    if len(problems) < needed:
        raise ValueError(
            f"data.pool: only {len(problems)} different prompts for updates on {needed} "
            "(rollout.prompts / optimizer.minibatches): raise data.pool, or choose more data.levels"
        )
    if config.evaluation.every:
        held_out_problems(task, config.evaluation.prompts, data.levels)
    return problems


def measured(config: ScaleConfig, problems: list[Problem]) -> Prompts:
    """Mean and longest prompt, with the policy's tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(policy_source(config.model.policy))
    except OSError:
        raise ValueError(
            f"model.policy {config.model.policy!r}: no tokenizer at hand to measure prompts with: "
            "set budget.prompt_tokens to their mean and longest length"
        ) from None
    lengths = [len(encode(tokenizer, problem)) for problem in problems]
    return Prompts(sum(lengths) / len(lengths), max(lengths))


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
    generate = config.generate
    taken = generate.gpu_memory * capacity if generate.colocated else 0.0
    if budget.trainer_bytes + taken > capacity:
        shared = f", beside generators that take {taken / GB:.1f} GB" if taken else ""
        yield (
            f"a trainer needs {budget.trainer_bytes / GB:.1f} GB of {capacity / GB:.1f} GB"
            f"{shared}: {trainer_fixes(budget, capacity - taken)}"
        )
    sequence = budget.prompts.longest + config.rollout.max_new_tokens
    if budget.cache_room < sequence * budget.cache_bytes_per_token:
        yield (
            f"a generator's weights ({budget.generator_weight_bytes / GB:.1f} GB) leave no room "
            f"for the cache of one completion of {sequence} tokens: raise "
            "generate.tensor_parallel or generate.gpu_memory"
        )
    elif budget.cache_bytes > budget.cache_room:
        fitting = math.floor(generate.slots * budget.cache_room / budget.cache_bytes)
        yield (
            f"generate.slots {generate.slots} need {budget.cache_bytes / GB:.1f} GB of cache, "
            f"{budget.cache_room / GB:.1f} GB are left: set {fitting} at most, or raise "
            "generate.tensor_parallel or generate.gpu_memory"
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
        fits = (v for v in values if changed(budget, name, v).trainer_bytes <= room)
        if (value := next(fits, None)) is not None:
            fixes.append(f"set {name} to {value}")
    return " or ".join(fixes) or "no single change helps: take more GPUs or a smaller model"


def changed(budget: Budget, name: str, value: object) -> Budget:
    """The same budget with one setting replaced."""
    section, field = name.split(".")
    part = getattr(budget.config, section).model_copy(update={field: value})
    config = budget.config.model_copy(update={section: part})
    return Budget(config, budget.shape, budget.prompts)
