"""Everything that decides a run, as data: one `RunConfig` for notebook, shell and cluster."""

import json
import random
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from rlbook.objectives import METHODS, Method
from rlbook.objectives.options import ELSEWHERE as METHOD_ELSEWHERE
from rlbook.tasks.mixture import mixture_name
from rlbook.training.sinks import SinkName
from rlbook.verbs import read_settings
from rlbook.yaml12 import read_yaml

__all__ = ["RunConfig", "derive_seed", "dump_config", "load_config"]


def derive_seed(seed: int, *path: object) -> int:
    """An independent stream for every (seed, path): nothing to save, nothing to restore."""
    return random.Random("/".join(map(str, (seed, *path)))).getrandbits(62)


class Section(BaseModel):
    """Settings that belong together: typed, checked, never changed in place."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                fields = cls.model_fields
                there_are = f": there are {', '.join(fields)}"
                raise ValueError(unknown(name, {field: field for field in fields}) + there_are)
        return without_flags(cls, given)


def without_flags(kind: type[BaseModel], given: Any) -> Any:
    """Settings in which true and false stand for numbers nowhere: there they are words."""
    if not isinstance(given, Mapping):
        return given
    numbers = {n for n, f in kind.model_fields.items() if {int, float} & kinds_in(f.annotation)}
    return {
        name: str(value).lower() if isinstance(value, bool) and name in numbers else value
        for name, value in given.items()
    }


def kinds_in(annotation: Any) -> set[Any]:
    """The types that an annotation names, at any depth."""
    return {annotation}.union(*map(kinds_in, get_args(annotation)))


class LoRA(Section):
    """Low-rank adapters that learn in place of the weights, h = W x + (alpha / rank) B A x."""

    rank: int = Field(16, ge=1, description="of B A")
    alpha: float = Field(32.0, gt=0, description="alpha / rank scales B A")
    targets: tuple[str, ...] | None = Field(
        None, min_length=1, description="linear layers by name; all but the head if absent"
    )


class ModelConfig(Section):
    """What is trained, and where."""

    policy: str = Field("tiny", description='"tiny", "smollm2-135m", a model folder, a hub name')
    device: str = Field("cpu", description='"cpu", "cuda", "cuda:0", …')
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of weights; the optimizer's stay float32"
    )
    vocabulary: int | None = Field(
        None, ge=1, description="tokens that a byte-pair vocabulary is cut to; all if absent"
    )
    trainable_layers: int | None = Field(
        None, ge=1, description="last layers that learn, the rest stays as it is; all if absent"
    )
    lora: LoRA | None = Field(
        None, description="{rank, alpha, targets}: adapters learn, the rest is frozen; none: null"
    )
    chat: dict[str, Any] = Field(
        {}, description="system, examples: [[question, answer]], settings of the chat template"
    )

    @model_validator(mode="after")
    def _examples(self) -> Self:
        if self.lora and self.trainable_layers:
            raise ValueError("lora and trainable_layers both say what learns: leave one out")
        for pair in self.chat.get("examples", ()):
            if not (isinstance(pair, Sequence) and [type(part) for part in pair] == [str, str]):
                raise ValueError(f"chat.examples: write pairs [question, answer], not {pair!r}")
        return self


class DataConfig(Section):
    """What is asked and what an answer is worth."""

    task: str = Field(
        "sums", description='"sums", "reasoning_gym:<name>", "dataset:<source>", "package.mod:Task"'
    )
    reward: str | None = Field(
        None, description='"package.module:function" of rollouts; the verifier\'s word if absent'
    )
    mixture: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="several tasks by weight, {task: weight}, instead of `task`"
    )
    rewards: dict[str, str] = Field({}, description="of a mixture: a reward by task, as `reward`")
    levels: tuple[int, ...] | None = Field(None, description="difficulty levels; all if absent")
    pool: int | None = Field(
        None, ge=1, description="distinct problems, met again every epoch; endless if absent"
    )
    retire_at: float | None = Field(
        None, gt=0, le=1, description="pass rate at which a problem leaves the pool (ScaleRL: 0.9)"
    )

    @model_validator(mode="after")
    def _mixed(self) -> Self:
        if strangers := self.rewards.keys() - (self.mixture or {}).keys():
            raise ValueError(f"rewards: {sorted(strangers)[0]!r} is not in data.mixture")
        if self.mixture:
            name = mixture_name(self.mixture)
            if "task" in self.model_fields_set and self.task != name:
                raise ValueError(
                    f"task {self.task!r} and mixture both say what is asked: leave one out "
                    "(data.mixture=null)"
                )
            object.__setattr__(self, "task", name)  # frozen
        return self


class RolloutConfig(Section):
    """How completions are sampled."""

    prompts: int = Field(16, ge=1, description="prompts per step")
    group_size: int = Field(8, ge=1, description="completions per prompt")
    max_new_tokens: int = Field(80, ge=1, description="completion limit in tokens")
    max_turns: int = Field(64, ge=1, description="most turns of an episode with an environment")
    turn_tokens: int | None = Field(None, ge=1, description="most tokens of one turn; none: null")
    temperature: float = Field(1.0, gt=0, description="of sampling and of every log-probability")
    sync_every: int = Field(1, ge=1, description="steps between weight syncs to the sampler")
    stop: tuple[str, ...] | None = Field(
        None, description="texts that end a completion; the task's own if absent"
    )


Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and how a batch of rollouts is cut into its updates."""

    lr: float = Field(1.5e-4, gt=0, description="learning rate of the policy after warm-up")
    warmup: int = Field(0, ge=0, description="updates of linear warm-up")
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="decay of the moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping threshold")
    minibatches: int = Field(4, ge=1, description="updates per pass over the rollouts")
    epochs: int = Field(1, ge=1, description="passes over each batch of rollouts")
    micro_batch_tokens: int = Field(8192, ge=1, description="padded tokens per forward pass")


class CriticConfig(Section):
    """The critic of methods that have one."""

    lr: float = Field(3e-4, gt=0, description="learning rate of the critic")
    gamma: float = Field(1.0, ge=0, le=1, description="discount of GAE")
    lam: float = Field(1.0, ge=0, le=1, description="λ of GAE")
    value_clip: float | None = Field(0.2, gt=0, description="range of the clipped value loss")


class EvaluationConfig(Section):
    """Held-out problems, asked at intervals while the run goes on."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0: none")
    prompts: int = Field(64, ge=1, description="held-out problems")
    samples: int = Field(4, ge=1, description="completions per held-out problem")


def as_method(given: Any) -> Any:
    """A row of `METHODS` by name, or the method that a dictionary describes."""
    return Method.from_dict(given) if isinstance(given, str | Mapping) else given


MethodField = Annotated[
    InstanceOf[Method], BeforeValidator(as_method), PlainSerializer(Method.to_dict)
]


class RunConfig(Section):
    """Everything that decides a run: the same config and seed give the same run on one thread.

    A setting may be given without its section where that is clear, in a notebook as in a file:
    `RunConfig(method="grpo", lr=3e-4)` is `RunConfig(method="grpo", optimizer={"lr": 3e-4})`. Of
    two settings with one name the plain name means the first section's, in the order below;
    `critic_lr` spells out the other. `method` is a row's name, a `Method`, or a dictionary:
    `{"name": "grpo", "trust_region": {"high": 0.28}}`.
    """

    method: MethodField = Field(METHODS["grpo"], description="row of rlbook.objectives.METHODS")
    steps: int = Field(60, ge=1, description="batches of rollouts")
    seed: int = Field(0, ge=0, description="of every random draw")
    patience: int | None = Field(
        5, ge=1, description="steps without an update after which a run stops; null: it goes on"
    )
    sinks: tuple[SinkName, ...] = Field((), description="services that get its rows of metrics")
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    critic: CriticConfig = CriticConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    if TYPE_CHECKING:  # a setting without its section is no field, and right all the same

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        if "tensorboard" in given:
            raise ValueError("tensorboard is a sink: write sinks: [tensorboard]")
        return without_flags(cls, in_sections(cls, given))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        minibatches, prompts = self.optimizer.minibatches, self.rollout.prompts
        if minibatches > prompts:
            raise ValueError(
                f"optimizer.minibatches ({minibatches}) cannot exceed rollout.prompts ({prompts}): "
                "a minibatch holds whole groups"
            )
        if self.data.retire_at is not None and self.data.pool is None:
            raise ValueError(
                "data.retire_at needs a finite pool: set data.pool to a number of problems"
            )
        return self

    @property
    def resolved_method(self) -> Method:
        """The method with what only a run can know: its generation limit."""
        return self.method.resolved(self.rollout.max_new_tokens)

    @property
    def batch_size(self) -> int:
        """Completions trained per step, at most."""
        return self.rollout.prompts * self.rollout.group_size

    def replace(self, **changes: Any) -> Self:
        """A copy with these settings changed, checked as a whole; names as in the constructor."""
        settings = {name: getattr(self, name) for name in type(self).model_fields}
        for name, value in in_sections(type(self), changes).items():
            old = settings[name]
            merge = isinstance(old, Section) and isinstance(value, Mapping)
            settings[name] = one_task({**dict(old), **value}, value) if merge else value
        return type(self)(**settings)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values; `RunConfig(**config.to_dict()) == config`."""
        return self.model_dump(mode="json")


def in_sections(kind: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section, those that were given without one moved to theirs.

    Raises `ValueError` for a setting that is given twice, or that there is not.
    """
    placed = {name: value for name, value in given.items() if name in kind.model_fields}
    for name in given.keys() - placed.keys():
        section, field = home_of(kind, name)
        inside = dict(placed.get(section) or {})
        if field in inside and not isinstance(placed[section], Section):
            raise ValueError(f"{section}.{field} is given twice, as {name} too")
        placed[section] = inside | {field: given[name]}
    return placed


def home_of(kind: type[BaseModel], name: str, whole: str = "") -> tuple[str, str]:
    """Section and field that `name`, without its section, means; `whole` is it with all its dots.

    Raises `ValueError` naming what comes near where no section has it.
    """
    if home := find_section(kind, name):
        return home
    dotted = {f: f"{s}.{f}" for s, fields in sections_of(kind).items() for f in fields.model_fields}
    known = {name: name for name in kind.model_fields} | dotted
    raise ValueError(unknown(whole or name, known) + f": there are {', '.join(kind.model_fields)}")


def unknown(name: str, known: Mapping[str, str]) -> str:
    """That there is no such setting, and which names come near, or mean it in other trainers."""
    if name in FOREIGN:
        return (
            f"no setting {name!r}: that is of {FOREIGN[name]}, read by `rlbook methods --like FILE`"
        )
    last = name.lower().replace("-", "_").rpartition(".")[2]
    near = [ours for ours, theirs in ELSEWHERE.items() if last in theirs.split()]
    near = near or [known[one] for one in get_close_matches(last, known, cutoff=0.7)]
    return f"no setting {name!r}" + (f", did you mean {' or '.join(near)}?" if near else "")


FOREIGN = {  # sections of other trainers' files
    "actor_rollout_ref": "verl",
    "algorithm": "verl",
    "trainer": "verl and SkyRL",
    "generator": "SkyRL",
    "orchestrator": "prime-rl",
}
ELSEWHERE = {  # what users of other trainers call a setting
    "optimizer.lr": "learning_rate actor_learning_rate",
    "optimizer.epochs": "num_iterations ppo_epochs max_epochs update_epochs_per_batch",
    "optimizer.warmup": "warmup_steps lr_warmup_steps",
    "optimizer.betas": "adam_beta1 adam_beta2 adam_betas",
    "optimizer.max_grad_norm": "grad_clip clip_grad max_norm clip_grad_norm",
    "optimizer.minibatches": "ppo_mini_batch_size policy_mini_batch_size steps_per_generation",
    "optimizer.micro_batch_tokens": "ppo_max_token_len_per_gpu ppo_micro_batch_size_per_gpu "
    "micro_train_batch_size gradient_accumulation_steps grad_accum",
    "rollout.prompts": "train_batch_size batch_size rollout_batch_size num_prompts "
    "per_device_train_batch_size generation_batch_size",
    "rollout.group_size": "num_generations n n_samples_per_prompt num_return_sequences",
    "rollout.max_new_tokens": "max_completion_length max_response_length max_tokens max_length "
    "generate_max_len response_length",
    "rollout.temperature": "temp sampling_temperature",
    "steps": "max_steps total_training_steps num_steps total_steps iterations train_steps "
    "num_train_epochs total_epochs",
    "model.dtype": "bf16 fp16 torch_dtype",
    "seed": "random_seed data_seed",
    "sinks": "report_to logger",
    "method": "loss_type adv_estimator advantage_estimator algo loss",
    **{f"method.{ours}": theirs for ours, theirs in METHOD_ELSEWHERE.items()},
    "model.lora.rank": "lora_rank lora_r",
    "model.lora.alpha": "lora_alpha",
    "model.lora.targets": "lora_target_modules target_modules",
    "model.lora": "use_peft peft_config lora_config",
    "model.policy": "model_name_or_path pretrain model_path model_name path base_model",
    "data.task": "dataset dataset_name train_files prompt_data train_dataset",
    "data.reward": "reward_funcs reward_func reward_function reward_fn",
    "evaluation.every": "eval_steps test_freq eval_every eval_interval",
    "--out": "output_dir default_local_dir save_path out",
    "--save-every": "save_steps save_freq save_interval",
}


def sections_of(kind: type[BaseModel]) -> dict[str, type["Section"]]:
    """The sections of a run's settings, in their order."""
    return {
        section: field.annotation
        for section, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def find_section(kind: type[BaseModel], name: str) -> tuple[str, str] | None:
    """Section and field that `name`, written without its section, means."""
    sections = sections_of(kind)
    for section, fields in sections.items():
        if name in fields.model_fields:
            return section, name
    for section, fields in sections.items():
        if name.removeprefix(f"{section}_") in fields.model_fields:
            return section, name.removeprefix(f"{section}_")
    return None


Kind = TypeVar("Kind", bound=RunConfig)


def load_config(
    path: str | Path,
    settings: Sequence[str] = (),
    kind: type[Kind] = RunConfig,  # type: ignore[assignment]
) -> Kind:
    """The settings in a YAML file, or of a run folder, changed by words `section.field=value`.

    Raises `ValueError` naming file, field and fix.
    """
    path = Path(path, "config.yaml") if Path(path).is_dir() else Path(path)
    try:
        document = read_yaml(path.read_text(), str(path)) or {}
    except FileNotFoundError:
        raise ValueError(f"no configuration {path}; examples are in configs/") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected sections such as `optimizer:`, got {document!r}")
    try:
        document = in_sections(kind, {k: v for k, v in document.items() if v is not None})
        return kind(**changed(document, settings, kind))
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def with_settings(config: Kind, settings: Sequence[str]) -> Kind:
    """The same run with words `section.field=value` changed; a section may be left out.

    Raises `ValueError` for a setting that there is not, and one that is given twice.
    """
    try:
        return type(config)(**changed(config.to_dict(), settings, type(config)))
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def dump_config(config: RunConfig) -> str:
    """The settings as YAML that `load_config` reads back to an equal object."""
    return str(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True))


def one_task(section: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """A section without its task as it was, where a mixture is given in its place."""
    if "mixture" in given and "task" not in given:
        section.pop("task", None)
    return section


def changed(
    document: dict[str, Any], settings: Sequence[str], kind: type[BaseModel]
) -> dict[str, Any]:
    """A document of settings with some written over; a method's choices go into its row."""
    given: dict[str, Any] = {}
    for word in settings:
        ((name, value),) = read_settings([word]).items()
        first, *deeper = name.split(".")
        path = (
            name if first in kind.model_fields else ".".join([*home_of(kind, first, name), *deeper])
        )
        if path in given:
            raise ValueError(f"{path} is given twice: {given[path]!r} and {value!r}; give it once")
        given[path] = value
    for path in sorted(given, key=lambda path: path.count(".")):  # a row before its changes
        *sections, field = path.split(".")
        inside = document
        for name in sections:
            inner = inside.get(name, {})
            if name == "method" and not isinstance(inner, Mapping):
                inner = {"name": inner}
            if name == "method" and "name" not in inner:
                inner = {"name": kind.model_fields["method"].default.name}
            if inner is not None and not isinstance(inner, str | Mapping):
                raise ValueError(f"{path}: {name} is {inner!r}, which has no fields")
            inside[name] = {"type": inner} if isinstance(inner, str) else dict(inner or {})
            inside = inside[name]
        inside[field] = given[path]
    if isinstance(document.get("data"), dict):
        one_task(document["data"], {path.removeprefix("data.") for path in given})
    return document


def explain(error: ValidationError) -> str:
    """Validation errors as one line: field, and what is wrong."""
    lines = []
    for problem in error.errors():
        field = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ") + fix_of(problem, field)
        lines.append(f"{field}: {message}" if field else message)
    return "; ".join(lines)


def fix_of(problem: Mapping[str, Any], field: str) -> str:
    """What was given instead, or what to write for it."""
    kind, given = problem["type"], problem["input"]
    if kind == "tuple_type" and field == "rollout.stop":
        return f": write {field}={json.dumps([str(given)], ensure_ascii=False)}"
    if kind == "tuple_type":
        items = ",".join(re.findall(r"[^\s,;()\[\]]+", str(given)))
        return f": write {field}=[{items}]"
    if kind in ("model_type", "model_attributes_type") and field in sections_of(RunConfig):
        first = next(iter(sections_of(RunConfig)[field].model_fields))
        return f": it is a section, write {field}.{first}={given}"
    return f", got {given!r}" if kind.startswith(("int_", "float_", "bool_", "literal_")) else ""


def settings_text(kind: type[BaseModel]) -> str:
    """Every setting with its default, a line each, for a command's help."""
    lines = []
    for section, fields in {"": kind, **sections_of(kind)}.items():
        for name, field in fields.model_fields.items():
            if section or name not in sections_of(kind):
                default = getattr(field.default, "name", field.default)
                dotted = f"{section}.{name}" if section else name
                lines.append(f"  {f'{dotted}={default}':<36} {field.description or ''}".rstrip())
    return "settings, as section.field=value (a section may be left out where that is clear):\n" + (
        "\n".join(lines)
    )
