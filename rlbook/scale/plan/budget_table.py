"""A run's budget as one readable table."""

from collections.abc import Iterator

from rlbook.scale.plan.budget import FIXED_BYTES, GB, Budget

WIDTH = 30
Rows = Iterator[tuple[str, str]]


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


def what_runs(budget: Budget) -> Rows:
    config, shape = budget.config, budget.shape
    rollout, generate = config.rollout, config.generate
    place = "on the trainers' GPUs" if generate.colocated else "of their own"
    width = f" of {generate.tensor_parallel} GPUs" if generate.tensor_parallel > 1 else ""
    yield "run", f"{config.updates} updates, {config.method.name}, {config.data.task}"
    yield "model", f"{config.model.policy}, {shape.parameters / 1e6:,.4g} M parameters"
    yield (
        "devices",
        f"{budget.gpus} ({config.model.device}): {count(budget.ranks, 'trainer')}, "
        f"{count(budget.servers, 'generator')}{width} {place}",
    )
    yield (
        "batch",
        f"{config.prompts_per_update} prompts × {rollout.group_size} completions of about "
        f"{budget.lengths.expected:,.0f} tokens (limit {rollout.max_new_tokens:,}), "
        f"{budget.tokens_per_update:,.0f} tokens",
    )


def trainer_memory(budget: Budget) -> Rows:
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb
    checkpointing = "with" if config.train.activation_checkpointing else "no"
    yield "memory of a trainer", f"{amount(budget.trainer_bytes)} of {capacity:g} GB"
    parts = (
        ("weights, gradients, AdamW", budget.state_bytes, f"float32 / {budget.ranks} ranks"),
        ("gathered parameters", budget.gathered_bytes, config.train.dtype),
        ("activations", budget.activation_bytes, f"{checkpointing} checkpointing"),
        ("head and logits", budget.head_bytes, "float32"),
        ("everything else", FIXED_BYTES[config.model.device], "assumed"),
    )
    for name, size, remark in parts:
        yield f"  {name}", f"{amount(size)}  {remark}"


def generator_memory(budget: Budget) -> Rows:
    config = budget.config
    share = config.generate.gpu_memory * config.budget.gpu_memory_gb
    rest = FIXED_BYTES[config.model.device]
    used = budget.generator_weight_bytes + budget.cache_bytes + rest
    yield "memory of a generator", f"{amount(used)} of {share:g} GB"
    yield "  weights", f"{amount(budget.generator_weight_bytes)}  {config.generate.dtype}"
    yield (
        "  keys and values",
        f"{amount(budget.cache_bytes)}  {config.generate.slots} completions, "
        f"{budget.mean_context:,.0f} tokens seen on average",
    )
    yield "  everything else", f"{amount(rest)}  assumed"


def time_of_an_update(budget: Budget) -> Rows:
    run, generate = budget.simulation, budget.config.generate
    ages = enumerate(run.lag_shares)
    shares = ", ".join(f"{age}: {share:.0%}" for age, share in ages if share >= 0.005)
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
    yield (
        "staleness",
        f"{shares}; mean {run.mean_lag:.2g}, at most {generate.max_staleness}",
    )
    if best := budget.best_split:
        sides = count(best.generators, "generator"), count(best.trainers, "trainer")
        yield "fastest split", f"{', '.join(sides)}, memory aside"


def whole_run(budget: Budget) -> Rows:
    evaluation = budget.evaluation_seconds / budget.seconds
    yield "whole run", f"{duration(budget.seconds)}, {evaluation:.0%} of it for evaluations"
    yield "GPU-hours", f"{budget.gpu_hours:.3g}"
    if budget.curve is None:
        yield "predicted reward", "none: set budget.curve to A, B, C_mid, R_0 of a fitted curve"
    else:
        points = [(share, budget.curve(share * budget.gpu_hours)) for share in (0.25, 0.5, 1)]
        shown = ", ".join(f"{reward:.3f} at {share:.0%}" for share, reward in points)
        yield "predicted reward", f"{shown}; limit {budget.curve.A:g}"


def amount(size: float) -> str:
    """Bytes in GB or, if they are few, MB; always of one width."""
    return f"{size / GB:7.2f} GB" if size >= 0.1 * GB else f"{size / 1e6:7.2f} MB"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """In the unit that reads best: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for unit, size, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
