"""Settings that are valid one by one and cannot work together: each line names fields and fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlbook.objectives import REQUIREMENTS
from rlbook.training.config import RunConfig

if TYPE_CHECKING:
    from rlbook.scale.config import EvaluationConfig, GenerateConfig, LaunchConfig, TrainConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEVICES = ("cpu", "cuda")
NOT_HERE = {  # what a method may need and not get, and why
    "critic": "it would be a second sharded model in every update, checkpoint and budget",
    "sampler's top-k": "generators report the log-probs of the tokens they drew, and no others",
}
DECIDED = {  # options of vLLM's server that follow from other settings
    *("model", "host", "port", "dtype", "max-num-seqs", "generation-config", "logprobs-mode"),
    *("weight-transfer-config", "middleware", "hf-overrides", "tensor-parallel-size"),
    *("gpu-memory-utilization", "enable-scale-out", "disable-log-stats"),
    "disable-uvicorn-access-log",
}


def run_conflicts(run: RunConfig) -> Iterator[str]:
    """What a run on one process may ask for and one on many may not."""
    for need in sorted(run.method.requirements() & NOT_HERE.keys()):
        yield (
            f"method: {run.method.name} needs {REQUIREMENTS[need]}, which many processes do not "
            f"have ({NOT_HERE[need]}): train it with `rlbook train`"
        )
    if run.rollout.sync_every > 1:
        yield (
            f"rollout.sync_every {run.rollout.sync_every}: here weights travel after every step, "
            "set it to 1 and bound the age of tokens by generate.max_staleness"
        )
    if run.model.device not in DEVICES:
        yield (
            f"model.device {run.model.device!r}: write cpu or cuda; CUDA_VISIBLE_DEVICES chooses "
            "among GPUs"
        )


def evaluation_conflicts(evaluation: EvaluationConfig) -> Iterator[str]:
    """Figures that a set's samples cannot give."""
    for name, one in evaluation.sets.items():
        samples, largest = one.samples or evaluation.samples, max(one.ks or (1,))
        if largest > samples:
            yield (
                f"evaluation.sets.{name}: pass@{largest} needs {largest} samples of a problem, it "
                f"has {samples}: raise its samples, or lower its ks"
            )


def generate_conflicts(run: RunConfig, generate: GenerateConfig) -> Iterator[str]:
    """What generators cannot do for this run."""
    if generate.transport == "nccl" and run.model.device != "cuda":
        yield (
            "generate.transport nccl moves GPU memory: set model.device to cuda, or the transport "
            "to file"
        )
    if generate.engine == "builtin":
        yield from builtin_conflicts(generate)
    if taken := sorted(DECIDED.intersection(name.replace("_", "-") for name in generate.vllm)):
        yield f"generate.vllm: the run itself decides {', '.join(taken)}: leave them out"
    target, bound = generate.target_staleness, generate.max_staleness
    if target is not None and target > bound:
        yield (
            f"generate.target_staleness {target} exceeds generate.max_staleness {bound}: lower it "
            "or raise the bound"
        )
    cut, limit = generate.interruption, run.rollout.max_new_tokens
    if cut and cut.latest + cut.answer_tokens > limit:
        yield (
            "generate.interruption: after + answer_tokens exceed rollout.max_new_tokens "
            f"({limit}): raise it or lower them"
        )


def builtin_conflicts(generate: GenerateConfig) -> Iterator[str]:
    """What only vLLM can do."""
    if generate.tensor_parallel > 1:
        yield "generate.tensor_parallel needs engine vllm"
    if generate.dtype != "float32":
        yield "generate.engine builtin computes in float32: set generate.dtype to float32"
    if generate.transport == "nccl":
        yield "generate.engine builtin reads weights: set generate.transport to file"


def placement_conflicts(
    generate: GenerateConfig, train: TrainConfig, launch: LaunchConfig
) -> Iterator[str]:
    """What cannot work in where processes run."""
    if generate.colocated and launch.engine == "ray":
        yield (
            "generate.colocated: on a cluster every process has GPUs of its own, set it to false, "
            "or launch.engine to local"
        )
    if generate.transport == "nccl" and generate.colocated:
        yield (
            "generate.colocated: NCCL wants a GPU of its own for every process, set "
            "generate.transport to file"
        )
    if generate.colocated and generate.count * generate.tensor_parallel > train.processes:
        yield (
            f"generate.colocated: {generate.count} servers of {generate.tensor_parallel} GPUs "
            f"do not fit on train.processes {train.processes}: lower generate.count"
        )
