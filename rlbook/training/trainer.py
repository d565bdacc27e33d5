"""The single-process loop: prompts → rollouts → rewards → advantages → objective → update."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from rlbook.objectives import METHODS, Method
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import get_task, strategy_of
from rlbook.training.batch import Batch, Rollout, minibatches
from rlbook.training.checkpoint import load_checkpoint, read_state, save_checkpoint
from rlbook.training.collect import RolloutSource, derive_seed, with_spread
from rlbook.training.config import TrainConfig
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.metrics import rollout_metrics, update_metrics
from rlbook.training.pool import prompt_pool
from rlbook.training.prepare import Scorer
from rlbook.training.step import critic_step, train_step


class Trainer:
    """Trains a policy; iterate over it to get one dictionary of metrics per step.

    `method` overrides the row the config names (an ablation is `dataclasses.replace`); `policy`
    is an optional (model, tokenizer) pair; `engine` samples instead of the built-in sampler, and
    gets the weights through its `load_weights`. Every random draw derives from (seed, step), so a
    resumed run goes on exactly where the saved one would have.

        for metrics in Trainer(TrainConfig(method="grpo")):
            print(metrics["step"], metrics["accuracy"])
    """

    def __init__(self, config: TrainConfig, method: Method | None = None, policy=None, engine=None):
        self.config = config
        self.method = fitted(method or find_method(config.method), config)
        self.task = get_task(config.task)
        self.model, self.tokenizer = policy or load_policy(config.policy, device=config.device)
        self.behaviour = frozen_copy(self.model) if config.sampler_refresh > 1 else self.model
        self.engine = engine or Sampler(self.behaviour, self.tokenizer.eos_token_id)
        self.pool = prompt_pool(self.task, config)
        self.source = RolloutSource(
            self.engine, self.tokenizer, self.task, self.method, config, self.pool
        )
        self.models, self.optimizers = {"model": self.model}, {}
        self.optimizers["model"] = self.adamw(self.model, config.lr)
        if self.method.needs_critic:
            self.models["critic"] = Critic(self.model)
            self.optimizers["critic"] = self.adamw(self.models["critic"], config.critic_lr)
        if self.behaviour is not self.model:
            self.models["behaviour"] = self.behaviour
        reference = frozen_copy(self.model) if self.method.needs_reference else None
        self.scorer = Scorer(self.model, self.models.get("critic"), reference, self.method, config)
        self.step = self.version = self.behaviour_version = 0
        self.load_engine()

    def __iter__(self) -> Iterator[dict[str, float]]:
        while self.step < self.config.steps:
            yield self.train_one()

    def progress(self, description: str | None = None) -> Iterator[dict[str, float]]:
        """The remaining steps behind a progress bar with ETA."""
        with tqdm(total=self.config.steps, initial=self.step, desc=description) as bar:
            for metrics in self:
                bar.set_postfix(accuracy=f"{metrics['accuracy']:.2f}", refresh=False)
                bar.update()
                yield metrics

    def train_one(self) -> dict[str, float]:
        """Sample, score and update on one batch of rollouts."""
        rollouts = self.collect()
        report = rollout_metrics(rollouts, self.version, strategy if self.knows_sums else None)
        used = rollouts if self.method.prompt_filter == "none" else with_spread(rollouts)
        updates = self.learn(used[: self.config.prompts * self.config.group_size])
        self.step += 1
        if self.step % self.config.sampler_refresh == 0:
            self.push_weights()
        return {"step": self.step, **report, **update_metrics(updates)}

    def collect(self) -> list[Rollout]:
        """The verified rollouts of this step, those a prompt filter will drop included."""
        return self.source.collect(self.seed(), self.behaviour_version)

    def learn(self, rollouts: list[Rollout]) -> list[dict[str, float]]:
        """All optimizer updates on one batch of rollouts; returns their metrics."""
        if not rollouts:
            return []
        batch = self.prepare(rollouts)
        updates = [
            self.update(minibatch)
            for epoch in range(self.config.epochs)
            for minibatch in self.shuffled(batch, epoch)
        ]
        if batch.values_old is not None:
            rewards = batch.rewards[:, None].expand_as(batch.mask)
            explained = explained_variance(batch.values_old, rewards, batch.mask)
            updates[0]["explained_variance"] = explained
        return updates

    def prepare(self, rollouts: list[Rollout]) -> Batch:
        """Rollouts as tensors with everything the method's loss needs."""
        greedy = self.source.greedy_rewards(rollouts) if self.method.needs_greedy else None
        return self.scorer.prepare(rollouts, greedy)

    def shuffled(self, batch: Batch, epoch: int) -> Iterator[Batch]:
        """Minibatches of whole groups; fewer of them if a filter left too few groups."""
        generator = torch.Generator().manual_seed(self.seed("shuffle", epoch))
        groups = len(batch.groups.unique())
        return minibatches(batch, min(self.config.minibatches, groups), generator)

    def update(self, minibatch: Batch) -> dict[str, float]:
        """One policy update and, for critic methods, one critic update."""
        config = self.config
        optimizer, temperature = self.optimizers["model"], config.temperature
        limits = config.model_dump(include={"micro_batch_tokens", "max_grad_norm"})
        metrics = train_step(
            self.model, optimizer, minibatch, self.method, temperature=temperature, **limits
        )
        self.version += 1
        if self.method.needs_critic:
            critic, optimizer = self.models["critic"], self.optimizers["critic"]
            skipped = metrics["skipped_updates"]
            metrics |= critic_step(critic, optimizer, minibatch, clip=config.value_clip, **limits)
            metrics["skipped_updates"] += skipped
        return metrics

    def push_weights(self) -> None:
        """Give the sampler the current weights."""
        if self.behaviour is not self.model:
            self.behaviour.load_state_dict(self.model.state_dict())
        self.behaviour_version = self.version
        self.load_engine()

    def load_engine(self) -> None:
        """Give an engine with weights of its own those it samples with."""
        if hasattr(self.engine, "load_weights"):
            self.engine.load_weights(self.behaviour)

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint from which `Trainer.resume` continues bit for bit on one thread."""
        state = {
            "config": self.config.model_dump(),
            "version": self.version,
            "behaviour_version": self.behaviour_version,
            "advantage": getattr(self.scorer.advantage, "__dict__", {}),
            "pool": self.pool and self.pool.state(),
        }
        return save_checkpoint(Path(folder), self.step, self.models, self.optimizers, state)

    @classmethod
    def resume(
        cls, folder: str | Path, method: Method | None = None, policy=None, engine=None
    ) -> "Trainer":
        """The trainer that `save` wrote to `folder` (the newest step of a run folder)."""
        config = TrainConfig(**read_state(Path(folder))["config"])
        trainer = cls(config, method, policy, engine)
        state = load_checkpoint(Path(folder), trainer.models, trainer.optimizers)
        trainer.step, trainer.version = state["step"], state["version"]
        trainer.behaviour_version = state["behaviour_version"]
        vars(trainer.scorer.advantage).update(state["advantage"])
        if trainer.pool is not None:
            trainer.pool.load(state["pool"])
        trainer.load_engine()
        return trainer

    @property
    def knows_sums(self) -> bool:
        return self.task.name == "sums"

    def seed(self, *path: object) -> int:
        return derive_seed(self.config.seed, self.step, *path)

    def adamw(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.AdamW(
            model.parameters(), lr=lr, betas=config.betas, weight_decay=config.weight_decay
        )


def find_method(name: str) -> Method:
    """The row of `METHODS` with this name; the error lists the names there are."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; choose from {', '.join(sorted(METHODS))}")
    return METHODS[name]


def fitted(method: Method, config: TrainConfig) -> Method:
    """The row with what only a run can know: its reward values and its constant normaliser."""
    wrong, right = method.reward_values
    return replace(
        method,
        reward_values=(
            wrong if config.reward_wrong is None else config.reward_wrong,
            right if config.reward_right is None else config.reward_right,
        ),
        constant=config.max_new_tokens if method.aggregation == "constant" else method.constant,
    )


def frozen_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False).eval()


def strategy(rollout: Rollout) -> str:
    return strategy_of(rollout.text, not rollout.truncated)
