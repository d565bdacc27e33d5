"""What a run consists of, as command lines.

Secrets travel in the environment: command lines are public on a machine.
"""

import sys
from typing import Literal

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.generate.builtin_server import TOKEN_VARIABLE
from rlbook.scale.generate.registry import ENTRY_VARIABLE
from rlbook.scale.launch.processes import Command
from rlbook.scale.layout import Layout
from rlbook.training.config import derive_seed


def run_commands(config: ScaleConfig, layout: Layout) -> list[Command]:
    """Trainer, orchestrator and generators. Raises `ValueError` if there is nothing to run one."""
    generators = [generator(config, layout, index) for index in range(config.generate.count)]
    return [trainer(config, layout), orchestrator(config, layout), *generators]


def chosen_engine(config: ScaleConfig) -> Literal["builtin", "vllm"]:
    """What `generate.engine` means here: with "auto", vLLM where there is one."""
    engine = config.generate.engine
    if engine == "auto":
        wanted = config.generate.python, config.model.device
        return "vllm" if vllm_adapter.vllm_python(*wanted) else "builtin"
    return engine


def generator(config: ScaleConfig, layout: Layout, index: int) -> Command:
    """Generator `index`."""
    name, on_gpus = f"generator{index}", config.model.device == "cuda"
    server = vllm_adapter.server_command if chosen_engine(config) == "vllm" else builtin_server
    argv, env = server(config, index)
    env |= {ENTRY_VARIABLE: str(layout.server(name))}
    if on_gpus and config.launch.engine == "local":
        env["CUDA_VISIBLE_DEVICES"] = vllm_adapter.visible_gpus(config, index)
    return Command(
        name,
        argv,
        cpu_threads(config) | env,
        spare=True,
        witness="orchestrator",
        gpus=config.generate.tensor_parallel * on_gpus,
    )


def builtin_server(config: ScaleConfig, index: int) -> tuple[list[str], dict[str, str]]:
    """The book's own sampler as a server."""
    generate = config.generate
    options = {
        "policy": config.model.policy,
        "port": 0,
        "slots": generate.slots,
        "dtype": generate.dtype,
        "device": config.model.device,
        "seed": derive_seed(config.seed, "generator", index),
    }
    argv = [f"--{name}={value}" for name, value in options.items()]
    env = {TOKEN_VARIABLE: generate.token} if generate.token else {}
    return [sys.executable, "-m", "rlbook.scale.generate.builtin_server", *argv], env


def orchestrator(config: ScaleConfig, layout: Layout) -> Command:
    """The command of the process that asks, judges and makes batches."""
    argv = [sys.executable, "-m", "rlbook.scale.rollout.orchestrator", str(layout.root)]
    cpus = 1 + config.generate.verifiers
    return Command("orchestrator", argv, {"OMP_NUM_THREADS": "1"}, finishes=True, cpus=cpus)


def trainer(config: ScaleConfig, layout: Layout) -> Command:
    """The command of the ranks that learn."""
    argv = [sys.executable, "-m", "rlbook.scale.train.trainer", str(layout.root)]
    ranks, gpus = config.train.processes, int(config.model.device == "cuda")
    return Command("trainer", argv, cpu_threads(config), finishes=True, ranks=ranks, gpus=gpus)


def cpu_threads(config: ScaleConfig) -> dict[str, str]:
    """On a CPU every process gets one thread: they share the cores."""
    return {"OMP_NUM_THREADS": "1"} if config.model.device == "cpu" else {}
