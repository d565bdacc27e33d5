"""`rlbook scale --dry-run`: what a run needs, what speaks against it, and what this machine has."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch

from rlbook.durable import held, replace_text
from rlbook.extras import require
from rlbook.policy import load_tokenizer
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import gpu_memory_gb
from rlbook.scale.launch.commands import run_commands
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.plan.fit import beyond_context, check, impossible
from rlbook.scale.plan.table import as_text, table
from rlbook.scale.rollout.evaluate import named_set
from rlbook.scaling.shape import ModelShape, described_shape, model_shape
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.tasks.audit import remark
from rlbook.training.chat import encode
from rlbook.training.pool import training_problems
from rlbook.training.rewards import get_reward

SAME_SIZE = 0.97  # of the memory planned with: makers' gigabytes differ
COMPILE = """
import sys, torch
try:
    torch.compile(lambda x: x.sin().cos())(torch.ones(3, device=sys.argv[1]))
except Exception as error:
    sys.exit(str(error).splitlines()[0])
"""


def dry_run(config: ScaleConfig) -> str:
    """The budget as text, and this machine beside it.

    Raises `ValueError` naming fields and fixes if the run cannot work, on whatever machine.
    """
    with suppress(ImportError, OSError):  # a data set that is not at hand
        problems_of(config)
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    machine = as_text(amiss(budget)) or "nothing that the run needs is missing"
    audited = remark(config.data.task)
    return f"{table(budget)}\n\non this machine\n{machine}" + (f"\n{audited}" if audited else "")


def check_start(config: ScaleConfig) -> int:
    """What a launcher asks first: the run's own model, context and prompts, whatever the hardware.

    Returns the longest prompt with its answer, in tokens. Raises `ValueError` naming fields and
    fixes, `ImportError` for a task or reward of one's own that cannot be found.
    """
    if config.data.reward:
        get_reward(config.data.reward)
    config = config.replace(budget={"shape": None, "prompt_tokens": None})
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    found, limit = [*impossible(budget)], config.rollout.max_new_tokens
    cut = config.generate.interruption
    longest = budget.prompts.longest + limit + (len(cut.text.encode()) if cut else 0)
    for name, own, problems in asked_besides(config):
        prompts = measured(config, problems)
        found += beyond_context(name, own or limit, prompts, budget.shape)
        longest = max(longest, prompts.longest + (own or limit))
    if found:
        raise ValueError("; ".join(found))
    return min(longest, budget.shape.positions)


def asked_besides(config: ScaleConfig) -> Iterator[tuple[str, int | None, Sequence[Problem]]]:
    """Problems of evaluations: the setting of their limit, the limit if it is their own, they."""
    evaluation, data = config.evaluation, config.data
    if not evaluation.every:
        return
    held_out = held_out_problems(get_task(data.task), evaluation.prompts, data.levels)
    yield "rollout.max_new_tokens", None, held_out
    for name, one in evaluation.sets.items():
        setting = f"evaluation.sets.{name}.max_new_tokens"
        yield setting, one.max_new_tokens, named_set(name, one, config).problems


def measure_shape(config: ScaleConfig) -> ModelShape:
    """Of `model.policy`, or of the published sizes in `budget.shape`."""
    described = config.budget.shape
    return model_shape(config.model.policy) if described is None else described_shape(described)


def measure_prompts(config: ScaleConfig) -> Prompts:
    """Lengths of the run's own prompts, or those in `budget.prompt_tokens`."""
    known = config.budget.prompt_tokens
    return Prompts(*known) if known else measured(config, problems_of(config))


def problems_of(config: ScaleConfig) -> list[Problem]:
    """The training problems. Raises `ValueError` if there are too few, or too few held out."""
    if config.data.task.startswith("dataset:"):
        require("tasks", "math_verify")
    data, task, needed = config.data, get_task(config.data.task), config.rollout.prompts
    task.sample(config.seed, 1)  # data that cannot be read say so here
    problems = training_problems(task, config)
    if len(problems) < needed:
        raise ValueError(
            f"data.pool: only {len(problems)} different prompts for batches of {needed} "
            "(rollout.prompts): raise data.pool, or choose more data.levels"
        )
    if config.evaluation.every:
        held_out_problems(task, config.evaluation.prompts, data.levels)
        for one in config.evaluation.sets.items():
            named_set(*one, config, problems)
    return problems


def measured(config: ScaleConfig, problems: Sequence[Problem]) -> Prompts:
    """Mean and longest prompt, with the policy's tokenizer."""
    try:
        tokenizer = load_tokenizer(config.model.policy)
    except OSError:
        raise ValueError(
            f"model.policy {config.model.policy!r}: no tokenizer at hand to measure prompts with: "
            "set budget.prompt_tokens to their mean and longest length"
        ) from None
    lengths = [len(encode(tokenizer, one, config.model.chat)) for one in problems]
    return Prompts(sum(lengths) / len(lengths), max(lengths))


def amiss(budget: Budget) -> Iterator[tuple[str, str]]:
    """What this machine has not and the run needs, each with its fix."""
    config, folder = budget.config, budget.config.folder.absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(there).free
    for name, free, needed, fix in (
        ("host memory", memory, budget.host_memory, "choose a smaller model"),
        ("disk", disk, sum(budget.disk.values()), "free some, or set run to another"),
    ):
        if free < needed:
            yield name, f"{free / GB:.1f} GB free, the run needs {needed / GB:.3g}: {fix}"
    for name, look in {
        "GPUs": lambda: check_machine(config),
        "compiler": lambda: check_compiler(config),
        "run folder": lambda: check_folder(there),
        "generators": lambda: run_commands(config, Layout(folder)),
        "task": lambda: problems_of(config),
    }.items():
        try:
            look()
        except (ImportError, OSError, ValueError) as error:
            yield name, str(error)


def check_machine(config: ScaleConfig) -> None:
    """Raises `ValueError` if this machine has fewer GPUs than it is to use, or smaller ones.

    For one of several machines `ImportError` without Ray, which sees to the others.
    """
    if config.launch.engine == "ray":
        return require("cluster", "ray")
    if config.model.device == "cpu":
        return
    if (found := torch.cuda.device_count()) < config.gpus:
        raise ValueError(
            f"model.device is cuda and this machine has {found} GPUs of {config.gpus}: lower "
            "generate.count or train.processes, or set generate.colocated, or launch.engine to ray"
        )
    planned, size = config.budget.gpu_memory_gb, gpu_memory_gb(config)
    if size < SAME_SIZE * planned:
        raise ValueError(
            f"the GPUs here have {size:.0f} GB, and the run is planned for {planned:g}: set "
            f"budget.gpu_memory_gb to {size:.0f} and look at the plan with --dry-run"
        )


def check_compiler(config: ScaleConfig) -> None:
    """Raises `ValueError` if a part of the policy is to be compiled, and nothing can be here.

    A process of its own tries it: on a GPU this one would keep some memory. Of several machines
    none is asked, for the launcher's need not be one that trains.
    """
    wanted = [f"train.{name}" for name in config.train.compiled]
    if not wanted or config.launch.engine == "ray":
        return
    argv = [sys.executable, "-c", COMPILE, config.model.device]
    tried = subprocess.run(argv, capture_output=True, text=True)
    if tried.returncode:
        reason = tried.stderr.strip().splitlines()[-1]
        raise ValueError(
            f"{' and '.join(wanted)}: torch.compile does not work here ({reason}): install a C++ "
            "compiler such as g++, or set it to false"
        )


def check_folder(there: Path) -> None:
    """Raises `OSError` or `ValueError` if files cannot be replaced there, or locked."""
    with TemporaryDirectory(dir=there) as scratch, held(Path(scratch)):
        replace_text(Path(scratch, "file"), "durable")
