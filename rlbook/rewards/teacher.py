"""A teacher's opinion of every token: the dense reward of on-policy distillation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rlbook.training.batch import Rollout, collate
from rlbook.training.forward import LOCAL

__all__ = ["TeacherReward"]


@dataclass(frozen=True, eq=False)
class TeacherReward:
    """Per token r_t = log π_T(y_t | x, y_<t) − log π_θ(y_t | x, y_<t), in nats.

    Positive where the teacher finds a token likelier than the student who wrote it. The student's
    log-probs are the sampler's own. Over an answer the sum is one sample of −KL(π_θ ‖ π_T). Forced
    tokens earn nothing. Teacher and student need one vocabulary.
    Sources: MiniLLM, arXiv:2306.08543; GKD, arXiv:2306.13649. Chapter 14.
    """

    teacher: PreTrainedModel
    temperature: float = 1.0
    micro_batch_tokens: int = 8192

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        batch = collate(rollouts).to(self.teacher.device)
        logp = LOCAL.logprobs(self.teacher, batch, self.temperature, self.micro_batch_tokens)
        gaps = torch.where(batch.mask, logp - batch.logp_sampler, 0.0)
        starts = [len(r.prompt_ids) for r in rollouts]
        return {
            "teacher": [
                row[start : start + r.length].tolist()
                for row, start, r in zip(gaps, starts, rollouts, strict=True)
            ]
        }
