"""The loop of `rlbook.training.loop` with what the chapters add: filters, a critic, a reference
model, stale samplers, evaluation and checkpoints."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives import estimator_state, load_estimator_state
from rlbook.policy import Sampler, load_policy
from rlbook.tasks import Problem, Task, get_task
from rlbook.training.batch import Batch, Collated, Rollout, minibatches
from rlbook.training.checkpoint import load_checkpoint, read_state, save_checkpoint
from rlbook.training.collect import Engine, collect_rollouts, derive_seed, labeller, with_spread
from rlbook.training.config import RunConfig
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.metrics import rollout_metrics, update_metrics
from rlbook.training.pool import prompt_pool
from rlbook.training.prepare import BatchBuilder
from rlbook.training.resume import check_same_run, described
from rlbook.training.rewards import Reward, get_reward, rewards_of
from rlbook.training.step import adamw, critic_step, train_step, warm_up

MAX_ROUNDS = 10  # of further prompts for a method that resamples groups without spread


class Trainer:
    """Trains a policy; iterate over it to get one dictionary of metrics per step.

    `policy` is a (model, tokenizer) pair instead of the one `config.model` names; `task`, `reward`
    and `engine` are objects instead of what the config names: a reward is a function of rollouts
    (`rlbook.training.Reward`), an engine samples instead of the built-in sampler and gets the
    weights through its `load_weights`. Every random draw derives from (seed, step), so a resumed
    run goes on exactly where the saved one would have.

        for metrics in Trainer(RunConfig(method="grpo")):
            print(metrics["step"], metrics["accuracy"])
    """

    def __init__(
        self,
        config: RunConfig,
        policy: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None,
        *,
        task: Task | None = None,
        reward: Reward | None = None,
        engine: Engine | None = None,
    ):
        self.config, self.method = config, config.resolved_method
        self.given = {"policy": policy, "task": task, "reward": reward, "engine": engine}
        self.task = task or get_task(config.data.task)
        if reward is None and config.data.reward:
            reward = get_reward(config.data.reward)
        self.rewards = rewards_of(self.method, config.rollout.max_new_tokens, reward)
        device = config.model.device
        self.model, self.tokenizer = policy or load_policy(config.model.policy, device=device)
        self.behaviour = frozen_copy(self.model) if config.rollout.sync_every > 1 else self.model
        if engine and self.method.needs_topk and self.method.old_logprobs == "sampler":
            raise ValueError(
                "top_k compares whole distributions, and an engine of one's own reports its "
                'sampled tokens only: set old_logprobs="recomputed"'
            )
        self.engine = engine or Sampler(self.behaviour, self.tokenizer.eos_token_id)
        self.pool = prompt_pool(self.task, config.data, config.seed)
        self.critic = Critic(self.model) if self.method.needs_critic else None
        self.reference = frozen_copy(self.model) if self.method.needs_reference else None
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "model": adamw(self.model, config.optimizer)
        }
        if self.critic is not None:
            self.optimizers["critic"] = adamw(self.critic, config.optimizer, config.critic.lr)
        self.builder = BatchBuilder(
            config, self.model, self.critic, self.reference, sampler=self.behaviour
        )
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
        """One step: sample, verify, update."""
        return self.learn(self.collect())

    def collect(self, seed: int | None = None) -> list[Rollout]:
        """`prompts` groups of rewarded rollouts for this step, or for a seed of one's own.

        A method that resamples groups without spread draws further prompts until `prompts` groups
        have spread, in at most `MAX_ROUNDS` rounds; what it will not use is returned as well.
        """
        path = (self.config.seed, self.step) if seed is None else (seed,)
        rounds = MAX_ROUNDS if self.method.prompt_filter == "resample_zero_variance" else 1
        rollouts: list[Rollout] = []
        for number in range(rounds):
            problems = self.problems(derive_seed(*path, "prompts", number))
            noise, first = derive_seed(*path, "rollouts", number), number * len(problems)
            rollouts += self.sample(problems, seed=noise, first_group=first)
            if len(with_spread(rollouts)) >= self.batch_size:
                break
        if self.pool is not None:
            self.pool.record(rollouts)
        return rollouts

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        """All updates on the rollouts of a step, which ends with them; returns its metrics."""
        metrics = rollout_metrics(rollouts, self.version, labeller(self.task))
        used = rollouts if self.method.prompt_filter == "none" else with_spread(rollouts)
        if used:
            metrics |= self.updates(self.prepare(used[: self.batch_size]))
        self.step += 1
        if self.step % self.config.rollout.sync_every == 0:
            self.sync()
        every = self.config.evaluation.every
        if every and self.step % every == 0:
            metrics["heldout"] = self.evaluate()["pass@1"]
        return {"step": self.step, **metrics}

    def prepare(self, rollouts: Sequence[Rollout]) -> Batch:
        """Rollouts as tensors with everything the method's loss needs."""
        greedy = self.greedy_rewards(rollouts) if self.method.needs_greedy else None
        return self.builder(rollouts, greedy)

    def updates(self, batch: Batch) -> dict[str, float]:
        """Every pass over a batch, minibatch by minibatch; returns the metrics of them all."""
        done = [
            self.update(part)
            for epoch in range(self.config.optimizer.epochs)
            for part in self.minibatches(batch, epoch)
        ]
        metrics = update_metrics(done)
        if batch.values_old is not None:
            rewards = batch.total_rewards[:, None].expand_as(batch.mask)
            explained = explained_variance(batch.values_old, rewards, batch.mask)
            metrics["explained_variance"] = explained
        return metrics

    def minibatches(self, batch: Batch, epoch: int = 0) -> Iterator[Batch]:
        """Minibatches of whole groups; fewer of them if a filter left too few groups."""
        count = min(self.config.optimizer.minibatches, len(batch.groups.unique()))
        return minibatches(batch, count, derive_seed(self.config.seed, self.step, "shuffle", epoch))

    def update(self, minibatch: Batch) -> dict[str, float]:
        """One policy update and, for critic methods, one critic update."""
        settings, critic = self.config.optimizer, self.config.critic
        limits = settings.model_dump(include={"micro_batch_tokens", "max_grad_norm"})
        optimizer, temperature = self.optimizers["model"], self.config.rollout.temperature
        warm_up(optimizer, settings.lr, self.version, settings.warmup)
        metrics = train_step(
            self.model, optimizer, minibatch, self.method, temperature=temperature, **limits
        )
        if self.critic is not None:
            optimizer, skipped = self.optimizers["critic"], metrics["skipped_updates"]
            warm_up(optimizer, critic.lr, self.version, settings.warmup)
            metrics |= critic_step(
                self.critic, optimizer, minibatch, clip=critic.value_clip, **limits
            )
            metrics["skipped_updates"] += skipped
        self.version += 1
        return metrics

    def sample(
        self, problems: Sequence[Problem], n: int | None = None, **how: Any
    ) -> list[Rollout]:
        """`n` rewarded completions of each problem from the engine; see `collect_rollouts`."""
        rollout = self.config.rollout
        defaults: dict[str, Any] = {
            "max_new_tokens": rollout.max_new_tokens,
            "temperature": rollout.temperature,
            "version": self.behaviour_version,
            "rewards": self.rewards,
        }
        return collect_rollouts(
            self.engine,
            self.tokenizer,
            self.task,
            problems,
            n or rollout.group_size,
            **defaults | how,
        )

    def problems(self, seed: int) -> list[Problem]:
        """A step's prompts: the pool's next, or new ones from the task."""
        count, levels = self.config.rollout.prompts, self.config.data.levels
        return self.pool.draw(count) if self.pool else self.task.sample(seed, count, levels)

    def greedy_rewards(self, rollouts: Sequence[Rollout]) -> Float[Tensor, " N"]:
        """For every rollout the reward of the greedy completion of its prompt (ReMax)."""
        problems = {r.group: r.problem for r in rollouts}
        greedy = self.sample(list(problems.values()), n=1, temperature=0)
        earned = dict(zip(problems, (r.reward for r in greedy), strict=True))
        return torch.tensor([earned[r.group] for r in rollouts])

    def logprobs(
        self, batch: Batch | Collated, model: nn.Module | None = None
    ) -> Float[Tensor, "N T"]:
        """log π(token) of a batch under the policy as it is now, or under another model."""
        return self.builder.logprobs(batch, model or self.model)

    def evaluate(self, **how: Any) -> dict[str, Any]:
        """Held-out pass@k of the policy as it is now; see `rlbook.evaluation.evaluate`."""
        from rlbook.evaluation import evaluate  # it samples with this package's `collect_rollouts`

        config = self.config
        settings = {
            "prompts": config.evaluation.prompts,
            "n": config.evaluation.samples,
            "levels": config.data.levels,
            "max_new_tokens": config.rollout.max_new_tokens,
            "temperature": config.rollout.temperature,
        }
        return evaluate((self.model, self.tokenizer), self.task, **settings | how)

    def sync(self) -> None:
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
        """Write a checkpoint from which `Trainer.resume` continues bit for bit on one thread.

        A step's folder is a Hugging Face model folder: `load_policy` takes it, or the run's.
        """
        state = {
            "config": self.config.to_dict(),
            "given": described(self.given),
            "step": self.step,
            "version": self.version,
            "behaviour_version": self.behaviour_version,
            "estimator": estimator_state(self.builder.estimator),
            "pool": self.pool and self.pool.state(),
        }
        policy = (self.model, self.tokenizer)
        return save_checkpoint(Path(folder), policy, self.others(), self.optimizers, state)

    def others(self) -> dict[str, nn.Module]:
        """Models of the run besides the policy that change while it goes on."""
        stale = self.behaviour if self.behaviour is not self.model else None
        models = {"critic": self.critic, "behaviour": stale}
        return {name: model for name, model in models.items() if model is not None}

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        config: RunConfig | None = None,
        policy: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None,
        **seams: Any,
    ) -> "Trainer":
        """The trainer that `save` wrote to `folder` (the newest step of a run folder).

        What was given as an object (`policy`, `task`, `reward`, `engine`) has to be given again.
        `config` may change what decides how long and where a run goes on (`RESUMABLE`). Raises
        `ValueError` naming every field that differs otherwise.
        """
        state = read_state(Path(folder))
        if "given" not in state:
            raise ValueError(
                f"{folder} is a full-scale run: go on with `rlbook scale {folder} --resume`"
            )
        saved = RunConfig(**state["config"])
        given = described({"policy": policy, **seams})
        check_same_run(saved, config or saved, state["given"], given)
        trainer = cls(config or saved, policy, **seams)
        load_checkpoint(Path(folder), trainer.model, trainer.others(), trainer.optimizers)
        trainer.step, trainer.version = state["step"], state["version"]
        trainer.behaviour_version = state["behaviour_version"]
        load_estimator_state(trainer.builder.estimator, state["estimator"])
        if trainer.pool is not None:
            trainer.pool.load(state["pool"])
        trainer.load_engine()
        return trainer

    @property
    def batch_size(self) -> int:
        """Rollouts trained per step."""
        return self.config.rollout.prompts * self.config.rollout.group_size


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).requires_grad_(False).eval()
