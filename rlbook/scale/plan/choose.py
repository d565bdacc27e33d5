"""A file of settings from four choices: model, task, length of answers, number of GPUs."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import product
from textwrap import fill
from typing import Any

import yaml

from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.plan.fit import Settings, check, fastest
from rlbook.scale.plan.table import duration
from rlbook.training.resume import fixed_differences

WIDTHS = (1, 2, 4, 8)  # GPUs of a generator
MICRO_BATCHES = (32_768, 16_384, 8192, 4096, 2048)  # tokens
SLOTS = 512  # at most; as many as there is memory for
AHEAD = 4  # bound on staleness where trainers and generators work side by side
USUAL: dict[str, Any] = {  # of every run on GPUs; what a person chooses comes on top
    "method": "scalerl",
    "steps": 200,
    "rollout": {"prompts": 32, "group_size": 16, "max_new_tokens": 2048},
    "optimizer": {"lr": 1e-6, "warmup": 10, "minibatches": 1},
    "evaluation": {"every": 20, "prompts": 256, "samples": 4},
    "train": {"dtype": "bfloat16", "activation_checkpointing": True},
}


def choices(budget: Budget, gpus: int) -> list[list[Settings]]:
    """Ways to lay a run out on so many GPUs, kind by kind; one of each kind makes a plan.

    On one GPU trainer and generator share its memory, in turns (staleness 0) or side by side.
    """
    micro: list[Settings] = [{"micro_batch_tokens": tokens} for tokens in MICRO_BATCHES]
    if gpus == 1:
        shares: list[Settings] = [
            {"colocated": True, "gpu_memory": share / 20} for share in range(18, 1, -1)
        ]
        return [micro, shares]
    widths = [width for width in WIDTHS if not budget.shape.heads % width]
    places: list[Settings] = [
        {"tensor_parallel": width, "count": count, "processes": gpus - count * width}
        for width in widths
        for count in range(1, (gpus - 1) // width + 1)
    ]
    return [micro, places]


def chosen(budget: Budget, gpus: int, fixed: Collection[str] = ()) -> Budget:
    """The plan on so many GPUs whose updates come fastest, of those that fit.

    The fields that are `fixed` stay as the budget has them. Raises `ValueError` with what speaks
    against all plans.
    """
    ages = (0, AHEAD) if gpus == 1 else (AHEAD,)
    plans, kinds = [], [[free(one, fixed) for one in kind] for kind in choices(budget, gpus)]
    start = free({"slots": SLOTS, "engine": "vllm"}, fixed)
    for age in ages:
        config = budget.config.replace(**start, **free({"max_staleness": age}, fixed))
        ways: Iterable[Settings] = (ChainMap(*one) for one in product(*kinds))
        plans.append(fastest(replace(budget, config=config), ways))
    found = [plan for plan in plans if plan]
    if not found:
        tightest: Settings = ChainMap(*(kind[-1] for kind in kinds))
        check(replace(budget, config=budget.config.replace(**start, **tightest)))
        raise ValueError(f"no plan fits {gpus} GPUs: take more of them, or a smaller model")
    best = min(found, key=lambda plan: plan.step_seconds)
    check(best)
    return best


def free(settings: Settings, fixed: Collection[str]) -> Settings:
    """The settings that are not fixed."""
    return {name: value for name, value in settings.items() if name not in fixed}


def as_file(budget: Budget) -> str:
    """The settings of a plan as YAML, each that the plan has chosen with its reason."""
    config = budget.config
    plain = ScaleConfig()
    wanted: dict[str, Any] = {"run": config.run, "method": config.method.name}
    for name, (_, value) in fixed_differences(plain, config, ("run", "method")).items():
        *sections, field = name.split(".")
        inside = wanted
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[field] = value
    reasons = dict(why(budget))
    lines = []
    for line in yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True).splitlines():
        reason = reasons.get(line.partition(":")[0].strip())
        lines.append(f"{line:<28} # {reason}" if reason else line)
    places = f"{config.gpus} GPU{'s' * (config.gpus > 1)}"
    head = (
        f"{config.model.policy} on {config.data.task}, {places} of "
        f"{config.budget.gpu_memory_gb:g} GB: planned {duration(budget.seconds)}, "
        f"{budget.step_seconds:.3g} s an update. Written by `rlbook scale` from its plan."
    )
    return "\n".join([fill(head, 98, initial_indent="# ", subsequent_indent="# "), "", *lines, ""])


def why(budget: Budget) -> Iterator[tuple[str, str]]:
    """Setting by setting, the figure that decided."""
    config, run = budget.config, budget.simulation
    generate, cache = config.generate, budget.generator_memory["keys and values"]
    trainer = f"a trainer takes {budget.trainer_bytes / GB:.1f} GB"
    yield "micro_batch_tokens", f"with it {trainer}"
    yield "processes", f"trainers wait {run.trainer_idle:.0%} of the time"
    yield "count", f"generators wait {run.generator_idle:.0%} of the time"
    yield "slots", f"{cache / GB:.1f} GB of keys and values"
    yield "gpu_memory", f"beside it {trainer}"
    turns = "in turns, on-policy" if not generate.max_staleness else "side by side"
    yield "max_staleness", f"{turns}: the faster by the plan"
    yield "tensor_parallel", "weights leave room for the cache on so many"
