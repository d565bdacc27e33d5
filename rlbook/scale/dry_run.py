"""`rlbook scale --dry-run`: what a run needs, as one table, and what speaks against it."""

import math
from collections.abc import Iterator

from transformers import AutoConfig, AutoTokenizer

from rlbook.policy.loading import policy_source
from rlbook.scale.budget import FIXED_BYTES, GB, Budget, Prompts
from rlbook.scale.config import ScaleConfig
from rlbook.scale.shape import ModelShape, model_shape, shape_of
from rlbook.tasks import get_task, held_out_problems
from rlbook.training.collect import encode

WIDTH = 30


def dry_run(config: ScaleConfig) -> str:
    """The budget as text. Raises `ValueError` naming fields and fixes if it cannot work."""
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    return table(budget)


def measure_shape(config: ScaleConfig) -> ModelShape:
    """Of `model.policy`, or of the published sizes in `budget.shape`."""
    if config.budget.shape is None:
        return model_shape(config.model.policy)
    settings = dict(config.budget.shape)
    try:
        return shape_of(AutoConfig.for_model(settings.pop("model_type"), **settings))
    except KeyError as error:
        raise ValueError(f"budget.shape: model_type is missing or unknown ({error})") from None


def measure_prompts(config: ScaleConfig) -> Prompts:
    """Lengths of the run's own prompts, or those in `budget.prompt_tokens`.

    Raises `ValueError` for a task that does not have the prompts the settings ask for.
    """
    if config.budget.prompt_tokens:
        return Prompts(*config.budget.prompt_tokens)
    data, task = config.data, get_task(config.data.task)
    problems = {p.id: p for p in task.sample(config.seed, data.pool, data.levels)}
    if len(problems) < config.rollout.prompts:
        raise ValueError(
            f"data.pool: only {len(problems)} different prompts for rollout.prompts "
            f"{config.rollout.prompts}: raise data.pool, or choose more data.levels"
        )
    if config.eval.every:
        held_out_problems(task, config.eval.prompts, data.levels)
    try:
        tokenizer = AutoTokenizer.from_pretrained(policy_source(config.model.policy))
    except OSError:
        raise ValueError(
            f"model.policy {config.model.policy!r}: no tokenizer at hand to measure prompts with: "
            "set budget.prompt_tokens to their mean and longest length"
        ) from None
    lengths = [len(encode(tokenizer, problem)) for problem in problems.values()]
    return Prompts(sum(lengths) / len(lengths), max(lengths))


def check(budget: Budget) -> None:
    """Raises `ValueError` with every reason why the run cannot work, each with its fix."""
    if found := [*impossible(budget), *too_large(budget)]:
        raise ValueError("; ".join(found))


def impossible(budget: Budget) -> Iterator[str]:
    """What no hardware can do."""
    rollout, longest = budget.config.rollout, budget.prompts.longest
    room = budget.shape.positions - longest
    if rollout.max_new_tokens > room:
        yield (
            f"rollout.max_new_tokens {rollout.max_new_tokens}: with prompts of up to {longest} "
            f"tokens it exceeds the model's context of {budget.shape.positions}: set {room} at most"
        )
    if budget.config.data.pool < rollout.prompts:
        yield (
            f"data.pool {budget.config.data.pool} is smaller than rollout.prompts "
            f"{rollout.prompts}: a batch would ask a prompt twice, raise data.pool"
        )


def too_large(budget: Budget) -> Iterator[str]:
    """What does not fit into the memory that `budget.gpu_memory_gb` says there is."""
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb * GB
    generator = config.generator
    taken = generator.gpu_memory * capacity if generator.colocated else 0.0
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
            "generator.tensor_parallel or generator.gpu_memory"
        )
    elif budget.cache_bytes > budget.cache_room:
        fitting = math.floor(generator.slots * budget.cache_room / budget.cache_bytes)
        yield (
            f"generator.slots {generator.slots} need {budget.cache_bytes / GB:.1f} GB of cache, "
            f"{budget.cache_room / GB:.1f} GB are left: set {fitting} at most, or raise "
            "generator.tensor_parallel or generator.gpu_memory"
        )


def trainer_fixes(budget: Budget, room: float) -> str:
    """The changes, each by itself, that would make a trainer fit."""
    trainer = budget.config.trainer
    changes = [("model.activation_checkpointing", [True]), ("model.dtype", ["bfloat16"])]
    tokens = [trainer.micro_batch_tokens >> halved for halved in range(1, 16)]
    changes.append(("trainer.micro_batch_tokens", [n for n in tokens if n >= 256]))
    changes.append(("trainer.processes", [trainer.processes << n for n in range(1, 8)]))
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


def table(budget: Budget) -> str:
    """One readable table: devices, memory, time, staleness, the whole run."""
    rows = [
        *what_runs(budget),
        *trainer_memory(budget),
        *generator_memory(budget),
        *time_of_an_update(budget),
        *whole_run(budget),
    ]
    return "\n".join(f"{name:<{WIDTH}}{value}".rstrip() for name, value in rows)


Rows = Iterator[tuple[str, str]]


def what_runs(budget: Budget) -> Rows:
    config, shape = budget.config, budget.shape
    rollout, generator = config.rollout, config.generator
    place = "on the trainers' GPUs" if generator.colocated else "of their own"
    width = f" of {generator.tensor_parallel} GPUs" if generator.tensor_parallel > 1 else ""
    yield "run", f"{config.steps} updates, {config.trainer.method}, {config.data.task}"
    yield "model", f"{config.model.policy}, {shape.parameters / 1e6:,.4g} M parameters"
    yield (
        "devices",
        f"{budget.gpus} ({config.trainer.device}): {budget.ranks} trainers, "
        f"{budget.servers} generators{width} {place}",
    )
    yield (
        "batch",
        f"{rollout.prompts} prompts × {rollout.group_size} completions of about "
        f"{budget.lengths.expected:,.0f} tokens (limit {rollout.max_new_tokens:,}), "
        f"{budget.tokens_per_update:,.0f} tokens",
    )


def trainer_memory(budget: Budget) -> Rows:
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb
    checkpointing = "with" if config.model.activation_checkpointing else "no"
    yield "memory of a trainer, GB", f"{gb(budget.trainer_bytes)} of {capacity:g}"
    parts = (
        ("weights, gradients, AdamW", budget.state_bytes, f"float32 / {budget.ranks} ranks"),
        ("gathered parameters", budget.gathered_bytes, config.model.dtype),
        ("activations", budget.activation_bytes, f"{checkpointing} checkpointing"),
        ("head and logits", budget.head_bytes, "float32"),
        ("everything else", FIXED_BYTES[config.trainer.device], "assumed"),
    )
    for name, size, remark in parts:
        yield f"  {name}", f"{gb(size)}  {remark}"


def generator_memory(budget: Budget) -> Rows:
    config = budget.config
    share = config.generator.gpu_memory * config.budget.gpu_memory_gb
    used = budget.generator_weight_bytes + budget.cache_bytes
    yield "memory of a generator, GB", f"{gb(used)} of {share:g}"
    yield "  weights", f"{gb(budget.generator_weight_bytes)}  {config.generator.dtype}"
    yield (
        "  keys and values",
        f"{gb(budget.cache_bytes)}  {config.generator.slots} completions, "
        f"{budget.mean_context:,.0f} tokens seen on average",
    )


def time_of_an_update(budget: Budget) -> Rows:
    run, lags = budget.simulation, budget.simulation.lag_shares
    shares = ", ".join(f"{lag}: {share:.0%}" for lag, share in enumerate(lags) if share >= 0.005)
    measured = budget.config.budget
    yield (
        "seconds per update",
        f"{budget.step_seconds:.3g}  ({run.tokens_per_second:,.0f} tokens/s, simulated)",
    )
    yield (
        "  training",
        f"{budget.update_seconds:.3g}  {budget.flops_per_update:.2g} FLOPs, "
        + ("measured" if measured.update_seconds else f"MFU {measured.mfu:.0%} assumed"),
    )
    yield (
        "  a token for every slot",
        f"{budget.decode_seconds:.3g}  "
        + ("measured" if measured.decode_seconds else "memory bandwidth"),
    )
    yield "  new weights", f"{budget.push_seconds:.3g}"
    yield (
        "idle",
        f"trainers {run.trainer_idle:.0%}, generators {run.generator_idle:.0%}, "
        f"{run.occupancy:.0%} of the slots in use",
    )
    yield "lag of trained tokens", f"{shares} (mean {run.mean_lag:.2g})"
    yield "", f"bound {budget.config.rollout.max_lag}: rollout.max_lag"


def whole_run(budget: Budget) -> Rows:
    hours = budget.seconds / 3600
    evaluation = budget.evaluation_seconds / budget.seconds
    yield "whole run", f"{hours:.3g} hours, {evaluation:.0%} of them for evaluations"
    yield "GPU-hours", f"{budget.gpu_hours:.3g}"
    if budget.curve is None:
        yield "predicted reward", "none: set budget.curve to A, B, C_mid, R_0 of a fitted curve"
    else:
        points = [(share, budget.curve(share * budget.gpu_hours)) for share in (0.25, 0.5, 1)]
        shown = ", ".join(f"{reward:.3f} at {share:.0%}" for share, reward in points)
        yield "predicted reward", f"{shown}; limit {budget.curve.A:g}"


def gb(size: float) -> str:
    return f"{size / GB:7.2f}"
