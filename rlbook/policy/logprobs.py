"""Log-probabilities of given tokens under the policy, with gradient."""

from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.objectives import listed_logps, topk_tokens

CHUNK_ELEMENTS = 2**23  # logits held at once (32 MiB in float32) while the vocabulary is small
CHUNK_ROWS = 256  # fewer rows than this make the head's matrix products slow


class TokenStats(NamedTuple):
    """Per-token log-probability and entropy in nats, both (N, T), 0 where the mask is False.

    `topk` are the log-probabilities of further tokens, listed for each position.
    """

    logp: Float[Tensor, "N T"]
    entropy: Float[Tensor, "N T"]
    topk: Float[Tensor, "N T K"] | None = None


def logprobs(
    model: PreTrainedModel,
    ids: Int[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int | None = None,
) -> Float[Tensor, "N T"]:
    """log π(ids[n, t] | ids[n, :t]) where `mask` is True, 0 elsewhere; differentiable.

    π = softmax(logits / temperature). Sequences start at column 0 and are padded on the right, so
    causal attention alone keeps the padding out. Only masked positions pass the language-model
    head, `chunk` of them at a time (by default 256, more when the vocabulary is small). With
    `fp32_head` the head's product is computed in float32 whatever the model's dtype (ScaleRL,
    arXiv:2510.13786).
    Raises `ValueError` for mismatched shapes, a mask on column 0, or temperature ≤ 0.
    """
    hidden, targets = _before_each_target(model, ids, mask, temperature)
    hidden, head = _head_inputs(model, hidden, temperature, fp32_head)
    logp, _ = chunked_head(hidden, head, targets, chunk)
    return _scatter(logp, mask)


def token_stats(
    model: PreTrainedModel,
    ids: Int[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int | None = None,
    entropy_grad: bool = False,
    topk_ids: Int[Tensor, "N T K"] | None = None,
) -> TokenStats:
    """`logprobs` together with the entropy of each next-token distribution, H = -Σ_v π_v log π_v.

    The entropy carries a gradient only if `entropy_grad` asks for it (an entropy bonus). With
    `topk_ids` also the log-probabilities of those tokens, without gradient (see `topk_logprobs`).
    """
    hidden, targets = _before_each_target(model, ids, mask, temperature)
    hidden, head = _head_inputs(model, hidden, temperature, fp32_head)
    logp, entropy = chunked_head(hidden, head, targets, chunk, with_entropy=True)
    entropy = entropy if entropy_grad else entropy.detach()
    topk = None
    if topk_ids is not None:
        topk = _scatter(_listed_logprobs(hidden.detach(), head, topk_ids[mask], chunk), mask)
    return TokenStats(_scatter(logp, mask), _scatter(entropy, mask), topk)


@torch.no_grad()
def topk_logprobs(
    model: PreTrainedModel,
    ids: Int[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    k: int,
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int | None = None,
) -> tuple[Int[Tensor, "N T K"], Float[Tensor, "N T K"]]:
    """The `topk_tokens` before each masked position, and their log-probabilities."""
    hidden, targets = _before_each_target(model, ids, mask, temperature)
    hidden, head = _head_inputs(model, hidden, temperature, fp32_head)
    parts = []
    for rows in _slices(len(targets), chunk or _chunk_rows(head)):
        logp = (hidden[rows] @ head.T).log_softmax(-1)
        listed = topk_tokens(logp, targets[rows], k)
        parts.append((listed, listed_logps(logp, listed)))
    listed, logps = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return _scatter(listed, mask), _scatter(logps, mask)


@torch.no_grad()
def _listed_logprobs(
    hidden: Float[Tensor, "M D"],
    head: Float[Tensor, "V D"],
    listed: Int[Tensor, "M K"],
    chunk: int | None = None,
) -> Float[Tensor, "M K"]:
    """`listed_logps` under the model's own distribution, a slice of positions at a time."""
    parts = [
        listed_logps((hidden[rows] @ head.T).log_softmax(-1), listed[rows])
        for rows in _slices(len(listed), chunk or _chunk_rows(head))
    ]
    return torch.cat(parts)


def _chunk_rows(head: Float[Tensor, "V D"]) -> int:
    """Positions whose logits are held at once."""
    return max(CHUNK_ROWS, CHUNK_ELEMENTS // len(head))


def chunked_head(
    hidden: Float[Tensor, "M D"],
    head: Float[Tensor, "V D"],
    targets: Int[Tensor, " M"],
    chunk: int | None = None,
    with_entropy: bool = False,
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
    """Log-probability of each target and entropy; logits exist for `chunk` positions at a time.

    logp_m = z[y] - lse(z),  H_m = lse(z) - Σ_v π_v z_v,  z = W h_m.
    Without `with_entropy` the second result is 0.
    """
    return _ChunkedHead.apply(hidden, head, targets, chunk, with_entropy)


class _ChunkedHead(torch.autograd.Function):
    """Gradients from ∂logp/∂z = onehot(y) - π and ∂H/∂z = -π (log π + H), logits computed again.

    All chunks share one buffer and change it in place: fresh memory would cost as much as the
    arithmetic.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "M D"],
        head: Float[Tensor, "V D"],
        targets: Int[Tensor, " M"],
        chunk: int | None,
        with_entropy: bool,
    ) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
        chunk = chunk or _chunk_rows(head)
        buffer = _logits_buffer(hidden, head, chunk)
        lse, logp, entropy = buffer.new_zeros(3, len(targets))
        for rows in _slices(len(targets), chunk):
            z = _logits(hidden[rows], head, buffer)
            top = z.amax(-1)
            z.sub_(top[:, None])
            chosen = z.gather(-1, targets[rows, None]).squeeze(-1)
            shifted = z.clone() if with_entropy else None
            total = z.exp_().sum(-1)
            lse[rows], logp[rows] = top + total.log(), chosen - total.log()
            if shifted is not None:
                entropy[rows] = total.log() - z.mul_(shifted).sum(-1) / total
        ctx.save_for_backward(hidden, head, targets, lse, entropy)
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logp: Float[Tensor, " M"] | None, grad_entropy: Float[Tensor, " M"] | None
    ) -> tuple[Float[Tensor, "M D"], Float[Tensor, "V D"], None, None, None]:
        hidden, head, targets, lse, entropy = ctx.saved_tensors
        grad_hidden, grad_head = torch.zeros_like(hidden), torch.zeros_like(head)
        grad_logp = torch.zeros_like(lse) if grad_logp is None else grad_logp
        buffer = _logits_buffer(hidden, head, ctx.chunk)
        for rows in _slices(len(targets), ctx.chunk):
            log_pi = _logits(hidden[rows], head, buffer).sub_(lse[rows, None])
            weight = grad_logp[rows, None]
            if grad_entropy is not None:
                weight = weight + grad_entropy[rows, None] * (log_pi + entropy[rows, None])
            grad_z = log_pi.exp_().mul_(-weight)
            grad_z.scatter_add_(-1, targets[rows, None], grad_logp[rows, None])
            grad_z = grad_z.to(hidden.dtype)
            grad_hidden[rows] = grad_z @ head
            grad_head.addmm_(grad_z.T, hidden[rows])
        return grad_hidden, grad_head, None, None, None


def _logits_buffer(hidden: Tensor, head: Tensor, chunk: int) -> Float[Tensor, "chunk V"]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.new_empty(min(chunk, len(hidden)), len(head), dtype=dtype)


def _logits(hidden: Tensor, head: Tensor, buffer: Tensor) -> Tensor:
    """Logits of these rows, written into the buffer."""
    z = buffer[: len(hidden)]
    if z.dtype == hidden.dtype:
        return torch.mm(hidden, head.T, out=z)
    return z.copy_(hidden @ head.T)


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, total, size)]


def _before_each_target(
    model: PreTrainedModel, ids: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"], temperature: float
) -> tuple[Float[Tensor, "M D"], Int[Tensor, " M"]]:
    """Hidden state from which each masked token is predicted (M, D), and those tokens (M,)."""
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise ValueError(
            f"ids and mask must share one shape (N, T), got {tuple(ids.shape)} and "
            f"{tuple(mask.shape)}"
        )
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, got {mask.dtype}: use mask.bool()")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if mask[:, :1].any():
        raise ValueError("mask is True in column 0, but a sequence's first token has no context")
    require_plain_head(model)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden[:, :-1][mask[:, 1:]], ids[mask]


def _head_inputs(
    model: PreTrainedModel, hidden: Float[Tensor, "M D"], temperature: float, fp32_head: bool
) -> tuple[Float[Tensor, "M D"], Float[Tensor, "V D"]]:
    """Hidden states divided by the temperature, and the head's weight, in the head's dtype."""
    dtype = torch.promote_types(hidden.dtype, torch.float32) if fp32_head else hidden.dtype
    return hidden.to(dtype) / temperature, model.get_output_embeddings().weight.to(dtype)


def _scatter(
    values: Shaped[Tensor, "M ..."], mask: Bool[Tensor, "N T"]
) -> Shaped[Tensor, "N T ..."]:
    """Values at the masked positions, 0 elsewhere."""
    if values.ndim == 1:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)
    scattered = values.new_zeros(*mask.shape, *values.shape[1:])
    scattered[mask] = values
    return scattered


_plain_heads: WeakSet = WeakSet()


@torch.no_grad()
def require_plain_head(model: PreTrainedModel) -> None:
    """Check once per model that its logits are exactly head weight times last hidden state.

    Logit scaling, soft-capping or a bias would make every log-probability silently wrong.
    """
    if model in _plain_heads:
        return
    seen = []
    hook = model.base_model.register_forward_hook(lambda *call: seen.append(call[-1][0]))
    probe = torch.arange(1, 4, device=model.device)[None] % model.config.vocab_size
    try:
        logits = model(input_ids=probe, use_cache=False).logits
    finally:
        hook.remove()
    expected = seen[0] @ model.get_output_embeddings().weight.T
    if not torch.allclose(logits, expected.to(logits), rtol=1e-2, atol=1e-3):
        raise ValueError(
            f"{type(model).__name__} transforms its logits after the head (scaling, soft cap or "
            "bias), which rlbook.policy does not reproduce: choose a model without it"
        )
    _plain_heads.add(model)
