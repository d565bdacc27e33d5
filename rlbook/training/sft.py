"""Supervised fine-tuning: make given answers more likely."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import logprobs
from rlbook.tasks import Problem
from rlbook.training.batch import Rollout
from rlbook.training.chat import encode
from rlbook.training.config import OptimizerConfig
from rlbook.training.step import adamw

T = TypeVar("T")


class Answer(NamedTuple):
    """A completion of a prompt as token ids, the EOS included; a `Rollout` has the same fields."""

    prompt_ids: list[int]
    token_ids: list[int]


def written_answer(tokenizer: PreTrainedTokenizerBase, problem: Problem, text: str) -> Answer:
    """A text as a finished completion of a problem."""
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    return Answer(encode(tokenizer, problem), [*tokens, tokenizer.eos_token_id])


def sft(
    model: PreTrainedModel,
    answers: Sequence[Answer | Rollout],
    *,
    epochs: int = 1,
    batch: int = 64,
    lr: float = 3e-4,
    seed: int = 0,
) -> Iterator[float]:
    """Fine-tune `model` in place on answers; yields the loss of each update, in nats per token.

    loss = −Σ log π(y_t | x, y_<t) / number of answer tokens, over the answers of a batch. The
    prompts are context: no token of theirs is trained. Every epoch passes over all answers once,
    in an order that `seed` decides. Raises `ValueError` for no answers. Chapters 04 and 14.

        losses = list(sft(model, [r for r in rollouts if r.correct], epochs=2))
    """
    if not answers:
        raise ValueError("sft needs at least one answer")
    optimizer = adamw(model, OptimizerConfig(lr=lr), fused=False)
    for part in shuffled_batches(answers, batch, epochs, seed):
        ids, mask = padded(part, model.device)
        loss = -logprobs(model, ids, mask).sum() / mask.sum()
        yield descend(model, optimizer, loss)


def descend(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> float:
    """One update down the gradient of `loss`, its norm clipped at 1; returns the loss."""
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def padded(
    answers: Sequence[Answer | Rollout], device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """Prompts and completions as right-padded ids, and the mask of the completions' tokens."""
    width = max(len(a.prompt_ids) + len(a.token_ids) for a in answers)
    ids = torch.zeros(len(answers), width, dtype=torch.long)
    mask = torch.zeros(len(answers), width, dtype=torch.bool)
    for row, answer in enumerate(answers):
        start, stop = len(answer.prompt_ids), len(answer.prompt_ids) + len(answer.token_ids)
        ids[row, :stop] = torch.tensor([*answer.prompt_ids, *answer.token_ids])
        put_in = getattr(answer, "forced", None) or [False] * len(answer.token_ids)
        mask[row, start:stop] = ~torch.tensor(put_in, dtype=torch.bool)
    return ids.to(device), mask.to(device)


def shuffled_batches(items: Sequence[T], size: int, epochs: int, seed: int) -> Iterator[list[T]]:
    """Every item once an epoch, `size` at a time, in an order of its own each epoch."""
    rng = random.Random(f"batches {seed}")
    for _ in range(epochs):
        order = rng.sample(range(len(items)), len(items))
        for start in range(0, len(order), size):
            yield [items[i] for i in order[start : start + size]]
