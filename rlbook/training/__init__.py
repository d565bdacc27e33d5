"""The loop, the trainer around it, one training step, the critic, checkpoints and metrics."""

from rlbook.training.batch import Batch, Collated, Rollout, collate, micro_batch_rows, minibatches
from rlbook.training.checkpoint import load_checkpoint, save_checkpoint
from rlbook.training.collect import Engine, collect_rollouts, derive_seed
from rlbook.training.config import RunConfig, dump_config, load_config
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.loop import train
from rlbook.training.pool import PromptPool
from rlbook.training.prepare import BatchBuilder
from rlbook.training.rewards import Reward, VerifierReward, give_rewards
from rlbook.training.runlog import RunLog, read_jsonl, write_csv
from rlbook.training.step import adamw, critic_step, train_step
from rlbook.training.trainer import Trainer

__all__ = [
    "Batch",
    "BatchBuilder",
    "Collated",
    "Critic",
    "Engine",
    "PromptPool",
    "Reward",
    "Rollout",
    "RunConfig",
    "RunLog",
    "Trainer",
    "VerifierReward",
    "adamw",
    "collate",
    "collect_rollouts",
    "critic_step",
    "derive_seed",
    "dump_config",
    "explained_variance",
    "give_rewards",
    "load_checkpoint",
    "load_config",
    "micro_batch_rows",
    "minibatches",
    "read_jsonl",
    "save_checkpoint",
    "train",
    "train_step",
    "write_csv",
]
