"""Settings of a full-scale run: those of any run, and what many processes need besides."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlbook.scale.conflicts import (
    evaluation_conflicts,
    generate_conflicts,
    placement_conflicts,
    run_conflicts,
)
from rlbook.training import config as training
from rlbook.training.config import RunConfig, Section
from rlbook.training.config import dump_config as dump_config


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
        8,
        ge=0,
        description="most versions, one a step, between a token and its training; 0: on-policy",
    )
    target_staleness: int | None = Field(
        None,
        ge=0,
        description="steps by which generators work ahead; null: as few as keep the trainer busy",
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
    accumulate: bool = Field(
        False,
        description="sum gradients over processes once an update, not once a micro-batch: 4 bytes "
        "a parameter more on each, for where their links are slow",
    )


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
        description="batches in a row, none of whose groups passes the prompt filter: it stops",
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

    every: int = Field(20, ge=1, description="steps between checkpoints")
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
    gpu_hour_price: float | None = Field(None, gt=0, description="in any currency, for the cost")
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


class ScaleConfig(RunConfig):
    """Everything that decides a full-scale run. The file of any run is one of these as well.

    `steps` counts batches of rollouts, as in every run: `rollout.prompts` prompts, trained in
    `optimizer.minibatches` updates a pass and `optimizer.epochs` passes. Processes exchange whole
    batches, and generators get the weights that a batch has made: its version. So all that is
    counted while a run goes on (versions, staleness, checkpoints, rows of metrics) is counted in
    steps; only the warm-up counts updates. With one minibatch and one epoch every update has fresh
    rollouts of its own, a step is an update, and a π_old that the method recomputes is the policy
    about to be updated.
    """

    run: str = Field("runs/scale", description="folder of the run")
    evaluation: EvaluationConfig = EvaluationConfig()
    generate: GenerateConfig = GenerateConfig()
    train: TrainConfig = TrainConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    budget: BudgetConfig = BudgetConfig()

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return Path(self.run)

    @property
    def gpus(self) -> int:
        """GPUs of trainers and generators, shared ones once, if `model.device` is cuda."""
        generate = self.generate
        own = 0 if generate.colocated else generate.count * generate.tensor_parallel
        return self.train.processes + own

    def shared(self) -> dict[str, Any]:
        """The settings of the `RunConfig` that this run would be on one process."""
        settings = {
            name: value for name, value in self.to_dict().items() if name in RunConfig.model_fields
        }
        del settings["evaluation"]["sets"]
        return settings

    @model_validator(mode="after")
    def _same_precision(self) -> Self:
        if self.generate.dtype is None:
            generate = self.generate.model_copy(update={"dtype": self.train.dtype})
            object.__setattr__(self, "generate", generate)  # frozen
        return self

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        for problem in chain(
            run_conflicts(self),
            evaluation_conflicts(self.evaluation),
            generate_conflicts(self, self.generate),
            placement_conflicts(self.generate, self.train, self.launch),
        ):
            raise ValueError(problem)
        return self


def load_config(path: str | Path, settings: Sequence[str] = ()) -> ScaleConfig:
    """The settings in a YAML file, or of a run folder, changed by words `section.field=value`.

    Raises `ValueError` naming file, field and fix.
    """
    path = Path(path)
    return training.load_config(
        path / "config.yaml" if path.is_dir() else path, settings, ScaleConfig
    )
