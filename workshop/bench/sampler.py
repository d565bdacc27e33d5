"""The built-in sampler against `model.generate` and against the machine's matrix products."""

from collections.abc import Callable
from statistics import median

import torch

from rlbook.policy import load_policy, sample
from rlbook.policy.decoding import left_pad
from rlbook.tasks import get_task
from workshop.bench.flops import forward_flops
from workshop.bench.timing import alternate, gemm_multiplication, spread

MAX_NEW_TOKENS, GROUP = 80, 8
BATCHES = {"smoke": (16,), "full": (32, 128, 512)}
REPEATS = {"smoke": 1, "full": 7}


def run(size: str) -> list[dict]:
    """One row per batch size and engine; useful tokens are those up to and including the EOS.

    `share_of_limit` is the time the counted operations would take at the rate of `torch.mm`,
    measured in the same turns, divided by the time taken.
    """
    model, tokenizer = load_policy("tiny")
    return [row for batch in BATCHES[size] for row in _compare(model, tokenizer, batch, size)]


def _compare(model, tokenizer, batch: int, size: str) -> list[dict]:
    prompts, eos = _prompts(tokenizer, batch), tokenizer.eos_token_id
    engines = {
        "generate": lambda: _generate(model, prompts, eos),
        "rlbook": lambda: _sample(model, prompts, eos),
    }
    gemm, gemm_flops = gemm_multiplication()
    seconds = alternate(engines | {"gemm": gemm}, REPEATS[size])
    rate = gemm_flops / median(seconds["gemm"])
    rows = []
    for name, engine in engines.items():
        lengths = engine()
        times = spread(seconds[name])
        ideal = _flops(model, prompts, lengths) / rate
        rows.append(
            {"batch": batch, "engine": name, "tokens": sum(lengths)}
            | times
            | {"tokens_per_second": sum(lengths) / times["seconds"]}
            | {"gemm_gflops": rate / 1e9, "share_of_limit": ideal / times["seconds"]}
        )
    for row in rows:
        row["speedup"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
    return rows


def _sample(model, prompts, eos) -> list[int]:
    return [len(c.token_ids) for c in sample(model, prompts, MAX_NEW_TOKENS, eos, seed=0)]


def _generate(model, prompts, eos) -> list[int]:
    """Completion lengths under the library's own sampling of the same distribution."""
    torch.manual_seed(0)
    ids, start = left_pad(prompts, model.device)
    present = torch.arange(ids.shape[1], device=ids.device) >= start[:, None]
    out = model.generate(
        input_ids=ids,
        attention_mask=present.long(),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=eos,
        pad_token_id=0,
    )[:, ids.shape[1] :]
    ended = out == eos
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, out.shape[1])
    return lengths.tolist()


def _flops(model, prompts, lengths) -> int:
    """Each different prompt once, every completion token once."""
    contexts = [t + 1 for prompt in set(map(tuple, prompts)) for t in range(len(prompt))]
    for prompt, length in zip(prompts, lengths, strict=True):
        contexts += range(len(prompt) + 1, len(prompt) + length)
    return forward_flops(model, contexts)


def workload(batch: int) -> tuple[Callable[[], object], int]:
    """Sampling of so many completions as a function, and the operations it needs."""
    model, tokenizer = load_policy("tiny")
    prompts, eos = _prompts(tokenizer, batch), tokenizer.eos_token_id
    lengths = _sample(model, prompts, eos)
    return lambda: _sample(model, prompts, eos), _flops(model, prompts, lengths)


def _prompts(tokenizer, batch: int) -> list[list[int]]:
    problems = get_task("sums").sample(seed=0, n=batch // GROUP)
    return [tokenizer(p.prompt)["input_ids"] for p in problems for _ in range(GROUP)]
