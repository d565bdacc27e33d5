"""A run's budget as one readable table."""

from collections.abc import Iterator, Mapping

from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.plan.fit import fastest_split
from rlbook.scale.plan.published import BAND, Published, nearest, published_runs

WIDTH = 30
QUANTITIES = {
    "trainer_seconds": "an update and its push",
    "trainer_bytes": "memory of a trainer",
    "decode_seconds": "a token for every slot",
    "step_seconds": "the whole pipeline",
}
Rows = Iterator[tuple[str, str]]


def table(budget: Budget) -> str:
    """One readable table: devices, memory, time, staleness, the whole run, published runs."""
    parts = (what_runs, memory, time_of_an_update, splits, whole_run, beside_published)
    rows = [row for part in parts for row in part(budget)]
    return "\n".join(f"{name:<{WIDTH}}{value}".rstrip() for name, value in rows)


def what_runs(budget: Budget) -> Rows:
    config, shape = budget.config, budget.shape
    rollout, generate = config.rollout, config.generate
    place = "on the trainers' GPUs" if generate.colocated else "of their own"
    width = f" of {generate.tensor_parallel} GPUs" if generate.tensor_parallel > 1 else ""
    yield "run", f"{config.updates} updates, {config.method.name}, {config.data.task}"
    yield "model", f"{config.model.policy}, {shape.parameters / 1e6:,.1f} M parameters"
    yield (
        "devices",
        f"{budget.config.gpus} ({config.model.device}): {count(budget.ranks, 'trainer')}, "
        f"{count(generate.count, 'generator')}{width} {place}",
    )
    yield (
        "batch",
        f"{config.prompts_per_update} prompts × {rollout.group_size} completions of about "
        f"{budget.lengths.expected:,.0f} tokens (limit {rollout.max_new_tokens:,}), "
        f"{budget.tokens_per_update:,.0f} tokens",
    )


def memory(budget: Budget) -> Rows:
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb
    share = config.generate.gpu_memory * capacity
    checkpointing = "with" if config.train.activation_checkpointing else "no"
    remarks = {
        "weights, gradients, AdamW": f"float32 / {budget.ranks} ranks",
        "gathered parameters": config.train.dtype,
        "activations": f"{checkpointing} checkpointing",
        "head": "logits in float32",
        "weights": config.generate.dtype,
        "keys and values": f"{config.generate.slots} completions, "
        f"{budget.mean_context:,.0f} tokens seen on average",
        "everything else": "assumed",
    }
    yield from sizes("memory of a trainer", budget.trainer_memory, remarks, f" of {capacity:g} GB")
    yield from sizes("memory of a generator", budget.generator_memory, remarks, f" of {share:g} GB")
    saving = {"whole weights": "float32, on the first rank", "everything else": "assumed"}
    yield from sizes("host memory as it saves", budget.host_memory, saving)
    yield from sizes(
        "disk", budget.disk, {"checkpoints": f"{config.checkpoint.keep} and a new one"}
    )


def sizes(name: str, parts: Mapping[str, float], remarks: Mapping[str, str], rest="") -> Rows:
    """Their sum, then each part that takes any room."""
    yield name, amount(sum(parts.values())) + rest
    for part, size in parts.items():
        if size:
            yield f"  {part}", f"{amount(size)}  {remarks.get(part, '')}"


def time_of_an_update(budget: Budget) -> Rows:
    run, generate, known = budget.simulation, budget.config.generate, budget.config.budget
    yield (
        "seconds per update",
        f"{budget.step_seconds:.3g}  ({run.tokens_per_second:,.0f} tokens/s, simulated)",
    )
    head = budget.head_seconds / (budget.head_seconds + budget.layers_seconds)
    yield (
        "  training",
        f"{budget.update_seconds:.3g}  {budget.flops_per_update:.2g} FLOPs, "
        + ("measured" if known.update_seconds else f"layers at {budget.mfu:.0%} of the peak")
        + f", head {head:.0%}",
    )
    yield (
        "  a token for every slot",
        f"{budget.decode_seconds:.3g}  "
        + ("measured" if known.decode_seconds else "memory bandwidth and floors"),
    )
    yield "  new weights", f"{budget.push_seconds:.3g}"
    yield (
        "idle",
        f"trainers {run.trainer_idle:.0%}, generators {run.generator_idle:.0%}, "
        f"{run.occupancy:.0%} of the slots in use",
    )
    ages = enumerate(run.lag_shares)
    shares = ", ".join(f"{age}: {share:.0%}" for age, share in ages if share >= 0.005)
    yield "staleness", f"mean {run.mean_lag:.2g} ({shares})"
    steered = "as set" if generate.target_staleness is not None else "as late as throughput allows"
    yield "  target", f"{run.schedule.ahead}, {steered}"
    yield "  bound", f"{generate.max_staleness}"


def splits(budget: Budget) -> Rows:
    best = fastest_split(budget)
    if best is None:
        return
    if same_split(best, budget):
        yield "fastest split that fits", "this one"
    else:
        generate = best.config.generate
        yield (
            "fastest split that fits",
            f"{count(generate.count, 'generator')} of {generate.slots} slots, "
            f"{count(best.ranks, 'trainer')}: {best.step_seconds:.3g} s per update",
        )


def same_split(one: Budget, other: Budget) -> bool:
    a, b = one.config.generate, other.config.generate
    return (one.ranks, a.count, a.slots) == (other.ranks, b.count, b.slots)


def whole_run(budget: Budget) -> Rows:
    evaluation = budget.evaluation_seconds / budget.seconds
    yield "whole run", f"{duration(budget.seconds)}, {evaluation:.0%} of it for evaluations"
    yield "GPU-hours", f"{budget.gpu_hours:.3g}"
    yield "predicted reward", reward(budget)


def reward(budget: Budget) -> str:
    """On the curve, where it was fitted."""
    curve, fitted = budget.curve, budget.config.budget.curve_fitted
    if curve is None:
        return "none: set budget.curve to A, B, C_mid, R_0 of a fitted curve"
    if fitted is None:
        return "none: set budget.curve_fitted to the GPU-hours between which the curve was fitted"
    low, high = fitted
    spent = [share * budget.gpu_hours for share in (0.25, 0.5, 1)]
    points = [f"{curve(hours):.3f} at {hours:.3g} h" for hours in spent if low <= hours <= high]
    outside = f"{spent[-1]:.3g} h lie outside of the fit ({low:g} to {high:g} h)"
    return ", ".join(points + [outside] * (not low <= spent[-1] <= high))


def beside_published(budget: Budget) -> Rows:
    """Nothing is published of CPUs."""
    if budget.config.model.device == "cpu":
        return
    yield "planned / published", "of the run nearest in model and slots"
    for run in nearest(budget):
        yield f"  {QUANTITIES[run.quantity]}", described(run)
    yield f"  outside of {BAND[0]} to {BAND[1]}", "for a reason unknown to us:"
    for run in published_runs():
        if run.outside:
            yield f"  {QUANTITIES[run.quantity]}", described(run)


def described(run: Published) -> str:
    return f"{run.ratio:.2f}  {run.name}" + " (partly assumed)" * bool(run.assumed)


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
