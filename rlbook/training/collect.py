"""From prompts to scored rollouts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlbook.objectives import Method, overlong_penalty
from rlbook.policy import Completion
from rlbook.tasks import Problem, Task, Verdict
from rlbook.training.batch import Rollout
from rlbook.training.config import TrainConfig
from rlbook.training.metrics import group_by
from rlbook.training.pool import PromptPool

MAX_ROUNDS = 10


class Engine(Protocol):
    """Anything that completes token prompts: the built-in sampler, or a vLLM server."""

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Completion]:
        """`n` completions per prompt, those of one prompt adjacent, in the order given."""


@dataclass(frozen=True)
class RewardScheme:
    """Rule-based reward: one value for a right answer, one for any other, a bonus for format."""

    right: float = 1.0
    wrong: float = 0.0
    format_bonus: float = 0.0

    def __call__(self, verdict: Verdict) -> dict[str, float]:
        """The reward's parts by name."""
        parts = {"answer": self.right if verdict.correct else self.wrong}
        if self.format_bonus:
            parts["format"] = self.format_bonus * verdict.format_ok
        return parts


def collect_rollouts(
    engine: Engine,
    tokenizer,
    task: Task,
    problems: Sequence[Problem],
    n: int,
    *,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    seed: int = 0,
    version: int = 0,
    first_group: int = 0,
    reward: Callable[[Verdict], dict[str, float]] = RewardScheme(),
) -> list[Rollout]:
    """`n` verified completions of each problem; groups are numbered from `first_group`.

    `version` is the number of updates the engine's weights have taken.
    """
    prompts = [encode(tokenizer, p) for p in problems]
    completions = engine.generate(
        prompts, n=n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    rollouts = []
    for index, completion in enumerate(completions):
        problem, text = problems[index // n], text_of(tokenizer, completion)
        verdict = task.verify(problem, text, completion.finish_reason == "stop")
        group, prompt = first_group + index // n, prompts[index // n]
        versions = [version] * len(completion.token_ids)
        rollouts.append(judged(problem, group, prompt, completion, versions, text, verdict, reward))
    return rollouts


def judged(
    problem: Problem,
    group: int,
    prompt_ids: list[int],
    completion: Completion,
    versions: list[int],
    text: str,
    verdict: Verdict,
    reward: Callable[[Verdict], dict[str, float]],
) -> Rollout:
    """A completion with its provenance, the verifier's word on it and what that is worth."""
    return Rollout(
        problem=problem,
        group=group,
        prompt_ids=prompt_ids,
        token_ids=completion.token_ids,
        logps=completion.logps,
        versions=versions,
        finish_reason=completion.finish_reason,
        text=text,
        correct=verdict.correct,
        format_ok=verdict.format_ok,
        rewards=reward(verdict),
    )


@dataclass(frozen=True)
class RolloutSource:
    """Where a training run's rollouts come from: prompts, engine, rewards, the prompt filter."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    task: Task
    method: Method
    config: TrainConfig
    pool: PromptPool | None = None

    def collect(self, seed: int, version: int) -> list[Rollout]:
        """`prompts` groups of `group_size` rollouts.

        A method that resamples groups without spread draws further prompts until `prompts` groups
        have spread, in at most `MAX_ROUNDS` rounds; what it will not use is returned as well.
        """
        size = self.config.prompts * self.config.group_size
        rollouts = self.sample(seed, version, 0)
        if self.method.prompt_filter == "resample_zero_variance":
            for round_ in range(1, MAX_ROUNDS):
                if len(with_spread(rollouts)) >= size:
                    break
                rollouts += self.sample(seed, version, round_)
        if self.pool is not None:
            self.pool.record(rollouts)
        return rollouts

    def sample(self, seed: int, version: int, round_: int) -> list[Rollout]:
        """One round of rollouts, shaped rewards included."""
        config = self.config
        rollouts = collect_rollouts(
            self.engine,
            self.tokenizer,
            self.task,
            self.problems(derive_seed(seed, "prompts", round_)),
            config.group_size,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            seed=derive_seed(seed, "rollouts", round_),
            version=version,
            first_group=round_ * config.prompts,
            reward=self.reward,
        )
        if self.method.reward_shaping == "overlong":
            penalize_length(rollouts, config.max_new_tokens, config.overlong_cache)
        return rollouts

    def problems(self, seed: int) -> list[Problem]:
        """The prompts of a round: the pool's next, or new ones from the task."""
        count, levels = self.config.prompts, self.config.levels
        return self.pool.draw(count) if self.pool else self.task.sample(seed, count, levels)

    @property
    def reward(self) -> RewardScheme:
        return reward_of(self.method, self.config.reward_format)

    def greedy_rewards(self, rollouts: Sequence[Rollout]) -> Tensor:
        """For every rollout the reward of the greedy completion of its prompt (ReMax)."""
        problems = {r.group: r.problem for r in rollouts}
        greedy = collect_rollouts(
            self.engine,
            self.tokenizer,
            self.task,
            list(problems.values()),
            1,
            max_new_tokens=self.config.max_new_tokens,
            temperature=0,
            reward=self.reward,
        )
        earned = dict(zip(problems, (r.reward for r in greedy), strict=True))
        return torch.tensor([earned[r.group] for r in rollouts])


def reward_of(method: Method, format_bonus: float = 0.0) -> RewardScheme:
    """The reward a method gives a right answer, any other, and the required format."""
    wrong, right = method.reward_values
    return RewardScheme(right, wrong, format_bonus)


def penalize_length(rollouts: Sequence[Rollout], limit: int, cache: int | None = None) -> None:
    """Add the soft overlong penalty of DAPO, by default over the last fifth of the limit."""
    lengths = torch.tensor([r.length for r in rollouts])
    penalty = overlong_penalty(lengths, limit, cache or max(1, limit // 5))
    for rollout, points in zip(rollouts, penalty.tolist(), strict=True):
        rollout.rewards["overlong"] = points


def with_spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of groups with right and wrong answers: those a group baseline can learn from.

    Correctness decides, not the shaped reward: a prompt that is always solved leaves even if a
    length penalty tells its completions apart. Source: arXiv:2503.14476, equation 11. Chapter 08.
    """
    groups = group_by(rollouts, lambda r: r.group)
    alive = {group for group, members in groups.items() if len({r.correct for r in members}) > 1}
    return [r for r in rollouts if r.group in alive]


def encode(tokenizer, problem: Problem) -> list[int]:
    """Token ids of a problem's prompt.

    A problem with `meta["chat"]` becomes a user's message where the tokenizer has a chat template;
    every other prompt is taken as it is.
    """
    if not (problem.meta.get("chat") and getattr(tokenizer, "chat_template", None)):
        return tokenizer(problem.prompt).input_ids
    messages = [{"role": "user", "content": problem.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


def text_of(tokenizer, completion: Completion) -> str:
    """What the verifier reads: the completion without the EOS token that ended it."""
    finished = completion.finish_reason == "stop"
    return decode(tokenizer, completion.token_ids[: -1 if finished else None])


def decode(tokenizer, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)


def derive_seed(seed: int, *path: object) -> int:
    """An independent stream for every (seed, path): nothing to save, nothing to restore."""
    return random.Random("/".join(map(str, (seed, *path)))).getrandbits(62)
