"""From prompts to scored rollouts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlbook.policy import Completion
from rlbook.tasks import Problem, Task, Verdict
from rlbook.training.rollouts import Rollout


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
    reward: RewardScheme = RewardScheme(),
) -> list[Rollout]:
    """`n` verified completions of each problem; `group` is the problem's position.

    `version` is the number of updates the engine's weights have taken.
    """
    prompts = [tokenizer(p.prompt).input_ids for p in problems]
    completions = engine.generate(
        prompts, n=n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    rollouts = []
    for index, completion in enumerate(completions):
        problem, finished = problems[index // n], completion.finish_reason == "stop"
        text = decode(tokenizer, completion.token_ids[: -1 if finished else None])
        verdict = task.verify(problem, text, finished)
        rollouts.append(
            Rollout(
                problem=problem,
                group=index // n,
                prompt_ids=prompts[index // n],
                token_ids=completion.token_ids,
                logps=completion.logps,
                versions=[version] * len(completion.token_ids),
                finish_reason=completion.finish_reason,
                text=text,
                correct=verdict.correct,
                format_ok=verdict.format_ok,
                rewards=reward(verdict),
            )
        )
    return rollouts


def decode(tokenizer, token_ids: list[int]) -> str:
    """Exact text of a completion: special tokens inside it stay visible to the verifier."""
    return tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)


def derive_seed(seed: int, *path: object) -> int:
    """An independent stream for every (seed, path): nothing to save, nothing to restore."""
    return random.Random("/".join(map(str, (seed, *path)))).getrandbits(62)
