"""The policy at the start of a run: every rank reads its own rows, none ever holds the rest."""

from pathlib import Path

import torch
from accelerate import init_empty_weights
from huggingface_hub import snapshot_download
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlbook.policy import load_policy
from rlbook.policy.loading import load_tokenizer, policy_source
from rlbook.scale.config import TrainConfig
from rlbook.scale.train.checkpoint import read_tensors, stored_shapes
from rlbook.scale.train.parallel import Ranks, ScoredPolicy, shard

READ = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")  # of a repository on the hub


def load_sharded(
    name: str, ranks: Ranks, config: TrainConfig, frozen: bool = False
) -> tuple[ScoredPolicy, PreTrainedTokenizerBase]:
    """A policy by name (see `load_policy`), float32, spread over the ranks; collective.

    Where a model's class names its weights otherwise than its files do (experts that are stored one
    by one, say), every rank loads the whole of it, as `load_policy` does, and keeps its part.
    """
    folder, tokenizer = policy_folder(name), load_tokenizer(name)
    model = empty_policy(folder).requires_grad_(not frozen)
    if not dict(model.named_parameters()).keys() <= stored_shapes(folder).keys():
        model = load_policy(name, device=str(ranks.device))[0].requires_grad_(not frozen)
        return shard(model, ranks.mesh, config), tokenizer
    scored = shard(model, ranks.mesh, config)
    materialise(model, ranks.device)
    read_tensors(dict(model.named_parameters()), folder, ranks)
    return scored, tokenizer


def policy_folder(name: str) -> Path:
    """The folder of a policy's files; those of a hub id are fetched once."""
    source = policy_source(name)
    if isinstance(source, Path):
        return source
    return Path(snapshot_download(source, allow_patterns=list(READ)))


def empty_policy(folder: Path) -> PreTrainedModel:
    """The architecture: parameters on the meta device, buffers (rotary frequencies) as they are."""
    with init_empty_weights(include_buffers=False):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def materialise(model: PreTrainedModel, device: torch.device) -> None:
    """Give a sharded model memory for its own rows, and keep its buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    model.tie_weights()
