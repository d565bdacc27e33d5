"""From prompts to verified and rewarded rollouts."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.tasks import Problem, Task, Verdict
from rlbook.training.batch import Rollout
from rlbook.training.metrics import group_by
from rlbook.training.rewards import Reward, VerifierReward, give_rewards


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
    rollouts = []
    for index, completion in enumerate(completions):
        problem, prompt = problems[index // n], prompts[index // n]
        text = text_of(tokenizer, completion)
        verdict = task.verify(problem, text, completion.finish_reason == "stop")
        versions, group = [version] * len(completion.token_ids), first_group + index // n
        rollouts.append(make_rollout(problem, group, prompt, completion, versions, text, verdict))
    give_rewards(rollouts, rewards)
    return rollouts


def make_rollout(
    problem: Problem,
    group: int,
    prompt_ids: list[int],
    completion: Completion,
    versions: list[int],
    text: str,
    verdict: Verdict,
) -> Rollout:
    """A completion with its provenance and the verifier's word on it."""
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


def with_spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of groups with right and wrong answers: those a group baseline can learn from.

    Correctness decides, not the shaped reward: a prompt that is always solved leaves even if a
    length penalty tells its completions apart. Source: arXiv:2503.14476, equation 11. Chapter 08.
    """
    groups = group_by(rollouts, lambda r: r.group)
    alive = {group for group, members in groups.items() if len({r.correct for r in members}) > 1}
    return [r for r in rollouts if r.group in alive]


def encode(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> list[int]:
    """Token ids of a problem's prompt.

    A problem with `meta["chat"]` becomes a user's message where the tokenizer has a chat template;
    every other prompt is taken as it is.
    """
    if not (problem.meta.get("chat") and getattr(tokenizer, "chat_template", None)):
        return tokenizer(problem.prompt).input_ids
    messages = [{"role": "user", "content": problem.prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


def text_of(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> str:
    """What the verifier reads: the completion without the EOS token that ended it."""
    finished = completion.finish_reason == "stop"
    return decode(tokenizer, completion.token_ids[: -1 if finished else None])


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return cast(str, tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


def derive_seed(seed: int, *path: object) -> int:
    """An independent stream for every (seed, path): nothing to save, nothing to restore."""
    return random.Random("/".join(map(str, (seed, *path)))).getrandbits(62)
