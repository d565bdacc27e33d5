"""Settings of a full-scale run: those of any run, and what many processes need besides."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from transformers import PreTrainedTokenizerBase

from rlbook.objectives import REQUIREMENTS
from rlbook.training import config as training
from rlbook.training.config import RunConfig, Section
from rlbook.training.config import dump_config as dump_config
from rlbook.training.episodes import Episode, cut_short

NOT_HERE = {  # what a method may need and not get, and why
    "critic": "it would be a second sharded model in every update, checkpoint and budget",
    "sampler's top-k": "generators report the log-probs of the tokens they drew, and no others",
}
DECIDED = {  # options of vLLM's server that follow from other settings
    *("model", "host", "port", "dtype", "max-num-seqs", "generation-config", "logprobs-mode"),
    *("weight-transfer-config", "middleware", "hf-overrides", "tensor-parallel-size"),
    *("gpu-memory-utilization", "enable-scale-out", "disable-log-stats", "enable-lora"),
    *("max-loras", "max-lora-rank", "worker-extension-cls", "enable-sleep-mode"),
    "disable-uvicorn-access-log",
}
MOST_RANK = 512  # of an adapter in vLLM
Precision = Literal["float32", "bfloat16"]
BUILTIN = {"tensor_parallel": 1, "dtype": "float32", "transport": "file"}  # what that engine can


class Interruption(Section):
    """Forced end of a long thought: tokens appended for the policy, never trained on."""

    after: int | tuple[int, int] = Field(description="tokens of thought; drawn from [low, high]")
    text: str = Field(min_length=1, description="what is appended, e.g. '</think><answer>'")
    answer_tokens: int = Field(ge=1, description="tokens left for the answer")

    @property
    def bounds(self) -> tuple[int, int]:
        """Tokens of the shortest and of the longest thought."""
        return self.after if isinstance(self.after, tuple) else (self.after, self.after)

    def episodes(
        self, tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], n: int, seed: int
    ) -> list[Episode]:
        """`n` answers to a prompt, each with a limit of its own to its thought."""
        random, tail = Random(seed), (self.text, self.answer_tokens)
        limits = [random.randint(*self.bounds) for _ in range(n)]
        return [cut_short(tokenizer, prompt_ids, limit, *tail) for limit in limits]


class GenerateConfig(Section):
    """The processes that write and judge completions, and how old those may get."""

    engine: Literal["auto", "builtin", "vllm"] = Field(
        "auto", description="auto: vLLM if `python` has it, otherwise the book's own sampler"
    )
    python: str | None = Field(None, description="interpreter of the vLLM environment; this one")
    count: int = Field(1, ge=1, description="servers to start")
    token: str | None = Field(None, description="secret of all requests; new for every start")
    tensor_parallel: int = Field(1, ge=1, description="GPUs per server")
    colocated: bool = Field(False, description="on the trainers' GPUs instead of their own")
    gpu_memory: float = Field(0.9, gt=0, le=1, description="share of GPU memory vLLM may take")
    sleep: bool = Field(
        False, description="in turns on shared GPUs: an update has the generators' memory as well"
    )
    slots: int = Field(128, ge=1, description="completions one server writes at a time")
    vllm: dict[str, bool | int | float | str] = Field(
        {}, description="further options of vLLM's server, e.g. {max-model-len: 17000}"
    )
    dtype: Precision | None = Field(None, description="of weights; that of `train` if absent")
    kv: Literal["clear", "keep"] = Field(
        "keep", description="cache at a weight update: keep (PipelineRL), or recompute (exact)"
    )
    transport: Literal["file", "nccl"] = Field(
        "file", description="how weights travel: a folder all can read, or from GPU to GPU"
    )
    timeout: float = Field(600.0, gt=0, description="seconds before a request is given up")
    max_staleness: int = Field(8, ge=0, description="most steps a token may be old; 0: on-policy")
    target_staleness: int | None = Field(
        None, ge=0, description="steps to work ahead; null: as few as keep the trainer busy"
    )
    late: Literal["wait", "drop"] = Field(
        "wait", description="a group about to get too old: the trainer waits, or it is dropped"
    )
    interruption: Interruption | None = Field(None, description="forced end of thought; none: null")
    worlds: int = Field(16, ge=1, description="processes of an environment, a group in each")
    turn_seconds: float = Field(30.0, gt=0, description="time limit of one answer of a world")
    verify_seconds: float = Field(5.0, gt=0, description="time limit of one verification")
    verifiers: int = Field(1, ge=1, description="verifier processes")


class EvaluationSet(Section):
    """Problems that are asked beside the run's own held-out ones, such as those of a benchmark."""

    task: str = Field(description='as data.task: some held out; "benchmark:<source>": all of them')
    levels: tuple[int, ...] | None = Field(None, description="difficulty levels; all if absent")
    prompts: int = Field(ge=1, description="problems; those that training asks are left out")
    samples: int | None = Field(None, ge=1, description="completions each; evaluation.samples")
    ks: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, description="pass@k to report besides pass@1; 2, 4, 8, … if absent"
    )
    temperature: float | None = Field(None, ge=0, description="of sampling; as in training")
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
    shard: int | None = Field(
        None, ge=1, description="processes of one machine that hold the weights together; all"
    )
    dtype: Precision | None = Field(
        None, description="of passes; that of `model` if absent; master weights stay float32"
    )
    fp32_head: bool = Field(True, description="logits in float32, here and in the generators")
    activation_checkpointing: bool = Field(False, description="recompute layers in backward")
    compile_layers: bool = Field(False, description="compile them; on GPUs not measured yet")
    compile_head: bool = Field(False, description="compile the pass over logits; not measured yet")
    accumulate: bool = Field(False, description="for slow links: sum gradients once an update")

    @property
    def compiled(self) -> list[str]:
        """The settings that have something compiled."""
        return [name for name in ("compile_layers", "compile_head") if getattr(self, name)]


class LaunchConfig(Section):
    """Where processes run, and how long a run bears their deaths."""

    engine: Literal["local", "ray"] = Field(
        "local", description="on this machine, or on those of the Ray cluster whose head it is"
    )
    max_deaths: int = Field(8, ge=1, description="deaths of one process in `window` that it bears")
    max_deaths_at_update: int = Field(
        3,
        ge=1,
        description="its deaths at one update, or before a sign of life: the last one",
    )
    window: float = Field(600.0, gt=0, description="seconds")
    shown: int = Field(4, ge=0, description="answers of every batch that are kept to be read")
    loading: float = Field(1800.0, gt=0, description="seconds to a process's first sign of life")
    grace: float = Field(20.0, ge=0, description="seconds a process is given to stop by itself")


class CheckpointConfig(Section):
    """When the run's state is made durable."""

    every: int = Field(20, ge=1, description="steps between checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")


class BudgetConfig(Section):
    """What the dry run assumes about hardware. Replace with your own measurements."""

    gpu_memory_gb: float = Field(80.0, gt=0, description="per GPU, 1e9 bytes")
    peak_tflops: float = Field(989.0, gt=0, description="dense bf16 peak per GPU")
    mfu: float | None = Field(None, gt=0, le=1, description="share of the peak; by size if absent")
    update_seconds: float | None = Field(None, gt=0, description="measured; else peak and mfu")
    bandwidth_tb: float = Field(3.35, gt=0, description="memory bandwidth per GPU, TB/s")
    decode_share: float = Field(0.8, gt=0, le=1, description="share of the bandwidth in decoding")
    decode_seconds: float | None = Field(None, gt=0, description="measured; else from bandwidth")
    push_gb: float = Field(2.0, gt=0, description="GB per second at which weights travel")
    gpu_hour_price: float | None = Field(None, gt=0, description="in any currency, for the cost")
    mean_tokens: int | None = Field(None, ge=1, description="mean completion; half the limit")
    length_sigma: float = Field(0.6, ge=0, description="spread of log length")
    prompt_tokens: tuple[int, int] | None = Field(None, description="mean and longest; measured")
    shape: dict[str, Any] | None = Field(None, description="config.json; the model's own if absent")


class ScaleConfig(RunConfig):
    """Everything that decides a full-scale run. The file of any run is one of these as well.

    `steps` counts batches of rollouts, as in every run, each trained in `optimizer.minibatches`
    updates a pass and `optimizer.epochs` passes. Generators get the weights that a batch has made:
    its version. So versions, staleness, checkpoints and rows of metrics are counted in steps; only
    the warm-up counts updates.
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
        here, own = set(RunConfig.model_fields), {"evaluation": {"sets"}}
        return self.model_dump(mode="json", include=here, exclude=own)

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        for section, dtype in (("train", self.model.dtype), ("generate", self.train.dtype)):
            if (old := getattr(self, section)).dtype is None:
                new = old.model_copy(update={"dtype": dtype or self.model.dtype})
                object.__setattr__(self, section, new)  # frozen
        for problem in conflicts(self):
            raise ValueError(problem)
        return self


def conflicts(run: ScaleConfig) -> Iterator[str]:
    """Settings that are valid one by one and cannot work together: each line names the fix."""
    generate, device, limit = run.generate, run.model.device, run.rollout.max_new_tokens
    for need in sorted(run.method.requirements() & NOT_HERE.keys()):
        yield (
            f"method: {run.method.name} needs {REQUIREMENTS[need]}, which many processes do not "
            f"have ({NOT_HERE[need]}): train it with `rlbook train`"
        )
    if (every := run.rollout.sync_every) > 1:
        yield f"rollout.sync_every {every}: set it to 1, generate.max_staleness bounds the age"
    if device not in ("cpu", "cuda"):
        yield f"model.device {device!r}: write cpu or cuda; CUDA_VISIBLE_DEVICES chooses among GPUs"
    for name, one in run.evaluation.sets.items():
        samples, largest = one.samples or run.evaluation.samples, max(one.ks or (1,))
        if largest > samples:
            yield f"evaluation.sets.{name}: pass@{largest} needs {largest} samples, not {samples}"
    if run.model.lora and generate.transport == "nccl":
        yield "model.lora: an adapter travels as a file: set generate.transport to file"
    if run.model.lora and run.model.lora.rank > MOST_RANK:
        yield f"model.lora.rank {run.model.lora.rank}: vLLM takes {MOST_RANK} at most, lower it"
    if generate.transport == "nccl" and device != "cuda":
        yield "generate.transport nccl moves GPU memory: set model.device to cuda, or take file"
    for name, value in BUILTIN.items() if generate.engine == "builtin" else ():
        if getattr(generate, name) != value:
            yield f"generate.engine builtin needs generate.{name} {value}: set it, or take vllm"
    if given := sorted(DECIDED.intersection(name.replace("_", "-") for name in generate.vllm)):
        yield f"generate.vllm: the run itself decides {', '.join(given)}: leave them out"
    target, bound = generate.target_staleness, generate.max_staleness
    if target is not None and target > bound:
        yield f"generate.target_staleness {target} exceeds generate.max_staleness {bound}: lower it"
    if cut := generate.interruption:
        low, high = cut.bounds
        if not 1 <= low <= high:
            yield f"generate.interruption.after {cut.after}: write [low, high], 1 ≤ low ≤ high"
        if high + cut.answer_tokens > limit:
            tokens = f"{high} and {cut.answer_tokens} tokens"
            yield f"generate.interruption: {tokens} exceed rollout.max_new_tokens ({limit})"
    if generate.colocated and generate.transport == "nccl":
        yield "generate.colocated: NCCL wants a GPU a process: set generate.transport to file"
    if generate.sleep and not (generate.colocated and generate.max_staleness == 0):
        yield (
            "generate.sleep: generators sleep while the GPUs that they share make an update: set "
            "generate.colocated to true and generate.max_staleness to 0"
        )
    if generate.sleep and generate.engine == "builtin" and device == "cuda":
        yield "generate.sleep: the book's own sampler keeps its memory, take generate.engine vllm"
    if generate.colocated and run.launch.engine == "ray":
        yield "generate.colocated: Ray gives each process its own GPUs: set launch.engine to local"
    taken, ranks = generate.count * generate.tensor_parallel, run.train.processes
    if ranks % (run.train.shard or ranks):
        yield f"train.processes {ranks}: set it to a multiple of train.shard ({run.train.shard})"
    if generate.colocated and taken > ranks:
        yield f"generate.colocated: servers take {taken} GPUs of {ranks}: lower generate.count"


def load_config(path: str | Path, settings: Sequence[str] = ()) -> ScaleConfig:
    """`rlbook.training.config.load_config` of a full-scale run."""
    return training.load_config(path, settings, ScaleConfig)
