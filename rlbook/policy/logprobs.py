"""Log-probabilities of given tokens under the policy, with gradient."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from rlbook.objectives import listed_logps, topk_tokens
from rlbook.policy.prefixes import last_states, take

__all__ = ["TokenStats", "logprobs", "token_stats", "topk_logprobs"]

CHUNK_ELEMENTS = 2**23  # logits held at once (32 MiB in float32) while the vocabulary is small
CHUNK_ROWS = 256  # fewer rows than this make the head's matrix products slow
CHUNK_ROWS_CUDA = 2048  # every chunk reads and writes the whole gradient of the head
PIECE = 8192  # tokens of the vocabulary whose float32 sums are made beside that gradient


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
    causal attention alone keeps the padding out; equal beginnings of rows are computed once where
    the model allows it (see `rlbook.policy.prefixes`). Only masked positions pass the
    language-model head, `chunk` of them at a time (by default as `chunk_rows` says). With
    `fp32_head` logits are float32 whatever the model's dtype (ScaleRL, arXiv:2510.13786).
    Raises `ValueError` for mismatched shapes, a mask on column 0, or temperature ≤ 0.
    """
    head, targets, which = _predictions(model, ids, mask, temperature, fp32_head)
    logp, _ = _ChunkedHead.apply(*head, targets, chunk, False)  # type: ignore[no-untyped-call]
    return _scatter(take(logp, which), mask)


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
    head, targets, which = _predictions(model, ids, mask, temperature, fp32_head)
    logp, entropy = _ChunkedHead.apply(*head, targets, chunk, True)  # type: ignore[no-untyped-call]
    entropy = entropy if entropy_grad else entropy.detach()
    topk = None
    if topk_ids is not None:
        each = head._replace(hidden=head.hidden[which])
        topk = _scatter(_listed_logprobs(each, topk_ids[mask], chunk), mask)
    return TokenStats(_scatter(take(logp, which), mask), _scatter(take(entropy, which), mask), topk)


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
    (head, targets, which), parts = _predictions(model, ids, mask, temperature, fp32_head), []
    for rows, logp in _distributions(head, chunk):
        listed = topk_tokens(logp, targets[rows], k)
        parts.append((listed, listed_logps(logp, listed)))
    listed, logps = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return _scatter(listed[which], mask), _scatter(logps[which], mask)


@torch.no_grad()
def _listed_logprobs(
    head: "_Head", listed: Int[Tensor, "M K"], chunk: int | None = None
) -> Float[Tensor, "M K"]:
    """`listed_logps` under the model's own distribution, a slice of positions at a time."""
    parts = [listed_logps(logp, listed[rows]) for rows, logp in _distributions(head, chunk)]
    return torch.cat(parts)


def chunk_rows(vocabulary: int, device: str = "cpu") -> int:
    """Positions whose logits are held at once, unless a caller says."""
    rows = CHUNK_ROWS_CUDA if device == "cuda" else CHUNK_ROWS
    return max(rows, CHUNK_ELEMENTS // vocabulary)


class _Head(NamedTuple):
    """z = hidden weightᵀ / temperature, with `fp32` summed and kept in float32.

    The sums are all that can be gained over operands which are rounded already. On a GPU tensor
    cores take them as they are; a float32 copy of the weight would go the slow way.
    """

    hidden: Float[Tensor, "M D"]
    weight: Float[Tensor, "V D"]
    temperature: float = 1.0
    fp32: bool = True
    compiled: bool = False  # what is done with the logits: fewer passes over them

    def slices(self, chunk: int | None) -> list[slice]:
        size = chunk or chunk_rows(len(self.weight), self.hidden.device.type)
        return [slice(start, start + size) for start in range(0, max(1, len(self.hidden)), size)]

    def buffer(self, chunk: int | None) -> Float[Tensor, "chunk V"]:
        """Memory for the logits of one slice."""
        rows = min(self.slices(chunk)[0].stop, len(self.hidden))  # the first is the largest
        dtype = torch.promote_types(self.hidden.dtype, torch.float32)
        return self.hidden.new_empty(rows, len(self.weight), dtype=dtype)

    def logits(self, rows: slice, buffer: Tensor) -> Float[Tensor, "rows V"]:
        """Logits of these rows, written into the buffer."""
        hidden = self.hidden[rows]
        z = buffer[: len(hidden)]
        if self.fp32 or z.dtype == hidden.dtype:
            product(hidden, self.weight.T, z)
        else:
            z.copy_(hidden @ self.weight.T)
        return z if self.temperature == 1 else z.div_(self.temperature)


def product(left: Float[Tensor, "A B"], right: Float[Tensor, "B C"], out: Tensor) -> Tensor:
    """left @ right, summed in the dtype of `out`, which is float32 or that of both.

    bfloat16 operands have exact products in float32, so that every device computes the same but
    for the order of its sums.
    """
    if left.is_cuda and left.dtype != out.dtype:
        return torch.mm(left, right, out_dtype=out.dtype, out=out)
    return torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)


def add_product(
    total: Float[Tensor, "A C"], left: Float[Tensor, "A B"], right: Float[Tensor, "B C"]
) -> None:
    """total += left @ right in the dtype of `total`; else piece by piece: a second one is large."""
    if total.is_cuda and _adds_to_float32():
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
        return
    for piece, factor in zip(total.split(PIECE), left.split(PIECE), strict=True):
        piece += product(factor, right, torch.empty_like(piece))


@cache
def _adds_to_float32() -> bool:
    """Whether a GPU adds products of bfloat16 to float32 sums: not every release of torch does."""
    one = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
    total = one.float()
    try:
        torch.addmm(total, one, one, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return True


def _distributions(
    head: _Head, chunk: int | None
) -> Iterator[tuple[slice, Float[Tensor, "rows V"]]]:
    """Rows, and the log-probabilities of all tokens there."""
    buffer = head.buffer(chunk)
    for rows in head.slices(chunk):
        yield rows, head.logits(rows, buffer).log_softmax(-1)


def chunked_head(
    hidden: Float[Tensor, "M D"],
    head: Float[Tensor, "V D"],
    targets: Int[Tensor, " M"],
    chunk: int | None = None,
    with_entropy: bool = False,
) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
    """Log-probability of each target and entropy; logits exist for `chunk` positions at a time.

    logp_m = z[y] - lse(z),  H_m = lse(z) - Σ_v π_v z_v,  z = W h_m, summed in float32 at least.
    Without `with_entropy` the second result is 0.
    """
    given = (*_Head(hidden, head), targets, chunk, with_entropy)
    return cast(tuple[Tensor, Tensor], _ChunkedHead.apply(*given))  # type: ignore[no-untyped-call]


class _ChunkedHead(torch.autograd.Function):
    """Gradients from ∂logp/∂z = onehot(y) - π and ∂H/∂z = -π (log π + H), logits computed again.

    All chunks share one buffer and change it in place: fresh memory would cost as much as the
    arithmetic. Both products of the backward pass take operands in the model's dtype, as those of
    any other layer do; the weight's gradient is summed over chunks in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "M D"],
        weight: Float[Tensor, "V D"],
        temperature: float,
        fp32: bool,
        compiled: bool,
        targets: Int[Tensor, " M"],
        chunk: int | None,
        with_entropy: bool,
    ) -> tuple[Float[Tensor, " M"], Float[Tensor, " M"]]:
        head = _Head(hidden, weight, temperature, fp32, compiled)
        buffer = head.buffer(chunk)
        lse, logp, entropy = buffer.new_zeros(3, len(targets))
        for rows in head.slices(chunk):
            z = head.logits(rows, buffer)
            found = compiled_or_not(_reduced, compiled)(z, targets[rows, None], with_entropy)
            lse[rows], logp[rows], entropy[rows] = found
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.chunk, ctx.how = chunk, (temperature, fp32, compiled)
        ctx.head_learns = weight.requires_grad
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logp: Float[Tensor, " M"] | None, grad_entropy: Float[Tensor, " M"] | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        head = _Head(hidden, weight, *ctx.how)
        buffer = head.buffer(ctx.chunk)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=buffer.dtype) if ctx.head_learns else None
        grad_logp = torch.zeros_like(lse) if grad_logp is None else grad_logp
        per_row = (targets, lse, entropy, grad_logp, grad_entropy)
        for rows in head.slices(ctx.chunk):
            own = (None if one is None else one[rows, None] for one in per_row)
            slope = compiled_or_not(_slope, head.compiled)
            grad_z = slope(head.logits(rows, buffer), *own, head.temperature).to(hidden.dtype)
            grad_hidden[rows] = grad_z @ weight
            if grad_weight is None:
                continue
            if grad_z.dtype == grad_weight.dtype:
                grad_weight.addmm_(grad_z.T, hidden[rows])
            else:
                add_product(grad_weight, grad_z.T, hidden[rows])
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, *[None] * 6


def _reduced(z: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """lse(z), log π of the targets (rows, 1), and H or 0, from logits that are overwritten."""
    top = z.amax(-1)
    z.sub_(top[:, None])
    chosen = z.gather(-1, targets).squeeze(-1)
    shifted = z.clone() if with_entropy else None
    total = z.exp_().sum(-1)
    log_total = total.log()
    entropy = torch.zeros_like(total)
    if shifted is not None:
        entropy = log_total - z.mul_(shifted).sum(-1) / total
    return top + log_total, chosen - log_total, entropy


def _slope(
    z: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """∂/∂z before the temperature, in the memory of the logits; all else is (rows, 1)."""
    log_pi, scale = z.sub_(lse), grad_logp
    if grad_entropy is not None:
        scale = scale + grad_entropy * (log_pi + entropy)
    grad_z = log_pi.exp_().mul_(-scale)
    grad_z.scatter_add_(-1, targets, grad_logp)
    return grad_z if temperature == 1 else grad_z.div_(temperature)


@cache
def compiled_or_not(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    """A function that overwrites its first argument, or the same compiled, which need not do so."""
    if not compiled:
        return function
    return torch.compile(lambda first, *others: function(first.clone(), *others), dynamic=True)


def _predictions(
    model: PreTrainedModel,
    ids: Int[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    temperature: float,
    fp32_head: bool,
) -> tuple[_Head, Int[Tensor, " U"], Int[Tensor, " M"]]:
    """The head over states from which masked tokens are predicted, those tokens, and whose each is.

    Equal tokens after one state are one prediction; `which` (M,) names that of each masked token.
    """
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
    hidden, node = last_states(model.base_model, ids, mask)
    choices = int(ids.max()) + 1
    pair = node[:, :-1][mask[:, 1:]] * choices + ids[mask]
    predicted, which = pair.unique(return_inverse=True)
    head = _head_of(model, take(hidden, predicted // choices), temperature, fp32_head)
    return head, predicted % choices, which


def _head_of(
    model: PreTrainedModel, hidden: Float[Tensor, "M D"], temperature: float, fp32_head: bool
) -> _Head:
    """The model's head over these states; a temperature divides what is float32 already."""
    weight, compiled = model.get_output_embeddings().weight, getattr(model, "compiled_head", False)
    if fp32_head and hidden.dtype == weight.dtype and hidden.dtype.itemsize < 4:
        return _Head(hidden, weight, temperature, compiled=compiled)
    dtype = torch.promote_types(hidden.dtype, torch.float32) if fp32_head else hidden.dtype
    scaled = hidden.to(dtype) / temperature
    return _Head(scaled, weight.to(dtype), fp32=fp32_head, compiled=compiled)


def _scatter(
    values: Shaped[Tensor, "M ..."], mask: Bool[Tensor, "N T"]
) -> Shaped[Tensor, "N T ..."]:
    """Values at the masked positions, 0 elsewhere."""
    if values.ndim == 1:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)
    scattered = values.new_zeros(*mask.shape, *values.shape[1:])
    scattered[mask] = values
    return scattered


_plain_heads: WeakSet[PreTrainedModel] = WeakSet()


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
