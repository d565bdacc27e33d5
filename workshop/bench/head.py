"""The chunked language-model head against the plain form: time, memory and gradients."""

from collections.abc import Callable
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rlbook.policy.logprobs import chunked_head
from workshop.bench.timing import alternate, spread

SHAPES = {
    "smoke": ((64, 1_000, 16),),
    "full": ((1024, 32_000, 128), (1024, 32_000, 576), (1024, 128_000, 128), (1024, 128_000, 576)),
}
REPEATS = {"smoke": 1, "full": 3}


def run(size: str) -> list[dict]:
    """One row per shape and form: positions, vocabulary, width of the hidden states.

    `peak_mib` is the most memory held beyond the inputs, less the two gradients returned at the
    end. Both forms need those; the plain form has its peak before they exist, so it is credited
    with too little and `memory_ratio` is an upper bound. The chunked form takes four matrix
    products, the plain one three: where they dominate (large widths) `time_ratio` nears 4/3.
    """
    return [row for shape in SHAPES[size] for row in _compare(*shape, REPEATS[size])]


def plain_head(
    hidden: Float[Tensor, "M D"], head: Float[Tensor, "V D"], targets: Int[Tensor, " M"]
) -> Float[Tensor, " M"]:
    """The textbook form, with all logits at once."""
    logp = (hidden @ head.T).float().log_softmax(-1)
    return logp.gather(-1, targets[:, None]).squeeze(-1)


def _compare(positions: int, vocabulary: int, width: int, repeats: int) -> list[dict]:
    torch.manual_seed(0)
    hidden = torch.randn(positions, width, requires_grad=True)
    head = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
    targets, upstream = torch.randint(vocabulary, (positions,)), torch.randn(positions)

    def gradients(form) -> tuple[Tensor, Tensor]:
        return torch.autograd.grad(form(hidden, head, targets), (hidden, head), upstream)

    forms = {"plain": plain_head, "chunked": lambda *inputs: chunked_head(*inputs)[0]}
    seconds = alternate({n: lambda f=f: gradients(f) for n, f in forms.items()}, repeats)
    reference, rows = gradients(plain_head), []
    for name, form in forms.items():
        result = gradients(form)
        peak = peak_memory(lambda f=form: gradients(f))
        returned = sum(g.numel() * g.element_size() for g in result)
        error = max(
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(result, reference, strict=True)
        )
        rows.append(
            {"positions": positions, "vocabulary": vocabulary, "width": width, "form": name}
            | spread(seconds[name])
            | {"peak_mib": (peak - returned) / 2**20, "gradient_error": error}
        )
    for row in rows:
        row["time_ratio"] = row["seconds"] / rows[0]["seconds"]
        row["memory_ratio"] = row["peak_mib"] / rows[0]["peak_mib"]
    return rows


def peak_memory(run: Callable[[], object]) -> int:
    """Most bytes the tensor library holds at once during `run`, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = run()
    del result
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes, initial=0))
