"""Chapter 18: what the plan says, of eight GPUs in two ways and of 7B with and without LoRA."""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from rlbook.paths import ROOT
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.dry_run import measure_prompts, measure_shape
from rlbook.scale.plan.budget import GB, Budget, Prompts
from rlbook.scale.plan.choose import USUAL, chosen
from rlbook.scaling.simulator import PipelineRun, generate_then_update, pipeline_rl, simulate, split
from rlbook.training.config import with_settings

GSM8K = Prompts(110, 350)  # tokens of a prompt: mean, longest
QWEN_7B = MappingProxyType(  # published config.json of Qwen2.5-7B
    {
        **{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584},
        **{"intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
        **{"num_key_value_heads": 4, "max_position_embeddings": 32768},
        "tie_word_embeddings": False,
    }
)


def two_ways() -> dict[str, PipelineRun]:
    """An 8B model on eight GPUs, simulated: all write and then all train, or side by side.

    48 prompts of 16 completions, 6,000 tokens on average and at most 14,336: the shipped file.
    """
    node = load_config(ROOT / "configs/one-node-8.yaml")
    budget = Budget(node, measure_shape(node), measure_prompts(node))
    cluster, lengths, batch = budget.cluster, budget.lengths, node.batch_size
    both = replace(cluster, generators=8, trainers=8)
    apart = split(pipeline_rl(8), cluster, lengths, batch, accelerators=8)
    shape = {"updates": 24, "warmup": 8, "group_size": node.rollout.group_size}
    return {
        "generate, then update": simulate(generate_then_update(), both, lengths, batch, **shape),
        "side by side": simulate(pipeline_rl(8), apart, lengths, batch, **shape),
    }


def planned(words: Sequence[str], gpus: int) -> Budget | str:
    """What `rlbook scale WORDS --gpus N` plans for Qwen2.5-7B on 80 GB, or why nothing fits.

    With the sizes of the model as published, so that no hub is asked, and 900 tokens an answer.
    """
    known: dict[str, Any] = {"gpu_memory_gb": 80, "mean_tokens": 900, "shape": dict(QWEN_7B)}
    config = with_settings(ScaleConfig(**USUAL, model={"device": "cuda"}), list(words))
    config = config.replace(budget=known)
    fixed = {word.partition("=")[0].rpartition(".")[2] for word in words}
    try:
        return chosen(Budget(config, measure_shape(config), GSM8K), gpus, fixed)
    except ValueError as error:
        return str(error)


def costs(plan: Budget) -> dict[str, float]:
    """What a plan asks for: parameters that learn, memory, a push, checkpoints, time."""
    return {
        "GPUs": plan.config.gpus,
        "parameters that learn, millions": plan.learning / 1e6,
        "share of all": plan.learning / plan.shape.parameters,
        "a trainer, GB": plan.trainer_bytes / GB,
        "a push, GB": 2 * plan.sent / GB,
        "a push, seconds": plan.push_seconds,
        "a checkpoint, GB": plan.disk["checkpoints"] / (plan.config.checkpoint.keep + 1) / GB,
        "an update, seconds": plan.step_seconds,
        "200 updates, GPU-hours": plan.gpu_hours,
    }


def beside(plans: dict[str, Budget]) -> pd.DataFrame:
    """`costs` of plans, a column each."""
    return pd.DataFrame({name: costs(plan) for name, plan in plans.items()})
