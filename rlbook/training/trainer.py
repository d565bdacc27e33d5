"""The single-process loop: prompts → rollouts → rewards → advantages → objective → update."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from rlbook.objectives import METHODS, Method, gae, kl_estimate
from rlbook.policy import Sampler, load_policy, logprobs
from rlbook.tasks import get_task
from rlbook.training.checkpoint import load_checkpoint, read_state, save_checkpoint
from rlbook.training.collect import RewardScheme, collect_rollouts, derive_seed
from rlbook.training.config import TrainConfig
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.metrics import rollout_metrics, update_metrics
from rlbook.training.rollouts import Batch, Rollout, collate, micro_batch_rows, minibatches
from rlbook.training.step import critic_step, train_step


class Trainer:
    """Trains a policy; iterate over it to get one dictionary of metrics per step.

    `method` overrides the row the config names (an ablation is `dataclasses.replace`); `policy`
    is an optional (model, tokenizer) pair. Every random draw derives from (seed, step), so a
    resumed run goes on exactly where the saved one would have.

        for metrics in Trainer(TrainConfig(method="grpo")):
            print(metrics["step"], metrics["accuracy"])
    """

    def __init__(self, config: TrainConfig, method: Method | None = None, policy=None):
        self.config = config
        self.method = method or find_method(config.method)
        self.task = get_task(config.task)
        self.model, self.tokenizer = policy or load_policy(config.policy, device=config.device)
        self.reference = frozen_copy(self.model) if self.method.kl else None
        self.behaviour = frozen_copy(self.model) if config.sampler_refresh > 1 else self.model
        self.engine = Sampler(self.behaviour, self.tokenizer.eos_token_id)
        self.reward = RewardScheme(config.reward_right, config.reward_wrong, config.reward_format)
        self.advantage = self.method.new_advantage()
        self.models, self.optimizers = {"model": self.model}, {}
        self.optimizers["model"] = self.adamw(self.model, config.lr)
        if self.method.needs_critic:
            self.models["critic"] = Critic(self.model)
            self.optimizers["critic"] = self.adamw(self.models["critic"], config.critic_lr)
        if self.behaviour is not self.model:
            self.models["behaviour"] = self.behaviour
        self.step = self.version = self.behaviour_version = 0

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
        report = rollout_metrics(rollouts, self.version, getattr(self.task, "label", None))
        batch = self.prepare(rollouts)
        if batch.values_old is not None:
            report["explained_variance"] = explained_variance(
                batch.values_old, batch.returns, batch.mask
            )
        updates = [
            self.update(minibatch)
            for epoch in range(self.config.epochs)
            for minibatch in self.shuffled(batch, epoch)
        ]
        self.step += 1
        if self.step % self.config.sampler_refresh == 0:
            self.push_weights()
        return {"step": self.step, **report, **update_metrics(updates)}

    def collect(self) -> list[Rollout]:
        """This step's rollouts: `prompts` groups of `group_size` verified completions."""
        config = self.config
        problems = self.task.sample(self.seed("prompts"), config.prompts, config.levels)
        return collect_rollouts(
            self.engine,
            self.tokenizer,
            self.task,
            problems,
            config.group_size,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            seed=self.seed("rollouts"),
            version=self.behaviour_version,
            reward=self.reward,
        )

    def prepare(self, rollouts: list[Rollout]) -> Batch:
        """Rollouts as tensors with advantages (and, where used, values and reference log-probs)."""
        batch = collate(self.usable(rollouts)).to(self.config.device)
        if self.config.anchor == "recomputed":
            batch.logp_old = self.logprobs(self.model, batch)
        if self.reference is not None:
            batch.logp_ref = self.logprobs(self.reference, batch)
        rewards = self.token_rewards(batch)
        if self.method.needs_critic:
            batch.values_old = self.in_micro_batches(self.models["critic"], batch)
            batch.advantages, batch.returns = gae(
                rewards, batch.values_old, batch.mask, self.config.gamma, self.config.lam
            )
        else:
            batch.advantages = self.advantage(rewards.sum(1), batch.groups)
        return batch

    def usable(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Rollouts with a finite reward; the others are named and left out."""
        for rollout in rollouts:
            if not math.isfinite(rollout.reward):
                warnings.warn(
                    f"step {self.step + 1}: a rollout of {rollout.problem.id} is skipped, "
                    f"its reward is not finite: {rollout.rewards}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        finite = [r for r in rollouts if math.isfinite(r.reward)]
        if not finite:
            raise ValueError(f"step {self.step + 1}: no rollout has a finite reward")
        return finite

    def token_rewards(self, batch: Batch) -> Tensor:
        """(N, T): the verdict's reward on the last token, minus β·KL on each where configured."""
        position = batch.mask.cumsum(1)
        last = batch.mask & (position == position[:, -1:])
        rewards = batch.rewards[:, None] * last
        kl = self.method.kl
        if kl is not None and kl.where == "reward":
            drift = kl_estimate(batch.logp_old, batch.logp_ref, kl.kind)
            rewards = rewards - kl.beta * torch.where(batch.mask, drift, 0.0)
        return rewards

    def shuffled(self, batch: Batch, epoch: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed("shuffle", epoch))
        return minibatches(batch, self.config.minibatches, generator)

    def update(self, minibatch: Batch) -> dict[str, float]:
        """One policy update and, for critic methods, one critic update."""
        config = self.config
        limits = {
            "micro_batch_tokens": config.micro_batch_tokens,
            "max_grad_norm": config.max_grad_norm,
        }
        metrics = train_step(
            self.model,
            self.optimizers["model"],
            minibatch,
            self.method,
            temperature=config.temperature,
            **limits,
        )
        self.version += 1
        if self.method.needs_critic:
            metrics |= critic_step(
                self.models["critic"],
                self.optimizers["critic"],
                minibatch,
                clip=config.value_clip,
                **limits,
            )
        return metrics

    def push_weights(self) -> None:
        """Give the sampler the current weights."""
        if self.behaviour is not self.model:
            self.behaviour.load_state_dict(self.model.state_dict())
        self.behaviour_version = self.version

    def seed(self, *path: object) -> int:
        return derive_seed(self.config.seed, self.step, *path)

    def adamw(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.AdamW(
            model.parameters(), lr=lr, betas=config.betas, weight_decay=config.weight_decay
        )

    def logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        temperature = self.config.temperature
        return self.in_micro_batches(
            lambda ids, mask: logprobs(model, ids, mask, temperature), batch
        )

    @torch.no_grad()
    def in_micro_batches(self, compute: Callable[[Tensor, Tensor], Tensor], batch: Batch) -> Tensor:
        """(N, T) result of `compute(ids, mask)`, evaluated slice by slice."""
        result = torch.zeros_like(batch.logp_old)
        for rows in micro_batch_rows(batch, self.config.micro_batch_tokens):
            micro = batch.select(rows)
            result[rows, : micro.ids.shape[1]] = compute(micro.ids, micro.mask)
        return result

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint from which `Trainer.resume` continues bit for bit on one thread."""
        state = {
            "config": self.config.model_dump(),
            "version": self.version,
            "behaviour_version": self.behaviour_version,
            "advantage": getattr(self.advantage, "__dict__", {}),
        }
        return save_checkpoint(Path(folder), self.step, self.models, self.optimizers, state)

    @classmethod
    def resume(cls, folder: str | Path, method: Method | None = None, policy=None) -> "Trainer":
        """The trainer that `save` wrote to `folder` (the newest step of a run folder)."""
        config = TrainConfig(**read_state(Path(folder))["config"])
        trainer = cls(config, method, policy)
        state = load_checkpoint(Path(folder), trainer.models, trainer.optimizers)
        trainer.step, trainer.version = state["step"], state["version"]
        trainer.behaviour_version = state["behaviour_version"]
        vars(trainer.advantage).update(state["advantage"])
        return trainer


def find_method(name: str) -> Method:
    """The row of `METHODS` with this name; the error lists the names there are."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; choose from {', '.join(sorted(METHODS))}")
    return METHODS[name]


def frozen_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False).eval()
