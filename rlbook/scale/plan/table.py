"""A run's budget as one readable table."""

from collections.abc import Iterator
from textwrap import wrap

from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.plan.fit import fastest_split
from rlbook.scaling.compute_curves import Sigmoid

WIDTH = 30
SLOWER = 1.6  # seconds of published whole runs over those of their plans: between 1 and this
Rows = Iterator[tuple[str, str]]


def table(budget: Budget) -> str:
    """Devices, memory, time, staleness, the whole run."""
    parts = (what_runs, memory, time_of_an_update, splits, whole_run)
    return as_text(row for part in parts for row in part(budget))


def as_text(rows: Rows) -> str:
    """Names and what there is to say of them, in two columns; → on a line of its own."""
    lines, indent = [], " " * WIDTH
    for name, value in rows:
        seen, _, fix = value.partition("→")
        lines.append(f"{name:<{WIDTH}}{seen}".rstrip())
        further = f"{indent}  "
        how = wrap(f"→ {fix.strip()}", 110, initial_indent=indent, subsequent_indent=further)
        lines += how if fix else []
    return "\n".join(lines)


def what_runs(budget: Budget) -> Rows:
    """Processes, model, task and sizes of a batch."""
    config, rollout, generate = budget.config, budget.config.rollout, budget.config.generate
    place = "on the trainers' GPUs" if generate.colocated else "of their own"
    width = f" of {generate.tensor_parallel} GPUs" if generate.tensor_parallel > 1 else ""
    split = f"{count(budget.ranks, 'trainer')}, {count(generate.count, 'generator')}{width} {place}"
    answers = f"{rollout.group_size} completions of about {budget.lengths.expected:,.0f} tokens"
    total = f"(limit {rollout.max_new_tokens:,}), {budget.tokens_per_update:,.0f} tokens"
    yield "run", f"{config.steps} steps, {config.method.name}, {config.data.task}"
    yield "model", f"{config.model.policy}, {budget.shape.parameters / 1e6:,.1f} M parameters"
    yield "devices", f"{config.gpus} ({config.model.device}): {split}"
    yield "batch", f"{rollout.prompts} prompts × {answers} {total}"


def memory(budget: Budget) -> Rows:
    """What each kind of process and the disk hold, part by part."""
    config, capacity = budget.config, budget.config.budget.gpu_memory_gb
    checkpointing = "with" if config.train.activation_checkpointing else "no"
    seen = f"{budget.mean_context:,.0f} tokens seen on average"
    remarks = {
        "weights, gradients, AdamW": f"float32 / {budget.ranks} ranks",
        "gathered parameters": config.train.dtype,
        "activations": f"{checkpointing} checkpointing",
        "head": "logits in float32",
        "weights": config.generate.dtype,
        "keys and values": f"{config.generate.slots} completions, {seen}",
        "whole weights": "float32, on the first rank",
        "checkpoints": f"{config.checkpoint.keep} and a new one",
        "everything else": "assumed",
    }
    share = config.generate.gpu_memory * capacity
    for name, parts, rest in (
        ("memory of a trainer", budget.trainer_memory, f" of {capacity:g} GB"),
        ("memory of a generator", budget.generator_memory, f" of {share:g} GB"),
        ("host memory as it saves", budget.host_memory, ""),
        ("disk", budget.disk, ""),
    ):
        yield name, amount(sum(parts.values())) + rest
        for part, size in parts.items():
            if size:
                yield f"  {part}", f"{amount(size)}  {remarks.get(part, '')}"


def time_of_an_update(budget: Budget) -> Rows:
    """Who takes how long, and who waits."""
    run, generate, known = budget.simulation, budget.config.generate, budget.config.budget
    head = budget.head_seconds / (budget.head_seconds + budget.layers_seconds)
    training = "measured" if known.update_seconds else f"layers at {budget.mfu:.0%} of the peak"
    training = f"{budget.flops_per_update:.2g} FLOPs, {training}, head {head:.0%}"
    decoding = "measured" if known.decode_seconds else "memory bandwidth and floors"
    ages = enumerate(run.staleness_shares)
    shares = ", ".join(f"{age}: {share:.0%}" for age, share in ages if share >= 0.005)
    steered = "as set" if generate.target_staleness is not None else "as late as throughput allows"
    speed = f"({run.tokens_per_second:,.0f} tokens/s, simulated)"
    idle = f"trainers {run.trainer_idle:.0%}, generators {run.generator_idle:.0%}"
    yield "seconds per update", f"{budget.step_seconds:.3g}  {speed}"
    yield "  training", f"{budget.update_seconds:.3g}  {training}"
    yield "  a token for every slot", f"{budget.decode_seconds:.3g}  {decoding}"
    yield "  new weights", f"{budget.push_seconds:.3g}"
    yield "idle", f"{idle}, {run.occupancy:.0%} of the slots in use"
    yield "staleness", f"mean {run.mean_staleness:.2g} ({shares})"
    yield "  target", f"{run.schedule.ahead}, {steered}"
    yield "  bound", f"{generate.max_staleness}"


def splits(budget: Budget) -> Rows:
    """The split of the GPUs that is planned to be fastest, if it is another."""
    if best := fastest_split(budget):
        generators = f"{count(best.config.generate.count, 'generator')} of"
        other = f"{generators} {best.config.generate.slots} slots, {count(best.ranks, 'trainer')}"
        seconds = f"{best.step_seconds:.3g} s per update"
        found = "this one" if same_split(best, budget) else f"{other}: {seconds}"
        yield "fastest split that fits", found


def same_split(one: Budget, other: Budget) -> bool:
    """Whether two plans divide the accelerators alike."""
    a, b = one.config.generate, other.config.generate
    return (one.ranks, a.count, a.slots) == (other.ranks, b.count, b.slots)


def whole_run(budget: Budget) -> Rows:
    """Planned, and as much slower as published whole runs were than their plans (appendix)."""
    seconds, hours, price = budget.seconds, budget.gpu_hours, budget.config.budget.gpu_hour_price
    evaluations = f"{budget.evaluation_seconds / seconds:.0%} of the planned for evaluations"
    yield "whole run", f"{duration(seconds)} to {duration(SLOWER * seconds)}, {evaluations}"
    yield "GPU-hours", f"{hours:.3g} to {SLOWER * hours:.3g}"
    if price:
        yield "cost", f"{price * hours:,.0f} to {SLOWER * price * hours:,.0f}, {price:g} an hour"
    yield "predicted reward", reward(budget)


def reward(budget: Budget) -> str:
    """On the curve, where it was fitted."""
    known, fitted = budget.config.budget.curve, budget.config.budget.curve_fitted
    if known is None:
        return "none: set budget.curve to A, B, C_mid, R_0 of a fitted curve"
    if fitted is None:
        return "none: set budget.curve_fitted to the GPU-hours between which the curve was fitted"
    curve, (low, high) = Sigmoid(*known), fitted
    spent = [share * budget.gpu_hours for share in (0.25, 0.5, 1)]
    points = [f"{curve(hours):.3f} at {hours:.3g} h" for hours in spent if low <= hours <= high]
    outside = f"{spent[-1]:.3g} h lie outside of the fit ({low:g} to {high:g} h)"
    return ", ".join(points + [outside] * (not low <= spent[-1] <= high))


def amount(size: float) -> str:
    """Bytes in GB or, if they are few, MB; always of one width."""
    return f"{size / GB:7.2f} GB" if size >= 0.1 * GB else f"{size / 1e6:7.2f} MB"


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """In the unit that reads best: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for unit, size, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
