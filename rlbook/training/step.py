"""One optimizer update: the same function in a notebook and on a cluster."""

import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlbook.objectives import Method, Totals, policy_loss, totals_of, value_loss
from rlbook.policy import TokenStats, token_stats
from rlbook.training.batch import Batch, micro_batch_rows
from rlbook.training.critic import Critic
from rlbook.training.metrics import step_metrics, step_sums


class SingleProcess:
    """Where a step runs: here, all of it. `rlbook.scale.parallel.Ranks` shares it out."""

    def slices(self, batch: Batch, max_tokens: int) -> Iterator[Batch]:
        """The micro-batches that this process runs."""
        for rows in micro_batch_rows(batch, max_tokens):
            yield batch.select(rows)

    def token_stats(self, model: nn.Module, micro: Batch, temperature: float) -> TokenStats:
        """Log-probabilities and entropies of a micro-batch's trained tokens, with gradient."""
        return token_stats(model, micro.ids, micro.mask, temperature)

    def gather(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The `step_sums` of every process's micro-batches, from those of this one."""
        return parts


HERE = SingleProcess()


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
    where: SingleProcess = HERE,
) -> dict[str, float]:
    """One policy update on `batch`, accumulated over length-sorted micro-batches.

    The gradient is that of `policy_loss` on the whole batch, whatever the micro-batch size and
    however many processes share the work (`where`): every slice divides by the same `totals`.
    Returns the update's metrics (see `rlbook.training.metrics`). A non-finite gradient is
    named, counted in `skipped_updates`, and leaves weights and optimizer untouched.
    """
    totals = totals or totals_of(batch.mask, batch.groups)
    optimizer.zero_grad(set_to_none=True)
    parts = []
    for micro in where.slices(batch, micro_batch_tokens):
        stats = where.token_stats(model, micro, temperature)
        loss = _policy_loss(method, stats.logp, micro, totals)
        loss.loss.backward()
        parts.append(step_sums(loss, stats, micro))
    grad_norm, skipped = apply_gradients(model, optimizer, max_grad_norm)
    metrics = step_metrics(where.gather(parts))
    return metrics | {"grad_norm": grad_norm, "skipped_updates": skipped}


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
    The norm of sharded gradients is the same on every rank, so all of them skip or none.
    """
    norm = norm_of(p.grad for p in model.parameters() if p.grad is not None)
    if not torch.isfinite(whole(norm)):
        warnings.warn(f"update skipped: {describe_non_finite(model)}", RuntimeWarning, stacklevel=2)
        optimizer.zero_grad(set_to_none=True)
        return float("nan"), 1
    nn.utils.clip_grads_with_norm_(model.parameters(), max_grad_norm, norm)
    optimizer.step()
    return float(whole(norm)), 0


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    return nn.utils.get_total_norm(list(gradients))


def describe_non_finite(model: nn.Module) -> str:
    """How many parameters have a non-finite gradient, and the first of them."""
    bad = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not torch.isfinite(whole(norm_of([p.grad])))
    ]
    if not bad:
        return "the norm of the gradient overflows, though every parameter's own is finite"
    return f"non-finite gradient in {len(bad)} parameters, first {bad[0]}"


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor (FSDP) gathered on every rank; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
        correction=batch.correction,
    )
