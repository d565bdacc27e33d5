"""From prompts to verified and rewarded rollouts, and to those that a method learns from."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rlbook.tasks import Problem, Task
from rlbook.training.batch import Rollout
from rlbook.training.chat import encode
from rlbook.training.engine import Engine
from rlbook.training.judge import judged, rollouts_of
from rlbook.training.rewards import Reward, VerifierReward

__all__ = ["collect_rollouts"]


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
    rollouts = rollouts_of(
        tokenizer,
        problems,
        prompts,
        completions,
        n,
        version=version,
        first_group=first_group,
        engine=type(engine).__name__,
    )
    return judged(rollouts, task, rewards)
