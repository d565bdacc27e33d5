"""What a run consists of, as command lines.

Secrets travel in the environment: command lines are public on a machine.
"""

import sys

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.generate.protocol import WEIGHTS_VARIABLE
from rlbook.scale.launch.processes import ONE_THREAD, Command
from rlbook.scale.layout import Layout
from rlbook.scale.process import ENTRY_VARIABLE, TOKEN_VARIABLE
from rlbook.training.config import derive_seed


def run_commands(config: ScaleConfig, layout: Layout, context: int | None = None) -> list[Command]:
    """Trainer, orchestrator and generators. Raises `ValueError` if there is nothing to run one.

    `context`: tokens of the longest prompt with its answer.
    """
    numbers = range(config.generate.count)
    generators = [generator(config, layout, index, context) for index in numbers]
    ranks, cuda = config.train.processes, config.model.device == "cuda"
    module = [sys.executable, "-m"]
    trainer = Command(
        "trainer",
        [*module, "rlbook.scale.train.trainer", str(layout.root)],
        {} if cuda else ONE_THREAD,
        finishes=True,
        ranks=ranks,
        beside=config.train.shard or 1,
        gpus=int(cuda),
    )
    orchestrator = Command(
        "orchestrator",
        [*module, "rlbook.scale.rollout.orchestrator", str(layout.root)],
        ONE_THREAD,
        finishes=True,
        cpus=1 + config.generate.verifiers,
    )
    return [trainer, orchestrator, *generators]


def generator(
    config: ScaleConfig, layout: Layout, index: int, context: int | None = None
) -> Command:
    """Generator `index`; on a CPU it has one thread, for all processes share the cores."""
    name, generate, cuda = f"generator{index}", config.generate, config.model.device == "cuda"
    if vllm_adapter.chosen_engine(config) == "vllm":
        argv, env = vllm_adapter.server_command(config, context)
    else:
        argv, env = builtin_server(config, index), {}
    env |= {ENTRY_VARIABLE: str(layout.server(name)), WEIGHTS_VARIABLE: str(layout.weights)}
    if generate.token:
        env[TOKEN_VARIABLE] = generate.token
    if not cuda:
        env |= ONE_THREAD
    elif config.launch.engine == "local":
        env["CUDA_VISIBLE_DEVICES"] = vllm_adapter.visible_gpus(config, index)
    gpus = generate.tensor_parallel * cuda
    return Command(name, argv, env, spare=True, witness="orchestrator", gpus=gpus)


def builtin_server(config: ScaleConfig, index: int) -> list[str]:
    """The book's own sampler as a server. `ValueError` for settings that only vLLM can follow."""
    config = config.replace(generate={"engine": "builtin"})  # "auto" has chosen it
    seed = derive_seed(config.seed, "generator", index)
    words = config.model.policy, config.model.device, config.generate.slots, seed
    return [sys.executable, "-m", "rlbook.scale.generate.builtin_server", *map(str, words)]
