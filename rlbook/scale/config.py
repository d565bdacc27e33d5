"""Settings of a full-scale run: typed, validated, one YAML file."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlbook.scale.conflicts import conflicts


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(Section):
    """What is trained."""

    policy: str = Field("tiny", description='"tiny", "smollm2-135m", a model folder, a hub name')
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of forward and backward passes; master weights stay float32"
    )
    fp32_head: bool = Field(True, description="logits in float32, here and in the generators")
    activation_checkpointing: bool = Field(False, description="recompute layers in backward")


class DataConfig(Section):
    """What is asked, in training and in evaluation."""

    task: str = Field("sums", description='"sums", "reasoning_gym:<name>", "dataset:<path or hub>"')
    levels: tuple[int, ...] | None = Field(None, description="difficulty levels; all if absent")
    pool: int = Field(512, ge=1, description="distinct training prompts")
    retire_at: float | None = Field(
        0.9, gt=0, le=1, description="pass rate at which a prompt is not asked again; never: null"
    )
    verify_seconds: float = Field(5.0, gt=0, description="time limit of one verification")
    verifiers: int = Field(1, ge=1, description="verifier processes")


class Interruption(Section):
    """Forced end of a long thought: tokens appended for the policy, never trained on."""

    after: int = Field(ge=1, description="tokens of thought before it is interrupted")
    text: str = Field(min_length=1, description="what is appended, e.g. '</think><answer>'")
    answer_tokens: int = Field(ge=1, description="tokens left for the answer")


class RolloutConfig(Section):
    """How completions are sampled and how old they may be."""

    prompts: int = Field(8, ge=1, description="prompts per batch")
    group_size: int = Field(8, ge=2, description="completions per prompt")
    max_new_tokens: int = Field(80, ge=1, description="completion limit in tokens")
    temperature: float = Field(1.0, gt=0, description="of sampling and of every log-probability")
    max_lag: int = Field(
        8, ge=0, description="most updates between a token and its training; 0 is on-policy"
    )
    late: Literal["wait", "drop"] = Field(
        "wait", description="a group about to get too old: the trainer waits, or it is dropped"
    )
    interruption: Interruption | None = Field(None, description="forced end of thought; none: null")
    timeout: float = Field(600.0, gt=0, description="seconds before a request is given up")


class GeneratorConfig(Section):
    """The processes that write completions."""

    engine: Literal["auto", "builtin", "vllm"] = Field(
        "auto", description="auto: vLLM if `python` has it, otherwise the book's own sampler"
    )
    python: str | None = Field(None, description="interpreter of the vLLM environment; this one")
    count: int = Field(1, ge=0, description="servers to start; 0: only those in `servers`")
    host: str = Field("127.0.0.1", description="address to bind; another one requires `token`")
    port: int = Field(8100, ge=0, le=65535, description="of the first server; 0: any free ones")
    token: str | None = Field(None, description="secret that every request has to carry")
    servers: tuple[str, ...] = Field((), description="URLs of servers that run already, elsewhere")
    tensor_parallel: int = Field(1, ge=1, description="GPUs per server")
    colocated: bool = Field(False, description="on the trainers' GPUs instead of their own")
    gpu_memory: float = Field(0.9, gt=0, le=1, description="share of GPU memory vLLM may take")
    slots: int = Field(128, ge=1, description="completions one server writes at a time")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the server's weights")
    kv: Literal["clear", "keep"] = Field(
        "keep", description="cache at a weight update: keep (PipelineRL), or recompute (exact)"
    )
    transport: Literal["file", "gloo", "nccl", "ipc"] = Field(
        "file", description="how weights travel"
    )


class TrainerConfig(Section):
    """The optimizer's side; one update per batch."""

    method: str = Field("scalerl", description="row of rlbook.objectives.METHODS")
    processes: int = Field(1, ge=1, description="trainer processes per node, one GPU each")
    nodes: int = Field(1, ge=1, description="nodes with trainers")
    rendezvous: str = Field("127.0.0.1:29400", description="host:port where the nodes meet")
    device: Literal["cpu", "cuda"] = "cpu"
    lr: float = Field(1.5e-4, gt=0, description="AdamW learning rate after warm-up")
    warmup: int = Field(0, ge=0, description="updates of linear warm-up")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW moments")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping threshold")
    micro_batch_tokens: int = Field(8192, ge=1, description="padded tokens per forward pass")
    truncate_weight: float | None = Field(
        None, gt=0, description="cap of the trainer/sampler weight (methods that recompute π_old)"
    )


class CheckpointConfig(Section):
    every: int = Field(20, ge=1, description="updates between checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")


class EvalConfig(Section):
    every: int = Field(10, ge=0, description="updates between evaluations; 0: none")
    prompts: int = Field(64, ge=1, description="held-out prompts")
    samples: int = Field(4, ge=1, description="completions per held-out prompt")


class BudgetConfig(Section):
    """What the dry run assumes about hardware. Replace with your own measurements."""

    gpu_memory_gb: float = Field(80.0, gt=0, description="per GPU, 1e9 bytes")
    peak_tflops: float = Field(989.0, gt=0, description="dense bf16 peak per GPU")
    mfu: float = Field(0.35, gt=0, le=1, description="share of the peak a training step reaches")
    update_seconds: float | None = Field(None, gt=0, description="measured; else peak and mfu")
    bandwidth_tb: float = Field(3.35, gt=0, description="memory bandwidth per GPU, TB/s")
    decode_share: float = Field(
        0.5, gt=0, le=1, description="share of the bandwidth a decode step reaches"
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


class LaunchConfig(Section):
    """How long the supervisor puts up with processes that die."""

    max_deaths: int = Field(8, ge=1, description="deaths of one process in `window` that it bears")
    window: float = Field(600.0, gt=0, description="seconds")
    grace: float = Field(20.0, ge=0, description="seconds a process is given to stop by itself")


class ScaleConfig(Section):
    """Everything that decides a run. Sections are documented field by field."""

    run: str = Field("runs/scale", description="folder of the run")
    seed: int = Field(0, ge=0)
    steps: int = Field(40, ge=1, description="optimizer updates")
    tensorboard: bool = False
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    generator: GeneratorConfig = GeneratorConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    budget: BudgetConfig = BudgetConfig()
    launch: LaunchConfig = LaunchConfig()

    @property
    def folder(self) -> Path:
        return Path(self.run)

    @property
    def batch_size(self) -> int:
        """Completions per update, before filters."""
        return self.rollout.prompts * self.rollout.group_size

    @model_validator(mode="after")
    def _consistent(self) -> "ScaleConfig":
        for problem in conflicts(self):
            raise ValueError(problem)
        return self


def load_config(path: str | Path, overrides: tuple[str, ...] = ()) -> ScaleConfig:
    """The settings in a YAML file, with `section.field=value` overrides (YAML values).

    Raises `ValueError` naming file, field and fix.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError:
        raise ValueError(f"no configuration {path}; examples are in configs/") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected sections such as `trainer:`, got {document!r}")
    for override in overrides:
        apply_override(document, override)
    try:
        return ScaleConfig(**{name: value for name, value in document.items() if value is not None})
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(error)}") from None


def dump_config(config: ScaleConfig) -> str:
    """The settings as YAML that `load_config` reads back to an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def apply_override(document: dict, override: str) -> None:
    """Write `section.field=value` into a document."""
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ValueError(f"override {override!r}: write section.field=value")
    *sections, field = key.split(".")
    for name in sections:
        if document.get(name) is None:
            document[name] = {}
        document = document[name]
        if not isinstance(document, dict):
            raise ValueError(f"override {override!r}: {name} is not a section")
    document[field] = yaml.safe_load(value)


def explain(error: ValidationError) -> str:
    """Validation errors as one line: field, what is wrong, what exists."""
    lines = []
    for problem in error.errors():
        field = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            known = ", ".join(fields_beside(problem["loc"]))
            message = "unknown field" + (f" (there are {known})" if known else "")
        lines.append(f"{field}: {message}" if field else message)
    return "; ".join(lines)


def fields_beside(location: tuple) -> list[str]:
    """Names of the fields a mistyped one could have meant."""
    section = ScaleConfig
    for name in location[:-1]:
        section = section.model_fields[name].annotation
        if not hasattr(section, "model_fields"):
            return []
    return list(section.model_fields)
