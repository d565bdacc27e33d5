"""How many of a step's tokens are distinct, and what computing each of them once saves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn

from rlbook.objectives import totals_of
from rlbook.policy import token_stats
from rlbook.policy.prefixes import why_whole
from rlbook.training import Rollout, TrainBatch, Trainer, micro_batch_rows
from rlbook.training.parallel import LOCAL
from rlbook.training.step import batch_loss
from workshop.bench.timing import alternate
from workshop.bench.workload import setting

STEPS = {"smoke": (0, 1), "full": (0, 10, 30, 60)}
REPEATS = {"smoke": 1, "full": 7}
COMPLETIONS = {"smoke": 32, "full": 128}


def run(size: str) -> list[dict]:
    """One row per step of a run: its tokens counted, and seconds of its forward and backward pass.

    `padded` are the tokens of rectangular slices, `real` those of the sequences, `distinct` the
    prefixes; `whole_seconds` computes all of them as the library does, `shared_seconds` each
    prefix once. `answers` are the token ids of those to the step's first prompt, a line each.
    """
    last = STEPS[size][-1]
    trainer = Trainer(setting("dapo", completions=COMPLETIONS[size], steps=last + 1).config)
    rows = []
    for step in range(last + 1):
        rollouts = trainer.collect()
        if step in STEPS[size]:
            rows.append({"step": step} | row_of(trainer, rollouts, REPEATS[size]))
        trainer.learn(rollouts)
    return rows


def row_of(trainer: Trainer, rollouts: Sequence[Rollout], repeats: int) -> dict:
    """Tokens and seconds of one step's batch."""
    batch, limit = trainer.learner.prepare(rollouts), trainer.config.optimizer.micro_batch_tokens
    runs = {
        "shared": lambda: gradient(trainer, batch),
        "whole": lambda: whole_gradient(trainer, batch),
    }
    seconds = {name: median(times) for name, times in alternate(runs, repeats).items()}
    group = [r.token_ids for r in rollouts if r.group == rollouts[0].group]
    return {
        "accuracy": sum(r.correct for r in rollouts) / len(rollouts),
        "padded": sum(batch.select(rows).ids.numel() for rows in micro_batch_rows(batch, limit)),
        "real": sum(len(r.prompt_ids) + r.length for r in rollouts),
        "distinct": len(prefixes(rollouts)),
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "prompt": len(rollouts[0].prompt_ids),
        "answers": "\n".join(" ".join(map(str, ids)) for ids in group),
    }


def prefixes(rollouts: Sequence[Rollout]) -> set[tuple[int, ...]]:
    """Every beginning of every sequence, once."""
    wholes = {tuple(r.prompt_ids + r.token_ids) for r in rollouts}
    return {whole[:end] for whole in wholes for end in range(1, len(whole) + 1)}


def gradient(trainer: Trainer, batch: TrainBatch) -> Tensor:
    """The gradient of the method's loss on a batch, as one vector, without the update."""
    config, totals = trainer.config, totals_of(batch.mask, batch.groups)
    limit, temperature = config.optimizer.micro_batch_tokens, config.rollout.temperature
    trainer.model.zero_grad()
    for _, micro in LOCAL.micro_batches(batch, limit):
        stats = token_stats(trainer.model, micro.ids, micro.mask, temperature)
        batch_loss(trainer.method, stats, micro, totals).loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def whole_gradient(trainer: Trainer, batch: TrainBatch) -> Tensor:
    """The same by the library's own forward pass of every row."""
    with whole_rows(trainer.model.get_decoder()):
        return gradient(trainer, batch)


@contextmanager
def whole_rows(body: nn.Module) -> Iterator[None]:
    """The library's own forward pass: a hook, even one that does nothing, asks for it."""
    hook = body.register_forward_hook(lambda *_: None)
    try:
        assert why_whole(body) is not None
        yield
    finally:
        hook.remove()
