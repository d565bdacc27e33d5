"""The loss that a method minimises, and what it reports."""

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlbook.objectives.aggregation import Totals, aggregate
from rlbook.objectives.kl import KLPenalty, kl_estimate, kl_loss
from rlbook.objectives.method import Method
from rlbook.objectives.ratios import Tokens, token_ratio
from rlbook.objectives.shapes import check_tokens, expand_to_tokens, zero_masked
from rlbook.objectives.trust_regions import Surrogate, surrogate

__all__ = ["Loss", "imitation_weights", "policy_loss", "summarize"]


class Loss(NamedTuple):
    """`loss` to call backward on; `token_loss` (N, T), 0 outside the mask; `sums` for metrics."""

    loss: Float[Tensor, ""]
    token_loss: Float[Tensor, "N T"]
    sums: dict[str, Tensor]

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Detached scalars of this call alone; see `summarize` for several parts."""
        return summarize(self.sums)


def policy_loss(
    method: Method,
    logp: Float[Tensor, "N T"],
    logp_old: Float[Tensor, "N T"],
    advantages: Float[Tensor, "..."],
    mask: Bool[Tensor, "N T"],
    groups: Int[Tensor, " N"] | None = None,
    totals: Totals | None = None,
    logp_ref: Float[Tensor, "N T"] | None = None,
    divergence: Float[Tensor, "N T"] | None = None,
    correction: Float[Tensor, "N T"] | None = None,
    selected: Bool[Tensor, "N T"] | None = None,
    entropy: Float[Tensor, "N T"] | None = None,
    imitated: Float[Tensor, "N T"] | None = None,
) -> Loss:
    """The loss that a method minimises, for one batch or one slice of it.

    `advantages` (N,) or (N, T) are constants. Pass the `totals` of the whole update to let slices
    add up to it. `divergence` replaces the binary one of a `DivergenceMask`; `correction`, from
    `method.sampler_correction`, multiplies the surrogate, not the KL term.
    `selected` are the tokens that `method.selection` picked; `entropy`, with its gradient, is that
    of each token's distribution and serves `method.entropy_bonus`, as `imitated`, from
    `imitation_weights`, serves `method.likelihood`.
    Raises `ValueError` where a shape is wrong or the method needs an argument that is missing.
    """
    check_tokens(
        mask, logp=logp, logp_old=logp_old, logp_ref=logp_ref, divergence=divergence,
        correction=correction, selected=selected, entropy=entropy, imitated=imitated,
    )  # fmt: skip
    check_ready(method, correction, selected, entropy, imitated)
    advantages = expand_to_tokens(advantages, mask)
    tokens = Tokens.of(logp, logp_old, advantages, mask, method.ratio, divergence)
    (logp,) = zero_masked(mask, logp)
    learned = surrogate(method.trust_region, tokens, logp)
    if method.selection is not None and selected is not None:
        learned = method.selection.apply(learned, selected, logp, tokens.logp_old)
    token_loss = learned.loss
    if correction is not None:
        token_loss = token_loss * zero_masked(mask, correction.detach())[0]
    if method.kl is not None and method.kl.where == "loss":
        token_loss = token_loss + kl_term(method.kl, logp, logp_ref, tokens)
    if method.entropy_bonus and entropy is not None:
        token_loss = with_entropy_bonus(token_loss, entropy, mask, method.entropy_bonus)
    if method.likelihood and imitated is not None:
        token_loss = token_loss - method.likelihood * zero_masked(mask, imitated)[0] * logp
    loss = aggregate(token_loss, mask, method.aggregation, groups, method.constant, totals)
    token_loss = torch.where(mask, token_loss, 0.0)
    return Loss(loss, token_loss, loss_sums(tokens, learned))


def imitation_weights(right: Bool[Tensor, " N"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """Tokens of the batch over tokens of its right answers, on the latter; 0 on all others.

    A mean over all tokens weighted by this is the mean over those of right answers.
    """
    chosen = mask & right[:, None]
    return chosen * (mask.sum() / chosen.sum().clamp(min=1))


def with_entropy_bonus(
    token_loss: Float[Tensor, "N T"],
    entropy: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    bonus: float,
) -> Float[Tensor, "N T"]:
    """The loss of each token less `bonus` times the entropy of its distribution."""
    return token_loss - bonus * zero_masked(mask, entropy)[0]


def check_ready(
    method: Method,
    correction: Tensor | None,
    selected: Tensor | None,
    entropy: Tensor | None,
    imitated: Tensor | None,
) -> None:
    """Require what a row leaves to the run: its limit, correction, selection, entropies, rights."""
    if method.aggregation == "constant" and method.constant is None:
        raise ValueError(
            f"{method.name} divides by the run's generation limit: call "
            "method.resolved(max_new_tokens) first, or replace(method, constant=…)"
        )
    if method.sampler_correction is not None and correction is None:
        raise ValueError(
            f"{method.name} corrects its sampler: pass "
            "correction=method.sampler_correction(logp_old, logp_sampler, mask)"
        )
    if method.selection is not None and selected is None:
        raise ValueError(
            f"{method.name} selects tokens: pass "
            "selected=method.selection(logp_old, entropy, advantages, mask)"
        )
    if method.entropy_bonus and entropy is None:
        raise ValueError(
            f"{method.name} has an entropy bonus: pass entropy, as "
            "token_stats(..., entropy_grad=True) gives it"
        )
    if method.likelihood and imitated is None:
        raise ValueError(
            f"{method.name} imitates right answers: pass imitated=imitation_weights(right, mask)"
        )


def kl_term(
    kl: KLPenalty,
    logp: Float[Tensor, "N T"],
    logp_ref: Float[Tensor, "N T"] | None,
    tokens: Tokens,
) -> Float[Tensor, "N T"]:
    """β times the per-token KL loss; padding must already be 0 in `logp`."""
    if logp_ref is None:
        raise ValueError("this method has a KL term: pass logp_ref, or replace(method, kl=None)")
    (logp_ref,) = zero_masked(tokens.mask, logp_ref)
    ratio = token_ratio(logp, tokens.logp_old) if kl.gradient == "score" else None
    return kl.beta * kl_loss(logp, logp_ref, kl.kind, kl.gradient, ratio, kl.cap)


def loss_sums(tokens: Tokens, learned: Surrogate) -> dict[str, Tensor]:
    """Numerators, denominators and extremes from which `summarize` makes the metrics."""
    mask, ratio = tokens.mask, token_ratio(tokens.logp, tokens.logp_old)
    signal, drift = mask & (tokens.advantages != 0), kl_estimate(tokens.logp_old, tokens.logp, "k3")
    return {
        "tokens": mask.sum(),
        "signal_tokens": signal.sum(),
        "masked_tokens": (signal & ~learned.keep).sum(),
        "weight_sum": torch.where(mask, learned.weight, 0.0).sum(),
        "kl_sum": torch.where(mask, drift, 0.0).sum(),
        "ratio_min": torch.where(mask, ratio, torch.inf).min(),
        "ratio_max": torch.where(mask, ratio, -torch.inf).max(),
    }


def summarize(*parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Metrics of the micro-batches whose `Loss.sums` are given, as if they were one batch.

    clip_fraction   masked gradients / tokens with A ≠ 0 (a token with A = 0 has none to mask)
    mean_weight     mean coefficient of A·∇log π over trained tokens, masked ones counting as 0
    kl              k3 estimate of KL(π_old ‖ π_θ) per trained token, nats
    ratio_min/max   extremes of the token ratio π_θ/π_old, whatever ratio the method uses
    """
    total = {name: reduce(add, (part[name] for part in parts)) for name in parts[0]}
    tokens, signal = total["tokens"].clamp(min=1), total["signal_tokens"].clamp(min=1)
    return {
        "clip_fraction": total["masked_tokens"] / signal,
        "mean_weight": total["weight_sum"] / tokens,
        "kl": total["kl_sum"] / tokens,
        "ratio_min": torch.stack([part["ratio_min"] for part in parts]).min(),
        "ratio_max": torch.stack([part["ratio_max"] for part in parts]).max(),
    }
