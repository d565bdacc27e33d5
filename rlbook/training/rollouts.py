"""Where rollouts come from: a run's source of them, and the way from prompts to rewards."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Sampler, end_ids
from rlbook.policy.loading import frozen_copy
from rlbook.tasks import AnyTask, Environment, Problem
from rlbook.tasks.environment import final_verdict, sessions_of
from rlbook.tasks.registry import sampled
from rlbook.training.batch import Rollout
from rlbook.training.chat import Dialect
from rlbook.training.config import RunConfig, derive_seed
from rlbook.training.engine import Engine
from rlbook.training.episodes import Limits, dialogue, in_batches, written
from rlbook.training.filter import select_groups
from rlbook.training.judge import judged, rollouts_of, rollouts_of_turns, stop_of, take_verdict
from rlbook.training.pool import prompt_pool
from rlbook.training.rewards import Reward, VerifierReward, give_rewards

__all__ = ["RolloutSource", "Sampling", "collect_rollouts"]

MAX_ROUNDS = 10  # of further prompts for a method that resamples


class Sampling(TypedDict, total=False):
    """The options of `collect_rollouts`, for those who hand them on."""

    max_new_tokens: int
    max_turns: int
    turn_tokens: int | None
    temperature: float
    seed: int
    version: int
    first_group: int
    rewards: Sequence[Reward]
    chat: Mapping[str, Any] | None
    stop: Sequence[str] | None


def sampling_of(config: RunConfig) -> Sampling:
    """How a run asks its policy, in training and wherever it is measured."""
    rollout = config.rollout
    return {
        "max_new_tokens": rollout.max_new_tokens,
        "max_turns": rollout.max_turns,
        "turn_tokens": rollout.turn_tokens,
        "temperature": rollout.temperature,
        "stop": rollout.stop,
        "chat": config.model.chat,
    }


class RolloutSource:
    """Where the rollouts of a run come from: its problems, an engine, what an answer is worth.

    `weights` are those that sample and `version` their number: the policy's own, or
    with `rollout.sync_every` above 1 a copy that stays behind until the next `sync`. An engine of
    one's own gets them through its `load_weights`.
    Raises `ValueError` for an engine that cannot report what the method compares.
    """

    def __init__(
        self,
        config: RunConfig,
        task: AnyTask,
        rewards: Sequence[Reward],
        policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
        engine: Engine | None = None,
    ):
        model, self.tokenizer = policy
        self.config, self.task, self.rewards = config, task, rewards
        self.method, self.version = config.resolved_method, 0
        self.wanted = self.method.requirements()
        self.max_rounds = MAX_ROUNDS if self.method.resamples else 1
        if engine and "sampler's top-k" in self.wanted:
            raise ValueError(
                "top_k compares whole distributions, and an engine of one's own reports its "
                'sampled tokens only: set old_logprobs="recomputed"'
            )
        self.weights = frozen_copy(model) if config.rollout.sync_every > 1 else model
        stop = stop_of(self.tokenizer, task, config.rollout.stop)
        self.stop = stop.texts if stop else ()
        self.engine = engine or Sampler(self.weights, end_ids(model, self.tokenizer), stop)
        exact = model.dtype.itemsize >= 4  # below, sampler and trainer round differently
        itself = engine is None and self.weights is model and exact
        self.remembers = itself and "recomputed" in self.wanted  # to spare a second pass
        self.written: set[tuple[Any, ...]] = set()  # by the last `collect`
        self.wrote_with: list[float] = []
        self.pool = prompt_pool(task, config)
        self.load_engine()

    def collect(self, step: int, seed: int | None = None) -> list[Rollout]:
        """`prompts` groups of rewarded rollouts for a step, or for a seed of one's own.

        A method that resamples draws further prompts until `prompts` groups pass its filter, in
        at most `MAX_ROUNDS` rounds; what it will not use is returned as well.
        """
        path = (self.config.seed, step) if seed is None else (seed,)
        rollouts: list[Rollout] = []
        enough = self.config.batch_size
        for number in range(self.max_rounds):
            problems = self.problems(step, derive_seed(*path, "prompts", number))
            noise, first = derive_seed(*path, "rollouts", number), number * len(problems)
            rollouts += self.sample(problems, seed=noise, first_group=first)
            if self.max_rounds > 1 and len(select_groups(rollouts, self.method)) >= enough:
                break
        if "greedy" in self.wanted:
            self.add_greedy(rollouts)
        if self.pool is not None:
            self.pool.record(rollouts)
        if self.remembers:
            self.written, self.wrote_with = {tokens_of(r) for r in rollouts}, sums_of(self.weights)
        return rollouts

    def wrote(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether the policy, as it is, wrote these in the last `collect`: then their log-probs are
        its own. Asked for methods alone that compute log-probs again."""
        return (
            self.remembers
            and self.written.issuperset(tokens_of(r) for r in rollouts)
            and self.wrote_with == sums_of(self.weights)
        )

    def problems(self, step: int, seed: int) -> list[Problem]:
        """Prompts of a step: the pool's next, or new ones from the task. (A curriculum may look at
        the step.)"""
        count, levels = self.config.rollout.prompts, self.config.data.levels
        return self.pool.draw(count) if self.pool else sampled(self.task, seed, count, levels)

    def sample(
        self, problems: Sequence[Problem], n: int | None = None, **changes: Unpack[Sampling]
    ) -> list[Rollout]:
        """`n` rewarded completions of each problem from the engine, as the run asks for them but
        for these `changes`."""
        own = sampling_of(self.config)
        own |= {"version": self.version, "rewards": self.rewards, "stop": self.stop}
        n = n or self.config.rollout.group_size
        return collect_rollouts(
            self.engine, self.tokenizer, self.task, problems, n, **(own | changes)
        )

    def add_greedy(self, rollouts: Sequence[Rollout]) -> None:
        """Write into every rollout what the greedy completion of its prompt earns (ReMax)."""
        problems = {r.group: r.problem for r in rollouts}
        greedy = self.sample(list(problems.values()), n=1, temperature=0)
        earned = dict(zip(problems, (r.reward for r in greedy), strict=True))
        for rollout in rollouts:
            rollout.greedy_reward = earned[rollout.group]

    def sync(self, model: PreTrainedModel, version: int) -> None:
        """Sample with the weights of the model from now on, number `version`."""
        if self.weights is not model:
            self.weights.load_state_dict(model.state_dict())
        self.version = version
        self.load_engine()

    def load_engine(self) -> None:
        """Give an engine with weights of its own those it samples with."""
        if hasattr(self.engine, "load_weights"):
            self.engine.load_weights(self.weights)

    def state(self) -> dict[str, Any]:
        """What is not in weights, JSON-safe."""
        return {"behaviour_version": self.version, "pool": self.pool and self.pool.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state()`, the weights being loaded already."""
        self.version = state["behaviour_version"]
        if self.pool is not None:
            self.pool.load(state["pool"])
        self.load_engine()


def tokens_of(rollout: Rollout) -> tuple[Any, ...]:
    """What a policy read and wrote, and its log-probs: whoever edits a rollout changes this."""
    lists = rollout.prompt_ids, rollout.token_ids, rollout.logps, rollout.forced or ()
    return tuple(map(tuple, lists))


def sums_of(model: nn.Module) -> list[float]:
    """The sum of every parameter, in float64: whoever changes a weight changes this.

    A tensor's version counter misses fused steps.
    """
    return torch.stack([p.detach().sum(dtype=torch.float64) for p in model.parameters()]).tolist()


def collect_rollouts(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: AnyTask,
    problems: Sequence[Problem],
    n: int,
    *,
    max_new_tokens: int = 80,
    max_turns: int = 64,
    turn_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    version: int = 0,
    first_group: int = 0,
    rewards: Sequence[Reward] = (VerifierReward(),),
    chat: Mapping[str, Any] | None = None,
    stop: Sequence[str] | None = None,
) -> list[Rollout]:
    """`n` verified and rewarded completions of each problem; groups count from `first_group`.

    `chat` says how a prompt is put, as `model.chat` of a run (`rlbook.training.chat.Dialect`).
    `version` is the number of the engine's weights, which grows when they change. A completion ends
    with the first text of `stop`, by default the task's, whatever the engine wrote behind it. In an
    environment a completion is an episode: `max_new_tokens` bounds all of it, what the world says
    included.
    """
    if isinstance(task, Environment):
        limits = Limits(max_new_tokens, max_turns, turn_tokens)
        rollouts = played(
            engine,
            tokenizer,
            task,
            problems,
            n,
            limits,
            temperature=temperature,
            seed=seed,
            version=version,
            first_group=first_group,
            chat=chat,
        )
        give_rewards(rollouts, rewards)
        return rollouts
    dialect = Dialect(tokenizer, chat=chat or {})
    prompts = [dialect.prompt(problem) for problem in problems]
    completions = engine.generate(
        prompts, n=n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    rollouts = rollouts_of(
        tokenizer,
        problems,
        prompts,
        completions,
        n,
        version=version,
        first_group=first_group,
        engine=type(engine).__name__,
        stop=stop_of(tokenizer, task, stop),
    )
    return judged(rollouts, task, rewards)


def played(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    world: Environment,
    problems: Sequence[Problem],
    n: int,
    limits: Limits,
    *,
    temperature: float,
    seed: int,
    version: int = 0,
    first_group: int = 0,
    chat: Mapping[str, Any] | None = None,
) -> list[Rollout]:
    """`n` judged episodes of each problem, all of them played at once, not rewarded yet."""
    dialect = Dialect.of(tokenizer, world, chat)
    asked = [problem for problem in problems for _ in range(n)]
    luck = [derive_seed(seed, "world", number) for number in range(len(asked))]
    with sessions_of(world, zip(asked, luck, strict=True)) as sessions:
        episodes = [
            dialogue(problem, session, dialect, limits)
            for problem, session in zip(asked, sessions, strict=True)
        ]
        turns = written(in_batches(engine, temperature, seed), episodes)
        rollouts = rollouts_of_turns(
            tokenizer, world.name, problems, turns, n, version=version, first_group=first_group
        )
        for rollout, session in zip(rollouts, sessions, strict=True):
            take_verdict(rollout, final_verdict(session))
    return rollouts
