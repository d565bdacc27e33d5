"""Chapter 06: the model of the book as it was before anything was learned."""

import torch
from transformers import AutoModelForCausalLM

from rlbook.training import Trainer


def untrained(base: Trainer) -> Trainer:
    """A trainer like `base` whose policy has the same architecture and random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(base.model.config).eval()
    return Trainer(base.config, (model, base.tokenizer))
