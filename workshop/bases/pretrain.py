"""Make a tiny base model: supervised next-token prediction on the demonstrations of its world."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from rlbook.manifest import manifest, write_manifest
from rlbook.verbs import configured
from workshop.bases.demonstrated import WORLDS, World
from workshop.bases.model import EOS_ID, MAX_POSITIONS, PAD_ID, build_model, build_tokenizer


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of a base run; the defaults made the models in `data/tiny-<world>`.

    `out` and `steps` are the world's own if absent.
    `decay` is the last share of the steps, over which the learning rate falls to zero linearly;
    `stop_after` ends a run early with the full run's schedule (a prefix, for comparisons).
    """

    world: Literal["sums", "habits"] = "sums"
    out: Path | None = None
    seed: int = 0
    steps: int | None = None
    batch: int = 64
    micro_batches: int = 8
    lr: float = 2e-3
    warmup: int = 50
    decay: float = 0.4
    max_tokens: int = 144
    clip: float = 1.0
    threads: int = 1
    stop_after: int | None = None
    width: int = 128
    layers: int = 3

    def __post_init__(self) -> None:
        if self.total < 1 or not 1 <= self.micro_batches <= self.batch:
            raise ValueError("pretrain needs steps >= 1 and 1 <= micro_batches <= batch")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is a share of the steps in (0, 1], got {self.decay}")
        if not 16 <= self.max_tokens <= MAX_POSITIONS:
            raise ValueError(f"max_tokens must lie in 16..{MAX_POSITIONS}, got {self.max_tokens}")
        if self.width % 8 or min(self.width, self.layers) < 1:
            raise ValueError("four heads of even size: width must be a multiple of 8, layers >= 1")

    @property
    def folder(self) -> Path:
        """Where the model goes."""
        return self.out or WORLDS[self.world].folder

    @property
    def total(self) -> int:
        """Steps of the whole schedule."""
        return WORLDS[self.world].steps if self.steps is None else self.steps


Example = tuple[list[int], int]


def pretrain(
    config: PretrainConfig, on_step: Callable[[dict], None] | None = None
) -> LlamaForCausalLM:
    """Train a base model from scratch and save it as a Hugging Face folder in `config.folder`.

    `on_step` receives the metrics of each step: step, loss (nats per completion token), lr,
    seconds. On one thread of one machine the result depends on the config alone.
    """
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    world = WORLDS[config.world]
    model = build_model(world.vocabulary, config.width, config.layers).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    start, tokens = time.perf_counter(), 0
    examples = encoded_demonstrations(config.seed, config.max_tokens, world)
    for step in range(config.stop_after or config.total):
        batch = list(islice(examples, config.batch))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * learning_rate_factor(step, config)
        loss = _backward(model, batch, config.micro_batches)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()
        tokens += sum(len(ids) for ids, _ in batch)
        if on_step:
            seconds = time.perf_counter() - start
            lr = optimizer.param_groups[0]["lr"]
            on_step({"step": step + 1, "loss": loss, "lr": lr, "seconds": seconds})
    save_base(model, config, seconds=time.perf_counter() - start, tokens=tokens)
    return model.eval()


def encoded_demonstrations(
    seed: int, max_tokens: int, world: World = WORLDS["sums"]
) -> Iterator[Example]:
    """Token ids of prompt, completion and EOS, cut at `max_tokens`, and the prompt's length."""
    tokenizer = build_tokenizer(world.vocabulary)
    for demo in world.demonstrations(seed):
        prompt = tokenizer(demo.problem.prompt).input_ids
        completion = tokenizer(demo.completion, add_special_tokens=False).input_ids
        yield (prompt + completion + [EOS_ID])[:max_tokens], len(prompt)


def learning_rate_factor(step: int, config: PretrainConfig) -> float:
    """Linear warm-up, a plateau at 1, linear decay to 0 over the last `config.decay` share."""
    remaining = (config.total - step) / (config.decay * config.total)
    return min(1.0, (step + 1) / config.warmup, remaining)


def _backward(model: LlamaForCausalLM, batch: list[Example], parts: int) -> float:
    """Accumulate the gradient of the mean loss over the batch's completion tokens.

    Micro-batches are cut from the batch sorted by length: less padding, the same gradient.
    """
    batch = sorted(batch, key=lambda example: len(example[0]))
    total = sum(len(ids) - prompt for ids, prompt in batch)
    size, loss_sum = -(-len(batch) // parts), 0.0
    for i in range(0, len(batch), size):
        ids, targets = _tensors(batch[i : i + size])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / total
        loss.backward()
        loss_sum += loss.item()
    return loss_sum


def _tensors(examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Right-padded ids and next-token targets; -100 where no completion token is predicted."""
    width = max(len(ids) for ids, _ in examples)
    ids = torch.full((len(examples), width), PAD_ID)
    targets = torch.full((len(examples), width - 1), -100)
    for row, (tokens, prompt) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        targets[row, prompt - 1 : len(tokens) - 1] = ids[row, prompt : len(tokens)]
    return ids, targets


def save_base(model: LlamaForCausalLM, config: PretrainConfig, **facts) -> None:
    """Weights, tokenizer and a manifest of how they were made."""
    model.save_pretrained(config.folder)
    build_tokenizer(WORLDS[config.world].vocabulary).save_pretrained(config.folder)
    settings = json.loads(json.dumps(asdict(config), default=str))
    facts = manifest(command=command_of(config), pretrain=settings, **facts)
    write_manifest(config.folder / "manifest.json", facts)


def command_of(config: PretrainConfig) -> str:
    """The shell command that repeats a run."""
    changed = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if getattr(config, field.name) != field.default
    }
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())
    return f"python -m workshop.bases.pretrain {options}"


def print_progress(metrics: dict) -> None:
    """A line every 50 steps; an `on_step` for the shell."""
    if metrics["step"] % 50 == 0:
        line = "step {step:5d}  loss {loss:.4f}  lr {lr:.2e}  {seconds:6.0f} s"
        print(line.format(**metrics), flush=True)


def main() -> None:
    """`python -m workshop.bases.pretrain world=sums`."""
    pretrain(configured(PretrainConfig, sys.argv[1:]), print_progress)


if __name__ == "__main__":
    main()
