"""A file of settings from four choices: model, task, length of answers, number of GPUs."""

import shlex
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from rlbook.objectives import METHODS
from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.budget import GB, Budget
from rlbook.scale.plan.fit import Settings, check, divided, fastest
from rlbook.scale.plan.table import SLOWER, duration

WIDTHS = (1, 2, 4, 8)  # GPUs of a generator
MICRO_BATCHES = (32_768, 16_384, 8192, 4096, 2048)  # tokens
SLOTS = 512  # at most; as many as there is memory for
HEAD = Path(__file__).with_name("head.txt")  # of a file
SHARED = "Needs {} on a file system that all nodes see, and Ray on all of them (`ray start`).\n"
NODES = "\n    rlbook scale {} --check-nodes    # are all nodes alike?"
WHOLE_WORDS: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
APART: Settings = {"max_staleness": 4}  # trainers and generators side by side,
BESIDE: Settings = {"colocated": True, "sleep": False, **APART}  # the same on one GPU,
AWAKE: Settings = {**BESIDE, "max_staleness": 0}  # and in turns there
TURNS = ({**AWAKE, "sleep": True}, AWAKE, BESIDE)
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

    On one GPU trainer and generator share its memory: side by side, in turns (staleness 0), or in
    turns with the generator asleep during updates.
    """
    micro: list[Settings] = [{"micro_batch_tokens": tokens} for tokens in MICRO_BATCHES]
    if gpus == 1:
        shares: list[Settings] = [
            {"colocated": True, "gpu_memory": share / 20} for share in range(18, 1, -1)
        ]
        return [micro, shares]
    places: list[Settings] = [
        {"tensor_parallel": width, **split}
        for width in WIDTHS
        if not budget.shape.heads % width
        for split in divided(gpus, width, budget.config.train.shard or 1)
    ]
    return [micro, places]


def chosen(budget: Budget, gpus: int, fixed: Collection[str] = ()) -> Budget:
    """The plan on so many GPUs whose updates come fastest, of those that fit.

    The fields that are `fixed` stay as the budget has them. Raises `ValueError` with what speaks
    against all plans.
    """
    kinds = [[free(one, fixed) for one in kind] for kind in choices(budget, gpus)]
    start, plans = free({"slots": SLOTS, "engine": "vllm"}, fixed), []
    config = budget.config
    for pace in TURNS if gpus == 1 else (APART,):
        with suppress(ValueError):  # what is fixed forbids it
            config = budget.config.replace(**start, **free(pace, fixed))
            ways: Iterable[Settings] = (ChainMap(*one) for one in product(*kinds))
            plans.append(fastest(replace(budget, config=config), ways))
    found = [plan for plan in plans if plan]
    if not found:
        tightest: Settings = ChainMap(*(kind[-1] for kind in kinds))
        check(replace(budget, config=config.replace(**tightest)))
        raise ValueError(f"no plan fits {gpus} GPUs: take more of them, or a smaller model")
    best = min(found, key=lambda plan: plan.step_seconds)
    check(best)
    return best


def free(settings: Settings, fixed: Collection[str]) -> Settings:
    """The settings that are not fixed."""
    return {name: value for name, value in settings.items() if name not in fixed}


def as_file(budget: Budget, file: str = "own.yaml", words: Sequence[str] = ()) -> str:
    """The settings of a plan as YAML, each that the plan has chosen with its reason.

    Its head says what command of these words wrote it, how to start it, and what to expect.
    """
    config = budget.config
    own = METHODS.get(config.method.name) == config.method
    named = {"run": config.run, "method": config.method.name if own else config.method.to_dict()}
    wanted = named | differing(ScaleConfig().to_dict() | named, config.to_dict() | named)
    reasons = dict(why(budget))
    lines = [f"# {line}".rstrip() for line in head(budget, file, words)]
    for line in ["", *yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True).splitlines()]:
        reason = reasons.get(line.partition(":")[0].strip())
        lines.append(f"{line:<28} # {reason}" if reason else line)
    return "\n".join([*lines, ""])


def differing(plain: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The entries that are not as in `plain`, at any depth."""
    return {
        name: differing(plain[name], value) if isinstance(plain.get(name), dict) else value
        for name, value in sorted(own.items())
        if plain.get(name) != value
    }


def head(budget: Budget, file: str, words: Sequence[str]) -> Iterator[str]:
    """What stands above the settings."""
    config, run, price = budget.config, budget.simulation, budget.config.budget.gpu_hour_price
    several = config.launch.engine == "ray"
    quoted, cost = map(shlex.quote, words), (price or 0.0) * budget.gpu_hours
    filled = HEAD.read_text().format(
        **{"budget": budget, "config": config, "run": run, "file": file, "slower": SLOWER},
        command=" \\\n        ".join(["rlbook scale", *quoted, f"--gpus {config.gpus}"]),
        needs=SHARED.format(config.run) if several else "",
        nodes=NODES.format(file) if several else "",
        span=duration(budget.seconds),
        cost=f" It costs {cost:,.4g} to {SLOWER * cost:,.4g}." if price else "",
        least=run.tokens_per_second / SLOWER,
    )
    for line in filled.splitlines():
        yield from [line] if line.startswith("    ") else wrap(line, 98, **WHOLE_WORDS) or [""]


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
    yield "max_staleness", f"{turns}: the fastest by the plan"
    yield "sleep", f"updates have its memory; {budget.sleep_seconds:.1f} s a step to sleep and wake"
    yield "tensor_parallel", "weights leave room for the cache on so many"
    yield "prompt_tokens", "mean and longest; null measures them"
    yield "gpu_hour_price", "a guess"
    yield "shape", "as published; null reads the model's own"
