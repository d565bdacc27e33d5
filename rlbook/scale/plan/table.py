"""A run's budget as one readable table."""

from collections.abc import Iterable, Iterator
from textwrap import fill

from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.plan.fit import changes, fastest_split

NAMES = 30  # letters of the column of names
SLOWER = 1.75  # seconds of a published whole run over those of its plan: at most, for four of six
Row = tuple[str, str]


def table(budget: Budget) -> str:
    """Model, memory, time, staleness, the whole run."""
    parameters = f"{budget.shape.parameters / 1e6:,.1f} M parameters"
    model = "model", f"{budget.config.model.policy}, {parameters}"
    return as_text([model, *memory(budget), *time_of_an_update(budget), *whole_run(budget)])


def as_text(rows: Iterable[Row]) -> str:
    """Names and what there is to say of them, in two columns."""
    lines, further = (f"{name:<{NAMES}}{seen}" for name, seen in rows), " " * (NAMES + 2)
    return "\n".join(fill(line, 112, subsequent_indent=further) for line in lines)


def memory(budget: Budget) -> Iterator[Row]:
    """What each kind of process and the disk hold, part by part."""
    generate, capacity = budget.config.generate, budget.config.budget.gpu_memory_gb
    own = ", the trainers' own" if generate.colocated else ""
    places = f"{generate.count} × {generate.tensor_parallel}{own}"
    share, kept = generate.gpu_memory * capacity, budget.config.checkpoint.keep
    for name, parts, remark in (
        ("trainer", budget.trainer_memory, f"of {capacity:g} on each of {budget.ranks}"),
        ("generator", budget.generator_memory, f"of {share:g} on each of {places}"),
        ("disk", budget.disk, f"with {kept} checkpoints and a new one"),
    ):
        yield name, f"{sum(parts.values()) / GB:9.3f} GB {remark}"
        yield from ((f"  {part}", f"{size / GB:9.3f}") for part, size in parts.items() if size)
    yield "host as it saves", f"{budget.host_memory / GB:9.3f} GB on the first rank"


def time_of_an_update(budget: Budget) -> Iterator[Row]:
    """Who takes how long, and who waits."""
    run, known, rollout = budget.simulation, budget.config.budget, budget.config.rollout
    tokens = f"{budget.lengths.expected:,.0f} tokens (limit {rollout.max_new_tokens:,})"
    training = "measured" if known.update_seconds else f"layers at {budget.mfu:.0%} of the peak"
    decoding = "measured" if known.decode_seconds else "memory bandwidth and floors"
    ages = [f"{age}: {n:.0%}" for age, n in enumerate(run.staleness_shares) if n >= 0.005]
    speed = f"({run.tokens_per_second:,.0f} tokens/s, simulated)"
    yield "batch", f"{rollout.prompts} prompts × {rollout.group_size} completions of about {tokens}"
    yield "seconds per update", f"{budget.step_seconds:.3g}  {speed}"
    yield "  training", f"{budget.update_seconds:.3g}  {training}"
    if budget.config.model.device == "cuda":
        on = " and ".join(budget.config.train.compiled) or "nothing"
        yield "  compiled", f"{on}; what compile_layers and compile_head gain is not measured"
    if budget.ranks > 1:
        within, between = (f"{size / GB:,.3g} GB" for size in budget.traffic)
        copies = f", {between} between {budget.ranks // budget.shards} copies of the weights"
        several = budget.shards < budget.ranks
        yield "  sent by a trainer", f"{within} among {budget.shards}{copies if several else ''}"
    yield "  a token for every slot", f"{budget.decode_seconds:.3g}  {decoding}"
    yield "  new weights", f"{budget.push_seconds:.3g}"
    if budget.sleep_seconds:
        yield "  to sleep and awake", f"{budget.sleep_seconds:.3g}"
    yield "idle trainers", f"{run.trainer_idle:.0%}"
    yield "idle generators", f"{run.generator_idle:.0%}, {run.occupancy:.0%} of the slots in use"
    yield "staleness", f"mean {run.mean_staleness:.2g} ({', '.join(ages)})"
    yield "  target", f"{run.schedule.ahead}, bound {budget.config.generate.max_staleness}"


def whole_run(budget: Budget) -> Iterator[Row]:
    """Planned, and as much slower as published whole runs were than their plans (appendix)."""
    seconds, hours, price = budget.seconds, budget.gpu_hours, budget.config.budget.gpu_hour_price
    if best := fastest_split(budget):
        other = f"set {changes(budget, best)}: {best.step_seconds:.3g} s per update"
        yield "fastest split that fits", "this one" if best == budget else other
    share = f"{budget.evaluation_seconds / seconds:.0%} of the planned for evaluations"
    yield "whole run", f"{duration(seconds)} to {duration(SLOWER * seconds)}, {share}"
    yield "GPU-hours", f"{hours:.3g} to {SLOWER * hours:.3g}"
    if price:
        yield "cost", f"{price * hours:,.0f} to {SLOWER * price * hours:,.0f}, {price:g} an hour"


def duration(seconds: float) -> str:
    """In the unit that reads best: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for unit, size, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
