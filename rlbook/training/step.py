"""One optimizer update: the same function in a notebook and on a cluster."""

import warnings

import torch
from torch import Tensor, nn

from rlbook.objectives import Method, Totals, policy_loss, totals_of, value_loss
from rlbook.policy import token_stats
from rlbook.training.critic import Critic
from rlbook.training.rollouts import Batch, micro_batch_rows


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    method: Method,
    *,
    temperature: float = 1.0,
    micro_batch_tokens: int = 8192,
    max_grad_norm: float = 1.0,
    totals: Totals | None = None,
) -> dict[str, float]:
    """One policy update on `batch`, accumulated over length-sorted micro-batches.

    The gradient is that of `policy_loss` on the whole batch, whatever the micro-batch size:
    every slice divides by the same `totals` (pass global ones to sum over ranks as well).
    Returns the update's metrics (see `rlbook.training.metrics`). A non-finite gradient is
    named, counted in `skipped_updates`, and leaves weights and optimizer untouched.
    """
    totals = totals or totals_of(batch.mask, batch.groups)
    optimizer.zero_grad(set_to_none=True)
    logp, entropy = torch.zeros_like(batch.logp_old), torch.zeros_like(batch.logp_old)
    for rows in micro_batch_rows(batch, micro_batch_tokens):
        micro = batch.select(rows)
        stats = token_stats(model, micro.ids, micro.mask, temperature)
        _policy_loss(method, stats.logp, micro, totals).loss.backward()
        columns = slice(0, micro.ids.shape[1])
        logp[rows, columns], entropy[rows, columns] = stats.logp.detach(), stats.entropy.detach()
    grad_norm, skipped = apply_gradients(model, optimizer, max_grad_norm)
    loss = _policy_loss(method, logp, batch, totals)
    return {
        "loss": float(loss.loss.detach()),
        "entropy": float(entropy[batch.mask].mean()),
        "grad_norm": grad_norm,
        "skipped_updates": skipped,
        **{name: float(value) for name, value in loss.metrics.items()},
    }


def critic_step(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    clip: float | None = 0.2,
    micro_batch_tokens: int = 8192,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """One update of the critic towards `batch.returns` with PPO's clipped value loss."""
    totals = totals_of(batch.mask, batch.groups)
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for rows in micro_batch_rows(batch, micro_batch_tokens):
        micro = batch.select(rows)
        values = critic(micro.ids, micro.mask)
        loss = value_loss(values, micro.values_old, micro.returns, micro.mask, clip, totals)
        loss.backward()
        total += float(loss.detach())
    _, skipped = apply_gradients(critic, optimizer, max_grad_norm)
    return {"value_loss": total, "skipped_updates": skipped}


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float
) -> tuple[float, int]:
    """Clip and step; returns (norm before clipping, 1 if the update was skipped else 0).

    A non-finite gradient must be caught before clipping: clipping spreads it to every weight.
    """
    bad = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not torch.isfinite(p.grad).all()
    ]
    if bad:
        warnings.warn(
            f"update skipped: non-finite gradient in {len(bad)} parameters, first {bad[0]}",
            RuntimeWarning,
            stacklevel=2,
        )
        optimizer.zero_grad(set_to_none=True)
        return float("nan"), 1
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return float(norm), 0


def _policy_loss(method: Method, logp: Tensor, batch: Batch, totals: Totals):
    return policy_loss(
        method,
        logp,
        batch.logp_old,
        batch.advantages,
        batch.mask,
        groups=batch.groups,
        totals=totals,
        logp_ref=batch.logp_ref,
    )
