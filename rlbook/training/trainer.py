"""A run: collect rollouts, learn from them, hand the weights to the sampler, measure, save."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.grouping import mean
from rlbook.policy import load_policy
from rlbook.policy.adapters import NAME, adapted, add_adapter, start_adapter
from rlbook.policy.loading import base_name, cut_policy, freeze_below, policy_source
from rlbook.tasks import AnyTask, Problem, get_task, held_out_problems
from rlbook.tasks.registry import question
from rlbook.training.batch import Rollout
from rlbook.training.checkpoint import load_checkpoint, resolve, save_base, save_checkpoint
from rlbook.training.config import Kind, RunConfig
from rlbook.training.engine import Engine
from rlbook.training.filter import Patience, select_groups
from rlbook.training.judge import labeller
from rlbook.training.learner import Learner
from rlbook.training.metrics import rollout_metrics
from rlbook.training.resume import described, saved_run
from rlbook.training.rewards import Reward, rewards_of
from rlbook.training.rollouts import RolloutSource, Sampling
from rlbook.training.seams import check_config, check_given, check_trainable, measured, named

__all__ = ["Trainer"]

Policy = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def policy_of(config: RunConfig, given: Policy | None = None) -> Policy:
    """The policy that a run's settings name, or the one that is given, with the run's adapter."""
    settings = config.model
    if given:
        model, tokenizer = with_settings_of(config, given[0]), given[1]
    else:
        model, tokenizer = load_policy(
            settings.policy,
            getattr(torch, settings.dtype),
            settings.device,
            vocabulary=settings.vocabulary,
            trainable_layers=settings.trainable_layers,
        )
    if settings.lora and not adapted(model):
        add_lora(model, config)
        start_adapter(model, config.seed, model.device)
    return model, tokenizer


def with_settings_of(config: RunConfig, model: PreTrainedModel) -> PreTrainedModel:
    """A policy that is given, trained as `config.model` says, without dropout.

    Raises `ValueError` for a setting that this policy cannot have any more.
    """
    settings, plain = config.model, type(config.model)()
    own = str(model.dtype).removeprefix("torch.")
    if settings.vocabulary is not None:
        raise ValueError(
            f"model.vocabulary {settings.vocabulary}: a policy that is given keeps its own: cut it "
            "with load_policy(…, vocabulary=…)"
        )
    if settings.dtype not in (own, plain.dtype):
        raise ValueError(f"model.dtype {settings.dtype}: the policy that is given is in {own}")
    ranks = {len(cast(Tensor, one.lora_A[NAME].weight)) for one in adapted(model).values()}
    if ranks and (settings.lora is None or ranks != {settings.lora.rank}):
        wanted = settings.lora and f"model.lora.rank is {settings.lora.rank}"
        raise ValueError(
            f"the policy that is given has an adapter of rank {min(ranks)}, and "
            f"{wanted or 'model.lora is not set'}: set it to that, or give a policy without one"
        )
    if settings.trainable_layers is not None:
        freeze_below(model, settings.trainable_layers)
    return cast(PreTrainedModel, model.eval())


def add_lora(model: PreTrainedModel, config: RunConfig) -> None:
    """Put the adapter of a run's settings, without values yet, into its policy."""
    if lora := config.model.lora:
        base = base_name(cut_once(config).model.policy)
        add_adapter(model, lora.rank, lora.alpha, lora.targets, base)


def cut_once(config: Kind) -> Kind:
    """The run with the folder of its policy as it is now, and as cut, for all its processes.

    A policy that is another run's folder becomes that run's newest step: a process that starts
    later loads the same weights.
    """
    if config.model.vocabulary is None:
        return at_step(config)
    folder = cut_policy(config.model.policy, config.model.vocabulary)
    return config.replace(model={"policy": str(folder), "vocabulary": None})


def at_step(config: Kind) -> Kind:
    """The run with its policy's step by name where that is another run, which may go on."""
    step, run = policy_source(config.model.policy), Path(config.model.policy).expanduser()
    is_run = isinstance(step, Path) and step.parent == run
    return config.replace(model={"policy": str(step)}) if is_run else config


class Trainer:
    """Trains a policy; iterate over it to get one dictionary of metrics per step.

    A step is `collect` (its `source` of rollouts), `learn` (its `learner`), and the weights back to
    the sampler. `policy` is a (model, tokenizer) pair instead of the one `config.model` names;
    `task`, `reward` and `engine` are objects instead of what the config names: a reward is a
    function of rollouts (`rlbook.training.Reward`), an engine samples instead of the built-in
    sampler. `evaluate(trainer)` measures every `config.evaluation.every` steps, such as
    `rlbook.evaluation.evaluate_run`; its pass@1 is the metric `heldout`. Every random draw derives
    from (seed, step), so a resumed run goes on exactly where the saved one would have.

        for metrics in Trainer(RunConfig(method="grpo")):
            print(metrics["step"], metrics["accuracy"])

    Raises `ValueError` for a method that cannot be saved, and for an object that is not what it
    stands for or is never used; its first step, for evaluations that nobody makes.
    """

    source_class, learner_class = RolloutSource, Learner  # for trainers that do these otherwise

    def __init__(
        self,
        config: RunConfig,
        policy: Policy | None = None,
        *,
        task: AnyTask | None = None,
        reward: Reward | None = None,
        engine: Engine | None = None,
        evaluate: Callable[["Trainer"], dict[str, Any]] | None = None,
    ):
        check_config(config)
        check_given(policy, task, reward, engine, evaluate)
        if evaluate is not None and not config.evaluation.every:
            raise ValueError(
                f"evaluate {named(evaluate)} is never called, for evaluation.every is 0: set it to "
                "the steps between evaluations, or leave `evaluate` out"
            )
        config.method.to_dict()  # what cannot be saved fails now, not hours later
        config = config if policy else at_step(config)  # a resumed run has the same reference
        self.config, self.method, self.measure = config, config.resolved_method, evaluate
        self.seams = {"policy": policy, "task": task, "reward": reward, "engine": engine}
        self.task = task or get_task(config.data.task)
        self.label = labeller(self.task)
        rewards = rewards_of(config, reward)
        policy = policy_of(config, policy)
        self.model, self.tokenizer = policy
        check_trainable(self.model)
        self.source = self.source_class(config, self.task, rewards, policy, engine)
        self.learner = self.learner_class(config, self.model, sampler=self.source.weights)
        self.asked_before: Set[str] = set()  # the prompts of the step before
        self.patience = Patience(self.method, rewards[0], config.patience)

    def __iter__(self) -> Iterator[dict[str, float]]:
        while self.step < self.config.steps:
            yield self.train_one()

    def train_one(self) -> dict[str, float]:
        """One step: sample, verify, update."""
        return self.learn(self.collect())

    def collect(self, seed: int | None = None) -> list[Rollout]:
        """The rollouts of this step, or for a seed of one's own; see `RolloutSource.collect`."""
        return self.source.collect(self.step, seed)

    def learn(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """All updates on the rollouts of a step, which ends with them; returns its metrics."""
        every = self.config.evaluation.every
        if every and self.measure is None:
            raise ValueError(
                "evaluation.every: say how to measure, Trainer(config, evaluate="
                "rlbook.evaluation.evaluate_run), or set it to 0"
            )
        metrics = rollout_metrics(rollouts, self.version, self.label)
        asked = self.questions({r.group: r.problem for r in rollouts}.values())
        metrics["asked_again"] = mean(one in self.asked_before for one in asked)
        self.asked_before = asked
        used = select_groups(rollouts, self.method)[: self.config.batch_size]
        metrics |= self.learner.learn(used, self.source.wrote(used))
        if self.step % self.config.rollout.sync_every == 0:
            self.sync()
        if self.measure and every and self.step % every == 0:
            metrics["heldout"] = measured(self.measure, self)
            metrics["heldout_asked"] = self.leaked(asked)
        self.patience.note(rollouts, used)
        return {"step": self.step, **metrics}

    def leaked(self, asked: Set[str]) -> float:
        """Share of the pool's questions, or of those asked, that are held out for evaluation."""
        config, pool = self.config, self.source.pool
        trained = self.questions(pool.problems.values()) if pool else asked
        problems = held_out_problems(self.task, config.evaluation.prompts, config.data.levels)
        held_out = self.questions(problems)
        return mean(one in held_out for one in trained)

    def questions(self, problems: Iterable[Problem]) -> Set[str]:
        """What these problems ask, as texts."""
        return {str(question(self.task, problem)) for problem in problems}

    def sync(self) -> None:
        """Give the sampler the current weights."""
        self.source.sync(self.model, self.version)

    def sample(
        self, problems: Sequence[Problem], n: int | None = None, **changes: Unpack[Sampling]
    ) -> list[Rollout]:
        """`n` rewarded completions of each problem; see `RolloutSource.sample`."""
        return self.source.sample(problems, n, **changes)

    @property
    def step(self) -> int:
        """Steps learned."""
        return self.learner.step

    @step.setter
    def step(self, step: int) -> None:
        self.learner.step = step

    @property
    def version(self) -> int:
        """The number of the weights: of the updates that made them."""
        return self.learner.updates_made

    # What outlives the process

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint from which `Trainer.resume` continues bit for bit on one thread.

        A step's folder is a Hugging Face model folder: `load_policy` takes it, or the run's.
        """
        run = {"config": self.config.to_dict(), "given": described(self.seams)}
        policy, optimizers = (self.model, self.tokenizer), self.learner.optimizers
        if self.seams["policy"] and adapted(self.model):
            save_base(Path(folder), *policy)
        return save_checkpoint(Path(folder), policy, self.others(), optimizers, run | self.rest())

    def rest(self) -> dict[str, Any]:
        """What training changes besides weights and moments, JSON-safe."""
        return self.learner.state() | self.source.state() | {"asked": sorted(self.asked_before)}

    def load_rest(self, rest: dict[str, Any]) -> None:
        """Go on from `rest()`, the weights being loaded already."""
        self.learner.load_state(rest)
        self.source.load_state(rest)
        self.asked_before = set(rest.get("asked", ()))

    def state_dict(self) -> dict[str, Any]:
        """What training changes, as `save` writes it: weights, moments and all the rest."""
        optimizers = {name: o.state_dict() for name, o in self.learner.optimizers.items()}
        models = {name: m.state_dict() for name, m in self.models().items()}
        return {"models": models, "optimizers": optimizers, "rest": self.rest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict()` of a trainer of the same run."""
        for name, model in self.models().items():
            model.load_state_dict(state["models"][name])
        for name, optimizer in self.learner.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.load_rest(state["rest"])

    def models(self) -> dict[str, nn.Module]:
        """All models of the run that change while it goes on."""
        return {"model": self.model, **self.others()}

    def others(self) -> dict[str, nn.Module]:
        """Models of the run besides the policy that change while it goes on."""
        stale = self.source.weights if self.source.weights is not self.model else None
        models = {"critic": self.learner.critic, "behaviour": stale}
        return {name: model for name, model in models.items() if model is not None}

    @classmethod
    def resume(cls, folder: str | Path, config: RunConfig | None = None, **given: Any) -> "Trainer":
        """The trainer that `save` wrote to `folder` (the newest step of a run folder).

        What was given as an object (`policy`, `task`, `reward`, `engine`) has to be given again,
        `evaluate` may be. `config` may change what decides how long and where a run goes on
        (`RESUMABLE`). Raises `ValueError` naming every field that differs otherwise.
        """
        if config is not None:
            check_config(config)
        seams = {name: thing for name, thing in given.items() if name != "evaluate"}
        config, state = saved_run(Path(folder), config, seams)
        trainer = cls(config, **given)
        models, optimizers = trainer.others(), trainer.learner.optimizers
        if (base := resolve(Path(folder)).parent / "base").is_dir():
            save_base(base.parent, trainer.model, trainer.tokenizer)
        load_checkpoint(Path(folder), trainer.model, models, optimizers)
        trainer.load_rest(state)
        return trainer
