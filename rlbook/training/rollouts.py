"""From prompts to verified and rewarded rollouts, and to those that a method learns from."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypedDict

from transformers import PreTrainedTokenizerBase

from rlbook.tasks import AnyTask, Environment, Problem
from rlbook.training.batch import Rollout
from rlbook.training.chat import Dialect
from rlbook.training.config import derive_seed
from rlbook.training.engine import Engine
from rlbook.training.episodes import Limits, dialogue, in_batches, written
from rlbook.training.judge import judged, rollouts_of, rollouts_of_turns, stop_of, take_verdict
from rlbook.training.rewards import Reward, VerifierReward, give_rewards

__all__ = ["Sampling", "collect_rollouts"]


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
    `version` is the number of updates the engine's weights have taken. A completion ends with the
    first text of `stop`, by default the task's, whatever the engine wrote behind it. In an
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
    with ExitStack() as open_sessions:
        sessions = []
        for number, problem in enumerate(asked):
            sessions.append(world.begin(problem, derive_seed(seed, "world", number)))
            open_sessions.callback(sessions[-1].close)
        episodes = [
            dialogue(problem, session, dialect, limits)
            for problem, session in zip(asked, sessions, strict=True)
        ]
        turns = written(in_batches(engine, temperature, seed), episodes)
        rollouts = rollouts_of_turns(
            tokenizer, world.name, problems, turns, n, version=version, first_group=first_group
        )
        for rollout, session in zip(rollouts, sessions, strict=True):
            take_verdict(rollout, session.verdict())
    return rollouts
