"""The settings that a full-scale run has besides those of `rlbook.training.RunConfig`."""

from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlbook.training import config as training
from rlbook.training.config import Section


class Interruption(Section):
    """Forced end of a long thought: tokens appended for the policy, never trained on."""

    after: int | tuple[int, int] = Field(
        description="tokens of thought before it is interrupted; [low, high]: drawn for each"
    )
    text: str = Field(min_length=1, description="what is appended, e.g. '</think><answer>'")
    answer_tokens: int = Field(ge=1, description="tokens left for the answer")

    @field_validator("after")
    @classmethod
    def _ordered(cls, after: int | tuple[int, int]) -> int | tuple[int, int]:
        low, high = after if isinstance(after, tuple) else (after, after)
        if not 1 <= low <= high:
            raise ValueError(f"{after}: write at least 1, or [low, high] with low ≤ high")
        return after

    @property
    def latest(self) -> int:
        """Tokens of the longest thought."""
        return self.after[1] if isinstance(self.after, tuple) else self.after

    def limits(self, n: int, random: Random) -> list[int]:
        """Tokens of thought for each of `n` completions."""
        low, high = self.after if isinstance(self.after, tuple) else (self.after, self.after)
        return [random.randint(low, high) for _ in range(n)]


class GenerateConfig(Section):
    """The processes that write and judge completions, and how old those may get."""

    engine: Literal["auto", "builtin", "vllm"] = Field(
        "auto", description="auto: vLLM if `python` has it, otherwise the book's own sampler"
    )
    python: str | None = Field(None, description="interpreter of the vLLM environment; this one")
    count: int = Field(1, ge=1, description="servers to start")
    token: str | None = Field(
        None, description="secret that every request has to carry; a new one for every start"
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs per server")
    colocated: bool = Field(False, description="on the trainers' GPUs instead of their own")
    gpu_memory: float = Field(0.9, gt=0, le=1, description="share of GPU memory vLLM may take")
    slots: int = Field(128, ge=1, description="completions one server writes at a time")
    vllm: dict[str, bool | int | float | str] = Field(
        {}, description="further options of vLLM's server, e.g. {max-model-len: 17000}"
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="of the server's weights; that of `train` if absent"
    )
    kv: Literal["clear", "keep"] = Field(
        "keep", description="cache at a weight update: keep (PipelineRL), or recompute (exact)"
    )
    transport: Literal["file", "nccl"] = Field(
        "file", description="how weights travel: a folder all can read, or from GPU to GPU"
    )
    timeout: float = Field(600.0, gt=0, description="seconds before a request is given up")
    max_staleness: int = Field(
        8, ge=0, description="most updates between a token and its training; 0 is on-policy"
    )
    target_staleness: int | None = Field(
        None,
        ge=0,
        description="updates by which generators work ahead; null: as few as keep the trainer busy",
    )
    late: Literal["wait", "drop"] = Field(
        "wait", description="a group about to get too old: the trainer waits, or it is dropped"
    )
    interruption: Interruption | None = Field(None, description="forced end of thought; none: null")
    verify_seconds: float = Field(5.0, gt=0, description="time limit of one verification")
    verifiers: int = Field(1, ge=1, description="verifier processes")


class EvaluationSet(Section):
    """Problems that are asked beside the run's own held-out ones, such as those of a benchmark."""

    task: str = Field(
        description='as data.task, which holds some out; "benchmark:<source>": all of a data set'
    )
    levels: tuple[int, ...] | None = Field(None, description="difficulty levels; all if absent")
    prompts: int = Field(ge=1, description="problems; those that training asks are left out")
    samples: int | None = Field(
        None, ge=1, description="completions per problem; evaluation.samples if absent"
    )
    ks: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, description="pass@k to report besides pass@1; 2, 4, 8, … if absent"
    )
    temperature: float | None = Field(
        None, ge=0, description="of sampling; rollout.temperature if absent"
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="completion limit in tokens, not interrupted; as in training"
    )


class EvaluationConfig(training.EvaluationConfig):
    """Held-out problems, and sets of others: each evaluation by one version of the weights."""

    sets: dict[Annotated[str, Field(pattern=r"^[\w.-]+$")], EvaluationSet] = Field(
        {}, description="further problems by the name of their rows, e.g. {math: {task: …}}"
    )


class TrainConfig(Section):
    """The processes that share an update, and the precision of their forward passes."""

    processes: int = Field(1, ge=1, description="trainer processes, one GPU each")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of forward and backward passes; master weights stay float32"
    )
    fp32_head: bool = Field(True, description="logits in float32, here and in the generators")
    activation_checkpointing: bool = Field(False, description="recompute layers in backward")


class LaunchConfig(Section):
    """Where processes run, and how long a run bears their deaths and answers that teach nothing."""

    engine: Literal["local", "ray"] = Field(
        "local", description="on this machine, or on those of the Ray cluster whose head it is"
    )
    max_deaths: int = Field(8, ge=1, description="deaths of one process in `window` that it bears")
    window: float = Field(600.0, gt=0, description="seconds")
    silent_batches: int = Field(
        20,
        ge=1,
        description="batches in a row, none of whose groups has right and wrong answers: it stops",
    )
    shown: int = Field(
        4, ge=0, description="answers of every batch, right and wrong, kept to be read"
    )
    loading: float = Field(
        1800.0,
        gt=0,
        description="seconds from a process's start to its first sign of life; then it is killed",
    )
    grace: float = Field(20.0, ge=0, description="seconds a process is given to stop by itself")


class CheckpointConfig(Section):
    """When the run's state is made durable."""

    every: int = Field(20, ge=1, description="updates between checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")


class BudgetConfig(Section):
    """What the dry run assumes about hardware. Replace with your own measurements."""

    gpu_memory_gb: float = Field(80.0, gt=0, description="per GPU, 1e9 bytes")
    peak_tflops: float = Field(989.0, gt=0, description="dense bf16 peak per GPU")
    mfu: float | None = Field(
        None, gt=0, le=1, description="share of the peak that layers reach; by model size if absent"
    )
    update_seconds: float | None = Field(None, gt=0, description="measured; else peak and mfu")
    bandwidth_tb: float = Field(3.35, gt=0, description="memory bandwidth per GPU, TB/s")
    decode_share: float = Field(
        0.8, gt=0, le=1, description="share of the bandwidth a decode step reaches"
    )
    decode_seconds: float | None = Field(
        None, gt=0, description="measured for one token of every slot; else bandwidth"
    )
    push_gb: float = Field(2.0, gt=0, description="GB per second at which weights travel")
    mean_tokens: int | None = Field(None, ge=1, description="mean completion; half the limit")
    length_sigma: float = Field(0.6, ge=0, description="spread of log length")
    prompt_tokens: tuple[int, int] | None = Field(
        None, description="mean and longest prompt; measured with the tokenizer if absent"
    )
    shape: dict[str, Any] | None = Field(
        None, description="the model's config.json where it is not at hand; read if absent"
    )
    curve: tuple[float, float, float, float] | None = Field(
        None, description="A, B, C_mid in GPU-hours and R_0 of the predicted curve"
    )
    curve_fitted: tuple[float, float] | None = Field(
        None, description="GPU-hours between which it was fitted; it says nothing beyond them"
    )
