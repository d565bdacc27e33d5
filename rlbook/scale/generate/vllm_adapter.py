"""How a vLLM server is found, checked and started for a run."""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from packaging.specifiers import SpecifierSet

from rlbook.paths import ROOT
from rlbook.policy.loading import adapter_folder, policy_source
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import PUSH_VARIABLE
from rlbook.scale.plan.budget import cache_room, served_weights
from rlbook.scaling.shape import model_shape

VLLM_VERSIONS = ">=0.32,<0.33"  # 0.32 is the first to name the weights of every token
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a third process would spin on the few cores there are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default the worker is pinned to core 0
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM makes room
LEAST_CONTEXT = 64  # tokens: a probe of new weights takes 32, however short the answers
LEAST_FREE = 0.05  # of a shared GPU: vLLM starts with less than its share free if it is told so
FIND_VERSION = """
import importlib.util, pathlib, runpy
spec = importlib.util.find_spec("vllm")
print(runpy.run_path(pathlib.Path(spec.origin).parent / "_version.py")["version"] if spec else "")
"""


def vllm_python(configured: str | None = None, device: str = "cpu") -> str | None:
    """Interpreter that has vLLM, if there is one: `configured`, else an environment, else this one.

    The environment is what `make gpu` or `make vllm-cpu` wrote beside the package.
    """
    if configured:
        return configured
    python = ROOT / (".venv-gpu" if device == "cuda" else ".venv-vllm-cpu") / "bin/python"
    if python.exists():
        return str(python)
    return sys.executable if find_spec("vllm") else None


def chosen_engine(config: ScaleConfig) -> Literal["builtin", "vllm"]:
    """What `generate.engine` means here: with "auto", vLLM where there is one."""
    engine = config.generate.engine
    if engine == "auto":
        wanted = config.generate.python, config.model.device
        return "vllm" if vllm_python(*wanted) else "builtin"
    return engine


def takes_adapters(config: ScaleConfig) -> bool:
    """Whether generators are sent the run's adapter alone; others are sent it merged."""
    return config.model.lora is not None and chosen_engine(config) == "vllm"


@cache
def check_version(python: str) -> str:
    """The version of vLLM in an environment; `ValueError` unless `VLLM_VERSIONS` contains it."""
    try:
        found = subprocess.run([python, "-c", FIND_VERSION], capture_output=True, text=True)
        version = found.stdout.strip()
        if version and SpecifierSet(VLLM_VERSIONS).contains(version, prereleases=True):
            return version
        problem = f"has vLLM {version}" if version else "has no vLLM"
    except OSError as error:
        problem = f"does not start ({error})"
    where = "this environment" if python == sys.executable else python
    raise ValueError(
        f"{where} {problem}: install vLLM {VLLM_VERSIONS} with `make gpu` or `make vllm-cpu`, "
        "name its interpreter in generate.python, or set generate.engine to builtin"
    )


def server_command(
    config: ScaleConfig, context: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """Command line of a generator, and its environment; `ValueError` without a vLLM to start.

    `context`: tokens of the longest prompt with its answer; the model's own context if unknown.
    """
    python = vllm_python(config.generate.python, config.model.device) or sys.executable
    check_version(python)
    if config.generate.transport == "nccl" and find_spec("vllm") is None:
        raise ValueError(
            "generate.transport nccl needs vLLM beside the trainer too, and this environment has "
            "none: start the run with that of `make gpu`, or set the transport to file"
        )
    arguments = []
    for name, value in (server_options(config, context) | config.generate.vllm).items():
        switch = name if value else f"no-{name}"
        arguments.append(f"--{switch}" if isinstance(value, bool) else f"--{name}={value}")
    environment = {"VLLM_SERVER_DEV_MODE": "1", PUSH_VARIABLE: f"{config.generate.timeout:g}"}
    if config.model.lora:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if config.model.device == "cpu":
        environment |= CPU_ENVIRONMENT
    return [python, "-m", "rlbook.scale.generate.vllm_server", *arguments], environment


def server_options(
    config: ScaleConfig, context: int | None = None
) -> dict[str, bool | int | float | str]:
    """Options of vLLM's command line by their names; `True` switches one on.

    vLLM does not start without room for one sequence of the whole context, so it is told how long
    those of this run are.
    """
    generate = config.generate
    if folder := adapter_folder(config.model.policy):
        raise ValueError(
            f"model.policy {folder} is an adapter: merge it with `rlbook export` first"
        )
    options: dict[str, bool | int | float | str] = {
        "model": str(policy_source(config.model.policy)),
        "dtype": str(generate.dtype),
        "max-num-seqs": generate.slots,
        "generation-config": "vllm",  # sampling as requested, whatever the model's folder suggests
        "logprobs-mode": "processed_logprobs",  # of the distribution that was sampled
        "middleware": "rlbook.scale.generate.vllm_server.Guard",
        "enable-scale-out": True,
        "disable-uvicorn-access-log": True,
        "disable-log-stats": True,
    }
    if lora := config.model.lora:
        options |= {"enable-lora": True, "max-loras": 1}
        options["max-lora-rank"] = next(rank for rank in LORA_RANKS if rank >= lora.rank)
        options["worker-extension-cls"] = "rlbook.scale.generate.vllm_server.Adapters"
    if context:
        options["max-model-len"] = max(context, LEAST_CONTEXT)
    if generate.transport == "nccl":
        options["weight-transfer-config"] = json.dumps({"backend": "nccl"})
    if config.train.fp32_head and generate.dtype != "float32":
        options["hf-overrides"] = json.dumps({"head_dtype": "float32"})
    if config.model.device == "cpu":  # which knows no sleep mode: /sleep pauses, and frees nothing
        return options | {
            "distributed-executor-backend": "uni",
            "enforce-eager": True,
            "kv-cache-memory-bytes": 2**28,  # a fixed size also spares the CPU build a warm-up
        }
    options["tensor-parallel-size"] = generate.tensor_parallel
    options["gpu-memory-utilization"] = generate.gpu_memory
    if generate.sleep:
        options["enable-sleep-mode"] = True
    if generate.colocated:
        options["gpu-memory-utilization"] = LEAST_FREE
        options["kv-cache-memory-bytes"] = cache_bytes(config)
    return options


def gpu_memory_gb(config: ScaleConfig) -> float:
    """Of the smallest GPU here, 1e9 bytes each; as planned where there is none."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return min((gpu.total_memory / 1e9 for gpu in found), default=config.budget.gpu_memory_gb)


def cache_bytes(config: ScaleConfig) -> int:
    """Memory for keys and values of a server that shares its GPUs; `ValueError` if none is left.

    By itself vLLM would measure what is free on the device, while the trainers change it.
    """
    memory = min(gpu_memory_gb(config), config.budget.gpu_memory_gb)
    shape = model_shape(config.model.policy)
    if (left := cache_room(config, shape, memory)) <= 0:
        raise ValueError(
            f"generate.gpu_memory {config.generate.gpu_memory:g} of {memory:.0f} GB leaves no room "
            f"for keys and values beside {served_weights(config, shape) / 1e9:.1f} GB of weights "
            "and what a server takes besides: raise it"
        )
    return int(left)


def visible_gpus(config: ScaleConfig, index: int) -> str:
    """The GPUs of generator `index`: after the trainers' own, unless it shares those."""
    width = config.generate.tensor_parallel
    first = index * width + (0 if config.generate.colocated else config.train.processes)
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = listed.split(",") if listed else [str(gpu) for gpu in range(first + width)]
    return ",".join(gpus[first : first + width])
