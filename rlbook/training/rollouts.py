"""From prompts to verified and rewarded rollouts, and to those that a method learns from."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.objectives import Method
from rlbook.policy import Completion, Sampler
from rlbook.tasks import Problem, Task, Verdict
from rlbook.training.batch import Rollout
from rlbook.training.config import RunConfig, derive_seed
from rlbook.training.metrics import differ, group_by
from rlbook.training.pool import prompt_pool
from rlbook.training.rewards import Reward, VerifierReward, give_rewards, reward_name

__all__ = ["Engine", "RolloutSource", "collect_rollouts", "select_groups"]

MAX_ROUNDS = 10  # of further prompts for a method that resamples
SILENT_STEPS = 5  # a run that stands still for so long stops


@runtime_checkable
class Engine(Protocol):
    """Anything that completes token prompts: the built-in sampler, or a vLLM server.

    One with weights of its own has a method `load_weights(model)` too; it is called with the
    policy to sample from.
    """

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
        ...


@dataclass(frozen=True)
class Written:
    """Rollouts as a policy wrote them, and its weights then, by their sums.

    Sums change whoever changes the weights; a tensor's version counter misses fused steps.
    """

    sums: list[float]
    rollouts: dict[int, tuple[Rollout, list[int], list[float]]]

    @classmethod
    def by(cls, model: nn.Module, rollouts: Sequence[Rollout]) -> "Written":
        """What the model, as it is, has written."""
        copies = {id(r): (r, list(r.token_ids), list(r.logps)) for r in rollouts}
        return cls(sums_of(model), copies)

    def still(self, model: nn.Module, rollouts: Sequence[Rollout]) -> bool:
        """Whether these are among them, unchanged, and so is the policy."""
        own = all((r, r.token_ids, r.logps) == self.rollouts.get(id(r)) for r in rollouts)
        return own and self.sums == sums_of(model)


def sums_of(model: nn.Module) -> list[float]:
    """The sum of every parameter, in float64."""
    return torch.stack([p.detach().double().sum() for p in model.parameters()]).tolist()


class RolloutSource:
    """Where the rollouts of a run come from: its problems, an engine, what an answer is worth.

    `weights` are those that sample and `version` the updates they had taken: the policy's own, or
    with `rollout.sync_every` above 1 a copy that stays behind until the next `sync`. An engine of
    one's own gets them through its `load_weights`.
    Raises `ValueError` for an engine that cannot report what the method compares.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        rewards: Sequence[Reward],
        policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
        engine: Engine | None = None,
    ):
        model, self.tokenizer = policy
        self.config, self.task, self.rewards = config, task, rewards
        self.method, self.version = config.resolved_method, 0
        if engine and "sampler's top-k" in self.method.requirements():
            raise ValueError(
                "top_k compares whole distributions, and an engine of one's own reports its "
                'sampled tokens only: set old_logprobs="recomputed"'
            )
        self.weights = frozen_copy(model) if config.rollout.sync_every > 1 else model
        self.engine = engine or Sampler(self.weights, self.tokenizer.eos_token_id)
        self.samples_itself = engine is None and self.weights is model
        self.written = Written.by(model, [])
        self.pool = prompt_pool(task, config)
        self.load_engine()

    def collect(self, step: int, seed: int | None = None) -> list[Rollout]:
        """`prompts` groups of rewarded rollouts for a step, or for a seed of one's own.

        A method that resamples draws further prompts until `prompts` groups pass its filter, in
        at most `MAX_ROUNDS` rounds; what it will not use is returned as well.
        """
        path = (self.config.seed, step) if seed is None else (seed,)
        again = self.method.prompt_filter and self.method.prompt_filter.resample
        rollouts: list[Rollout] = []
        for number in range(MAX_ROUNDS if again else 1):
            problems = self.problems(step, derive_seed(*path, "prompts", number))
            noise, first = derive_seed(*path, "rollouts", number), number * len(problems)
            rollouts += self.sample(problems, seed=noise, first_group=first)
            if len(select_groups(rollouts, self.method)) >= self.config.batch_size:
                break
        if "greedy" in self.method.requirements():
            self.add_greedy(rollouts)
        if self.pool is not None:
            self.pool.record(rollouts)
        self.written = Written.by(self.weights, rollouts)
        return rollouts

    def wrote(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether the policy, as it is, wrote these in the last `collect`: their log-probs are its
        own then."""
        return self.samples_itself and self.written.still(self.weights, rollouts)

    def problems(self, step: int, seed: int) -> list[Problem]:
        """Prompts of a step: the pool's next, or new ones from the task. (A curriculum may look at
        the step.)"""
        count, levels = self.config.rollout.prompts, self.config.data.levels
        return self.pool.draw(count) if self.pool else self.task.sample(seed, count, levels)

    def sample(
        self, problems: Sequence[Problem], n: int | None = None, **how: Any
    ) -> list[Rollout]:
        """`n` rewarded completions of each problem from the engine; see `collect_rollouts`."""
        rollout = self.config.rollout
        defaults: dict[str, Any] = {
            "max_new_tokens": rollout.max_new_tokens,
            "temperature": rollout.temperature,
            "version": self.version,
            "rewards": self.rewards,
        }
        n, how = n or rollout.group_size, defaults | how
        return collect_rollouts(self.engine, self.tokenizer, self.task, problems, n, **how)

    def add_greedy(self, rollouts: Sequence[Rollout]) -> None:
        """Write into every rollout what the greedy completion of its prompt earns (ReMax)."""
        problems = {r.group: r.problem for r in rollouts}
        greedy = self.sample(list(problems.values()), n=1, temperature=0)
        earned = dict(zip(problems, (r.reward for r in greedy), strict=True))
        for rollout in rollouts:
            rollout.greedy_reward = earned[rollout.group]

    def sync(self, model: PreTrainedModel, version: int) -> None:
        """Sample with the weights of the model from now on, which has taken `version` updates."""
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


def collect_rollouts(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    problems: Sequence[Problem],
    n: int,
    *,
    max_new_tokens: int = 80,
    temperature: float = 1.0,
    seed: int = 0,
    version: int = 0,
    first_group: int = 0,
    rewards: Sequence[Reward] = (VerifierReward(),),
) -> list[Rollout]:
    """`n` verified and rewarded completions of each problem; groups count from `first_group`.

    `version` is the number of updates the engine's weights have taken.
    """
    prompts = [encode(tokenizer, p) for p in problems]
    completions = engine.generate(
        prompts, n=n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    return judged(
        task, tokenizer, problems, prompts, completions, rewards, version, first_group=first_group
    )


def judged(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    completions: Sequence[Completion],
    rewards: Sequence[Reward],
    version: int = 0,
    *,
    first_group: int = 0,
) -> list[Rollout]:
    """From completions to rollouts: the verifier's word on each, then the rewards of them all.

    Every problem, with its `prompts` of token ids, has as many completions, adjacent. Groups count
    from `first_group`; for `version` see `make_rollout`.
    """
    each, rollouts = len(completions) // max(1, len(problems)), []
    for index, completion in enumerate(completions):
        place = index // each
        problem, text = problems[place], text_of(tokenizer, completion)
        verdict = task.verify(problem, text, completion.finish_reason == "stop")
        group = first_group + place
        rollouts.append(
            make_rollout(problem, group, prompts[place], completion, text, verdict, version)
        )
    give_rewards(rollouts, rewards)
    return rollouts


def make_rollout(
    problem: Problem,
    group: int,
    prompt_ids: list[int],
    completion: Completion,
    text: str,
    verdict: Verdict,
    version: int = 0,
) -> Rollout:
    """A completion with its provenance and the verifier's word on it.

    `version` wrote all of its tokens, if the completion does not say itself which weights did.
    """
    versions = completion.versions or [version] * len(completion.token_ids)
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
        forced=completion.forced,
        answer=verdict.answer,
    )


def labeller(task: Task) -> Callable[[Rollout], str] | None:
    """The task's own name for a kind of answer (`Task.label`), for a rollout; None without one."""
    label = getattr(task, "label", None)
    return label and (lambda r: label(r.problem, r.text, not r.truncated))


def select_groups(rollouts: Sequence[Rollout], method: Method) -> list[Rollout]:
    """The rollouts of the groups that pass the method's prompt filter; all of them without one.

    A group passes if its completions `differ` in what the filter names. Chapters 08 and 16.
    """
    if method.prompt_filter is None:
        return list(rollouts)
    by, groups = method.prompt_filter.by, group_by(rollouts, lambda r: r.group)
    passed = {group for group, members in groups.items() if differ(members, by)}
    return [r for r in rollouts if r.group in passed]


@dataclass
class Patience:
    """How long a run may go on without an update: a first step is a warning, the last an error."""

    method: Method
    reward: Reward
    silent: int = 0  # steps without an update, one after the other

    def note(self, rollouts: Sequence[Rollout], used: Sequence[Rollout]) -> None:
        """A step's rollouts, and those it learned from; `RuntimeError` if it has been too long."""
        self.silent = 0 if used else self.silent + 1
        if self.silent >= SILENT_STEPS:
            why = why_silent(rollouts, self.method, self.reward)
            raise RuntimeError(f"no update in {self.silent} steps: {why}")
        if self.silent == 1:
            why = why_silent(rollouts, self.method, self.reward)
            warnings.warn(f"no update in this step: {why}", RuntimeWarning, stacklevel=3)


def why_silent(rollouts: Sequence[Rollout], method: Method, reward: Reward) -> str:
    """Why the method's prompt filter leaves nothing of these rollouts, and what to do about it."""
    assert method.prompt_filter is not None
    by, name = method.prompt_filter.by, reward_name(reward)
    right, own = sum(r.correct for r in rollouts), not isinstance(reward, VerifierReward)
    found = (
        f"{right} of {len(rollouts)} answers are right and no prompt has both kinds"
        if by == "correct"
        else f"{name} gives all answers to a prompt the same"
    )
    fix = "choose other data.levels, or raise rollout.max_new_tokens or rollout.group_size"
    if by == "correct" and own:
        fix = f'let prompts be chosen by {name}: prompt_filter=PromptFilter(by="reward")'
    return f"the prompt filter of {method.name}, by {by}, leaves nothing to learn: {found}; {fix}"


def encode(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> list[int]:
    """Token ids of a problem's prompt.

    A problem with `meta["chat"]` becomes a user's message where the tokenizer has a chat template;
    every other prompt is taken as it is.
    """
    if not (problem.meta.get("chat") and getattr(tokenizer, "chat_template", None)):
        return cast(list[int], tokenizer(problem.prompt).input_ids)
    messages = [{"role": "user", "content": problem.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return cast(list[int], tokenizer(text, add_special_tokens=False).input_ids)


def text_of(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> str:
    """What the verifier reads: the completion without the EOS token that ended it."""
    finished = completion.finish_reason == "stop"
    return decode(tokenizer, completion.token_ids[: -1 if finished else None])


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return cast(str, tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model as it is now, for ever."""
    return cast(PreTrainedModel, copy.deepcopy(model).requires_grad_(False).eval())
