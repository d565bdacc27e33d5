"""One optimizer update: the same function in a notebook and on a cluster."""

import math
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlbook.objectives import Loss, Method, Totals, policy_loss, topk_divergence, totals_of
from rlbook.objectives import value_loss as clipped_value_loss
from rlbook.policy import TokenStats, token_stats
from rlbook.training.batch import TrainBatch
from rlbook.training.config import OptimizerConfig
from rlbook.training.critic import Critic
from rlbook.training.metrics import step_metrics, step_sums
from rlbook.training.parallel import LOCAL, LocalProcess

__all__ = ["MasterAdamW", "adamw", "critic_step", "train_step"]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    method: Method,
    *,
    temperature: float = 1.0,
    micro_batch_tokens: int = 8192,
    max_grad_norm: float = 1.0,
    totals: Totals | None = None,
    parallel: LocalProcess = LOCAL,
) -> dict[str, float]:
    """One policy update on `batch`, accumulated over length-sorted micro-batches.

    The gradient is that of `policy_loss` on the whole batch, whatever the micro-batch size and
    however many processes share the work (`parallel`): every slice divides by the same `totals`.
    Returns the update's metrics (see `rlbook.training.metrics`). A non-finite gradient is
    named, counted in `skipped_updates`, and leaves weights and optimizer untouched.
    """
    totals = totals or totals_of(batch.mask, batch.groups)
    optimizer.zero_grad(set_to_none=True)
    parts = []
    for _, micro in parallel.micro_batches(batch, micro_batch_tokens):
        stats = parallel.call(
            token_stats,
            model,
            micro.ids,
            micro.mask,
            temperature,
            entropy_grad=method.entropy_bonus != 0,
            topk_ids=micro.topk_ids,
        )
        loss = batch_loss(method, stats, micro, totals)
        loss.loss.backward()
        parts.append(step_sums(loss, stats, micro))
    grad_norm, skipped = apply_gradients(model, optimizer, max_grad_norm)
    metrics = step_metrics(parallel.gather(parts))
    return metrics | {"grad_norm": grad_norm, "skipped_updates": skipped}


def critic_step(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    *,
    clip: float | None = 0.2,
    micro_batch_tokens: int = 8192,
    max_grad_norm: float = 1.0,
) -> dict[str, float]:
    """One update of the critic towards `batch.returns` with PPO's clipped value loss.

    Raises `ValueError` for a batch without values and returns.
    """
    totals = totals_of(batch.mask, batch.groups)
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for _, micro in LOCAL.micro_batches(batch, micro_batch_tokens):
        if micro.values_old is None or micro.returns is None:
            raise ValueError("the critic learns from values_old and returns; this batch has none")
        values = critic(micro.ids, micro.mask)
        loss = clipped_value_loss(values, micro.values_old, micro.returns, micro.mask, clip, totals)
        loss.backward()
        total += float(loss.detach())
    _, skipped = apply_gradients(critic, optimizer, max_grad_norm)
    return {"value_loss": total, "skipped_updates": skipped}


def adamw(
    model: nn.Module, settings: OptimizerConfig, lr: float | None = None, **options: bool
) -> torch.optim.AdamW:
    """The run's optimizer for a model, at `lr` or the policy's learning rate; fused by default.

    Parameters below float32 are trained through float32 copies (`MasterAdamW`).
    """
    low = any(p.requires_grad and p.dtype.itemsize < 4 for p in model.parameters())
    return (MasterAdamW if low else torch.optim.AdamW)(
        model.parameters(),
        lr=settings.lr if lr is None else lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        **(options or {"fused": True}),
    )


class MasterAdamW(torch.optim.AdamW):
    """AdamW on float32 copies ("master weights") of the parameters that learn.

    A bfloat16 number has 8 bits: an update below 1/512 of a weight would round to nothing, and so
    would a thousand of them. The copies add them up, and the parameters are the copies, rounded. A
    weight that somebody else has changed since is taken as it is.
    """

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        self.rounded = [p for p in parameters if p.requires_grad]
        masters = [p.detach().float().requires_grad_() for p in self.rounded]
        super().__init__(masters, **settings)

    @property
    def masters(self) -> list[Tensor]:
        """The float32 copies, in the order of the parameters that learn."""
        return [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the parameters' gradients."""
        for parameter in self.rounded:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody has one
        """Update the copies with the parameters' gradients, and round them into the parameters."""
        for parameter, master in zip(self.rounded, self.masters, strict=True):
            own = parameter == master.to(parameter.dtype)
            master.copy_(torch.where(own, master, parameter))
            master.grad = None if parameter.grad is None else parameter.grad.float()
        super().step()
        self._round()

    def state_dict(self) -> dict[str, Any]:
        """Moments and copies: from rounded weights a run would not go on as it was."""
        state = super().state_dict()
        for place, master in enumerate(self.masters):
            state["state"][place] = state["state"].get(place, {}) | {"master": master.detach()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        moments = {place: dict(entry) for place, entry in state_dict["state"].items()}
        for place, master in enumerate(self.masters):
            master.copy_(moments[place].pop("master"))
        moments = {place: entry for place, entry in moments.items() if entry}
        super().load_state_dict({**state_dict, "state": moments})
        self._round()

    def _round(self) -> None:
        for parameter, master in zip(self.rounded, self.masters, strict=True):
            parameter.copy_(master)
            master.grad = None


def warm_up(optimizer: torch.optim.Optimizer, lr: float, update: int, warmup: int) -> float:
    """Set and return the learning rate of an update: a linear rise over the first `warmup`."""
    rate = lr * min(1.0, (update + 1) / warmup) if warmup else lr
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float
) -> tuple[float, int]:
    """Clip and step; returns (norm before clipping, 1 if the update was skipped else 0).

    A non-finite gradient must be caught before clipping: clipping spreads it to every weight.
    The norm of sharded gradients is the same on every rank, so all of them skip or none.
    """
    norm = norm_of(p.grad for p in model.parameters() if p.grad is not None)
    if not math.isfinite(length := float(full_tensor(norm))):
        warnings.warn(f"update skipped: {describe_non_finite(model)}", RuntimeWarning, stacklevel=2)
        optimizer.zero_grad(set_to_none=True)
        return float("nan"), 1
    nn.utils.clip_grads_with_norm_(model.parameters(), max_grad_norm, norm)
    optimizer.step()
    return length, 0


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    """‖g‖ over all parameters, in float32 at least."""
    return nn.utils.get_total_norm([g if g.dtype.itemsize >= 4 else g.float() for g in gradients])


def describe_non_finite(model: nn.Module) -> str:
    """How many parameters have a non-finite gradient, and the first of them."""
    bad = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not torch.isfinite(full_tensor(norm_of([p.grad])))
    ]
    if not bad:
        return "the norm of the gradient overflows, though every parameter's own is finite"
    return f"non-finite gradient in {len(bad)} parameters, first {bad[0]}"


def full_tensor(tensor: Tensor) -> Tensor:
    """A sharded tensor (FSDP) gathered on every rank; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def batch_loss(method: Method, stats: TokenStats, batch: TrainBatch, totals: Totals) -> Loss:
    """`policy_loss` of a batch whose tokens have these log-probabilities now."""
    return policy_loss(
        method,
        stats.logp,
        batch.logp_old,
        batch.advantages,
        batch.mask,
        groups=batch.groups,
        totals=totals,
        logp_ref=batch.logp_ref,
        divergence=divergence_of(method, stats, batch),
        correction=batch.correction,
        selected=batch.selected,
        entropy=stats.entropy if method.entropy_bonus else None,
        imitated=batch.imitated,
    )


def divergence_of(
    method: Method, stats: TokenStats, batch: TrainBatch
) -> Float[Tensor, "N T"] | None:
    """D(π_old ‖ π_θ) over the listed tokens, where the method's trust region asks for it."""
    if batch.topk_logp_old is None or stats.topk is None:
        return None
    kind: Literal["tv", "kl"] = getattr(method.trust_region, "kind", "tv")
    return topk_divergence(stats.topk, batch.topk_logp_old, kind)
