"""What a run consists of, as command lines, for each role of a machine.

    all          generators of this machine, orchestrator, trainer processes of this machine
    trainer      this machine's trainer processes; they meet the others at `train.rendezvous`
    generators   this machine's generators; the other machines name them in `generate.servers`

Secrets travel in the environment: command lines are public on a machine.
"""

import sys
from typing import Literal

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.generate.builtin_server import TOKEN_VARIABLE
from rlbook.scale.launch.supervisor import Command
from rlbook.scale.layout import Layout, read_json
from rlbook.training.collect import derive_seed

Role = Literal["all", "trainer", "generators"]


def run_commands(
    config: ScaleConfig, layout: Layout, role: Role, ports: list[int]
) -> list[Command]:
    """Everything that one machine has to run. Raises `ValueError` if it lacks something."""
    commands = []
    if role != "trainer":
        alone = role == "generators"
        commands += [generator(config, index, port, alone) for index, port in enumerate(ports)]
    if role == "all":
        commands.append(orchestrator(config, layout))
    if role != "generators":
        commands.append(trainer(config, layout))
    return commands


def chosen_engine(config: ScaleConfig) -> Literal["builtin", "vllm"]:
    """What `generate.engine` means here: with "auto", vLLM where there is one."""
    engine = config.generate.engine
    if engine == "auto":
        wanted = config.generate.python, config.model.device
        return "vllm" if vllm_adapter.vllm_python(*wanted) else "builtin"
    return engine


def generator(config: ScaleConfig, index: int, port: int, alone: bool = False) -> Command:
    """Generator `index`; `alone` on a machine without trainers, whose GPUs are all its own."""
    if chosen_engine(config) == "vllm":
        argv, env = vllm_adapter.server_command(config, index, port, alone)
    else:
        argv, env = builtin_server(config, index, port, alone)
    return Command(
        f"generator{index}", argv, cpu_threads(config) | env, spare=True, witness="orchestrator"
    )


def builtin_server(
    config: ScaleConfig, index: int, port: int, alone: bool
) -> tuple[list[str], dict[str, str]]:
    """The book's own sampler as a server."""
    generate = config.generate
    options = {
        "policy": config.model.policy,
        "host": generate.host,
        "port": port,
        "slots": generate.slots,
        "dtype": generate.dtype,
        "device": config.model.device,
        "seed": derive_seed(config.seed, "generator", index),
    }
    argv = [f"--{name}={value}" for name, value in options.items()]
    env = {TOKEN_VARIABLE: generate.token} if generate.token else {}
    if config.model.device == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = vllm_adapter.visible_gpus(config, index, alone)
    return [sys.executable, "-m", "rlbook.scale.generate.builtin_server", *argv], env


def orchestrator(config: ScaleConfig, layout: Layout) -> Command:
    argv = [sys.executable, "-m", "rlbook.scale.rollout.orchestrator", str(layout.root)]
    return Command("orchestrator", argv, {"OMP_NUM_THREADS": "1"}, finishes=True)


def trainer(config: ScaleConfig, layout: Layout) -> Command:
    """This machine's ranks. If there are several, `torchrun` starts and ends them together."""
    train, program = config.train, ["-m", "rlbook.scale.train.trainer", str(layout.root)]
    if train.ranks == 1:
        return Command("trainer", [sys.executable, *program], cpu_threads(config), finishes=True)
    meeting = ["--standalone"]
    if train.nodes > 1:
        meeting = [
            f"--nnodes={train.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={train.rendezvous}",
            f"--rdzv-id={read_json(layout.servers)['run_id']}",
        ]
    ranks = [f"--nproc-per-node={train.processes}", "--max-restarts=0"]
    argv = [sys.executable, "-m", "torch.distributed.run", *meeting, *ranks, *program]
    return Command("trainer", argv, cpu_threads(config), finishes=True)


def cpu_threads(config: ScaleConfig) -> dict[str, str]:
    """On a CPU every process gets one thread: they share the cores."""
    return {"OMP_NUM_THREADS": "1"} if config.model.device == "cpu" else {}
