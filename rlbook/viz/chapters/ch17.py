"""Figures of chapter 17: processes, slots, budgets, versions, and all methods side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from rlbook.exact.four_completions import FOUR
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch.dry_run import changed, measure_prompts, measure_shape, too_large
from rlbook.scale.plan.budget import FIXED_BYTES, GB, Budget
from rlbook.scaling.pipeline import PipelineRun, ceilings, pipeline_rl
from rlbook.training import Rollout
from rlbook.viz.style import BAD, CYCLE, FAINT, GOOD, INK, MUTED

PROCESS, FOLDER = "#eaf2f8", "#f6f1e2"
BOXES = (  # left, bottom, width, height, colour, title, text
    (2, 88, 96, 11, PROCESS, "launcher", "starts every process, and starts it again when it dies"),
    (2, 38, 22, 36, PROCESS, "generators", "vLLM or the\nbook's sampler,\nas HTTP servers"),
    (39, 52, 22, 22, PROCESS, "orchestrator", "prompts, groups,\nrewards, pacing"),
    (76, 38, 22, 36, PROCESS, "trainer ranks", "torchrun, FSDP2,\nour train_step"),
    (39, 27, 22, 12, FOLDER, "spool/", "a log of batches"),
    (39, 3, 22, 12, FOLDER, "weights/", "or over the network"),
    (76, 3, 22, 17, FOLDER, "step_…/", "model, AdamW,\npool, version"),
)
ARROWS = (  # from, to, bend, colour, what flows, where that is written
    ((39, 69), (24, 69), 0, MUTED, "prompts", (31.5, 71.8)),
    ((24, 57), (39, 57), 0, GOOD, "tokens, log μ,\nversions", (31.5, 62.5)),
    ((50, 52), (50, 39), 0, GOOD, "batch b", (55.5, 45.5)),
    ((61, 34), (76, 46), 0, GOOD, "batch b", (72, 37)),
    ((76, 66), (61, 66), 0, MUTED, "status: b", (68.5, 68.8)),
    ((77, 38), (61, 12), 0, BAD, "version\nb + 1", (63.5, 24)),
    ((39, 8), (13, 38), -0.3, BAD, "after every\nupdate", (14, 15)),
    ((83, 38), (83, 20), 0, MUTED, "", None),
    ((91, 20), (91, 38), 0, MUTED, "", None),
    ((13, 88), (13, 74), 0, FAINT, "", None),
    ((50, 88), (50, 74), 0, FAINT, "", None),
    ((87, 88), (87, 74), 0, FAINT, "", None),
)


def draw_processes(ax: Axes) -> None:
    """Who talks to whom, and what passes through the run folder."""
    for left, bottom, width, height, colour, title, text in BOXES:
        style = "square,pad=0" if colour == FOLDER else "round,pad=0,rounding_size=1.5"
        box = FancyBboxPatch((left, bottom), width, height, style, fc=colour, ec="#9a9a9a", lw=0.9)
        ax.add_patch(box)
        font = {"family": "monospace"} if colour == FOLDER else {"fontweight": "bold"}
        centre, top = left + width / 2, bottom + height - 1.5
        ax.text(centre, top, title, ha="center", va="top", fontsize=9.5, **font)
        ax.text(centre, top - 4.8, text, ha="center", va="top", fontsize=8.5, color=MUTED)
    for start, end, bend, colour, text, place in ARROWS:
        bent = f"arc3,rad={bend}"
        style = {"arrowstyle": "-|>", "mutation_scale": 11, "connectionstyle": bent}
        ax.add_patch(FancyArrowPatch(start, end, lw=1.4, color=colour, **style))
        if text:
            ax.text(*place, text, fontsize=8.5, color=colour, ha="center", va="center")
    ax.set(xlim=(0, 100), ylim=(0, 100))
    ax.axis("off")


def draw_slots(ax: Axes, run: PipelineRun, first: int, minutes: float) -> None:
    """Slots in use for some minutes after update `first` of a simulated run, and its updates."""
    times = run.clock[first] + np.linspace(0, 60 * minutes, 600)
    writing = (run.started[:, None] <= times) & (times < run.finished[:, None])
    slots = run.cluster.generators * run.cluster.slots
    ax.fill_between((times - times[0]) / 60, writing.sum(0) / slots, color=GOOD, alpha=0.35, lw=0)
    for clock in run.clock[(run.clock > times[0]) & (run.clock < times[-1])]:
        ax.axvline((clock - times[0]) / 60, color=BAD, lw=1)
    ax.set(ylim=(0, 1.05), xlim=(0, minutes), ylabel="slots in use")


def draw_budget(fig: Figure, budget: Budget) -> None:
    """Memory of a trainer and of a generator, and who waits for whom."""
    trainer = {
        "weights, gradients, AdamW": budget.state_bytes,
        "layers": budget.gathered_bytes,
        "activations": budget.activation_bytes,
        "head": budget.head_bytes,
        "rest": FIXED_BYTES[budget.config.model.device],
    }
    generator = {"weights": budget.generator_weight_bytes, "keys and values": budget.cache_bytes}
    memory, idle = fig.subplots(1, 2, width_ratios=(2, 1))
    capacity = budget.config.budget.gpu_memory_gb
    memory.set_xlim(0, 1.25 * capacity)
    draw_stack(memory, 1, trainer)
    draw_stack(memory, 0, generator | {"rest": trainer["rest"]})
    memory.axvline(capacity, color=BAD, lw=1.2)
    memory.set(yticks=(0, 1), yticklabels=("generator", "trainer"), ylim=(-0.5, 1.75))
    memory.set_xlabel(f"GB on one GPU of {capacity:g}")
    memory.grid(False)
    run = budget.simulation
    shares = (run.generator_idle, run.trainer_idle)
    idle.barh((0, 1), shares, color=[BAD if share > 0.3 else GOOD for share in shares], height=0.5)
    for row, share in enumerate(shares):
        idle.text(share + 0.03, row, f"{share:.0%}", va="center", fontsize=9)
    idle.set(
        xlim=(0, 1.2), ylim=(-0.5, 1.75), yticks=(), xticks=(), xlabel="share of the time idle"
    )
    idle.grid(False)
    fig.suptitle(budget_line(budget), x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def draw_stack(ax: Axes, row: int, parts: Mapping[str, float]) -> None:
    """One stacked bar in GB; a part is named above it where its name fits."""
    left, letter = 0.0, 0.0125 * ax.get_xlim()[1]
    for (name, size), colour in zip(parts.items(), CYCLE, strict=False):
        size /= GB
        ax.barh(row, size, left=left, height=0.5, color=colour, alpha=0.8)
        if size > letter * len(name):
            ax.text(left + size / 2, row + 0.3, name, ha="center", va="bottom", fontsize=8)
        left += size
    ax.text(left + letter, row, f"{left:.0f}", va="center", fontsize=9)


def budget_line(budget: Budget) -> str:
    """The whole run in one line."""
    age = budget.simulation.mean_lag
    return (
        f"{budget.ranks} trainers, {budget.servers} generators: {budget.step_seconds:.0f} s an "
        f"update, {budget.gpu_hours:,.0f} GPU-hours, mean staleness {age:.1f}"
    )


def draw_versions(ax: Axes, rollouts: Sequence[Rollout], tokenizer) -> None:
    """Completions, each on the colours of the policies that wrote it, in order of appearance."""
    colours = ("#cfe3f3", "#ffd9a0", "#cdeccf", "#f3cfe0", FAINT)
    for row, rollout in enumerate(rollouts):
        versions = list(dict.fromkeys(rollout.versions))
        shown = " → ".join(map(str, versions))
        ax.text(-1, row, f"versions {shown}", ha="right", va="center", fontsize=8.5, color=MUTED)
        column = 0
        for token, version in zip(rollout.token_ids, rollout.versions, strict=True):
            ended = token == tokenizer.eos_token_id
            text = "⏎" if ended else tokenizer.decode([token]).strip() or " "
            colour = colours[versions.index(version) % len(colours)]
            ax.fill_between(
                (column, column + len(text)), row - 0.42, row + 0.42, color=colour, lw=0
            )
            for place, letter in enumerate(text):
                spot = (column + place + 0.5, row)
                ax.annotate(letter, spot, ha="center", va="center", fontsize=7, family="monospace")
            column += len(text)
    longest = max(len(rollout.text) for rollout in rollouts) + 2
    ax.set(xlim=(-0.2 * longest, longest), ylim=(len(rollouts) - 0.4, -0.6))
    ax.axis("off")


def draw_pushes(ax: Axes, pushes: Mapping[str, Sequence[float]]) -> None:
    """What each method does to the 16 tokens of the four completions, a row per method."""
    table = np.array(list(pushes.values()))
    largest = np.abs(table).max(1, keepdims=True)
    image = np.divide(table, largest, out=np.zeros_like(table), where=largest > 0)
    colours = ListedColormap(diverging())
    ax.imshow(image, cmap=colours, norm=TwoSlopeNorm(0, -1, 1), aspect="auto")
    for row, column in np.argwhere(table == 0):
        ax.text(column, row, "·", ha="center", va="center", color=MUTED, fontsize=8)
    labels = [f"{name[0]}{t + 1}" for name, n in zip(FOUR.names, FOUR.lengths.tolist(), strict=True)
              for t in range(n)]  # fmt: skip
    for edge in np.cumsum(FOUR.lengths.tolist())[:-1]:
        ax.axvline(edge - 0.5, color=INK, lw=1)
    ax.set_xticks(range(len(labels)), labels)
    ax.set_yticks(range(len(pushes)), list(pushes))
    ax.tick_params(length=0)
    ax.grid(False)


def diverging() -> np.ndarray:
    """Red for down, white for nothing, blue for up."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("push", (BAD, "white", GOOD))(np.linspace(0, 1, 257))


# hidden size, MLP size, layers, heads, KV heads, tied embeddings: published config.json files
QWEN3 = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, True),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, True),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, False),
    "Qwen3-14B": (5120, 17408, 40, 40, 8, False),
    "Qwen3-32B": (5120, 25600, 64, 64, 8, False),
}


def qwen3_shape(name: str) -> dict:
    """The part of a model's config.json that a budget needs, as `budget.shape` takes it."""
    hidden, inner, layers, heads, kv_heads, tied = QWEN3[name]
    return {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": tied,
    }


def fitting_budget(config: ScaleConfig, gpus: int) -> Budget:
    """The division of the GPUs into trainers and generators that is fastest among those that fit.

    The slots of a generator are lowered to what its memory holds. Raises `ValueError` if no
    division fits.
    """
    shape, prompts = measure_shape(config), measure_prompts(config)
    width = config.generate.tensor_parallel
    candidates = []
    for count in range(1, (gpus - 1) // width + 1):
        budget = Budget(config, shape, prompts)
        budget = changed(budget, "train.processes", gpus - count * width)
        budget = changed(budget, "generate.count", count)
        if budget.cache_bytes > budget.cache_room > 0:
            slots = int(config.generate.slots * budget.cache_room / budget.cache_bytes)
            budget = changed(budget, "generate.slots", max(1, slots))
        if not list(too_large(budget)):
            candidates.append(budget)
    if not candidates:
        raise ValueError(f"{config.model.policy} does not fit on {gpus} GPUs with these settings")
    schedule, batch = pipeline_rl(config.generate.max_staleness), config.batch_size

    def slower_side(budget: Budget) -> float:
        speeds = ceilings(schedule, budget.cluster, budget.lengths, batch)
        return min(speeds["generators"], speeds["trainers"])

    return max(candidates, key=slower_side)
