"""One optimizer step on the tiny model against the machine's matrix products."""

from collections.abc import Callable
from statistics import median

import torch

from rlbook.policy import load_policy, logprobs
from workshop.bench.flops import forward_flops
from workshop.bench.timing import alternate, gemm_multiplication, spread

TOKENS, PROMPT = 48, 12
ROWS = {"smoke": (4,), "full": (8, 32, 64, 128)}
REPEATS = {"smoke": 1, "full": 9}


def run(size: str) -> list[dict]:
    """Forward, backward and AdamW on `rows` sequences of 48 tokens, without padding.

    The backward pass counts twice the operations of the forward pass. Causal attention sees half
    of the square, and only completion tokens pass the head.
    """
    return [_measure(rows, REPEATS[size]) for rows in ROWS[size]]


def workload(rows: int) -> tuple[Callable[[], object], int]:
    """One optimizer step as a function, and the operations it needs."""
    torch.manual_seed(0)
    model, _ = load_policy("tiny")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (rows, TOKENS))
    mask = (torch.arange(TOKENS) >= PROMPT).expand(rows, -1)
    advantages = torch.randn(rows, 1)

    def step() -> None:
        logp = logprobs(model, ids, mask)
        (-(logp * advantages).sum() / mask.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    head = 2 * model.get_output_embeddings().weight.numel() * rows * PROMPT
    return step, 3 * (forward_flops(model, rows * list(range(1, TOKENS + 1))) - head)


def _measure(rows: int, repeats: int) -> dict:
    step, flops = workload(rows)
    gemm, gemm_flops = gemm_multiplication()
    seconds = alternate({"step": step, "gemm": gemm}, repeats)
    rate = gemm_flops / median(seconds["gemm"])
    times = spread(seconds["step"])
    return (
        {"rows": rows, "tokens": rows * TOKENS}
        | times
        | {"microseconds_per_token": 1e6 * times["seconds"] / (rows * TOKENS)}
        | {"gemm_gflops": rate / 1e9, "share_of_limit": flops / rate / times["seconds"]}
    )
