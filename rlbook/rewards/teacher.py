"""A teacher's opinion of every token: the dense reward of on-policy distillation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from rlbook.policy import logprobs
from rlbook.training.batch import Rollout, collate
from rlbook.training.parallel import LOCAL

__all__ = ["TeacherReward"]


@dataclass(frozen=True, eq=False)
class TeacherReward:
    """Per token r_t = log π_T(y_t | x, y_<t) − log π_θ(y_t | x, y_<t), in nats.

    Positive where the teacher finds a token likelier than the student who wrote it. The student's
    log-probs are the sampler's own. Over an answer the sum is one sample of −KL(π_θ ‖ π_T). Forced
    tokens earn nothing. Teacher and student need one vocabulary.
    `told` gives what the teacher reads in place of each prompt, as token ids: with feedback in it,
    or a right sibling, the policy teaches itself (the row sdpo).
    Sources: MiniLLM, arXiv:2306.08543; GKD, arXiv:2306.13649. Chapter 14. With `told`: SDPO,
    arXiv:2601.20802; SDFT, arXiv:2601.19897.
    """

    teacher: PreTrainedModel
    temperature: float = 1.0
    micro_batch_tokens: int = 8192
    told: Callable[[Sequence[Rollout]], list[list[int]]] | None = None

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        if self.told is not None:
            told = self.told(rollouts)
            rollouts = [replace(r, prompt_ids=p) for r, p in zip(rollouts, told, strict=True)]
        batch = collate(rollouts).to(self.teacher.device)
        (logp,) = LOCAL.over(
            logprobs, self.teacher, batch, self.micro_batch_tokens, self.temperature
        )
        gaps = torch.where(batch.mask, logp - batch.logp_sampler, 0.0)
        starts = [len(r.prompt_ids) for r in rollouts]
        return {
            "teacher": [
                row[start : start + r.length].tolist()
                for row, start, r in zip(gaps, starts, rollouts, strict=True)
            ]
        }
