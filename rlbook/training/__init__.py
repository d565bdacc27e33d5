"""One training step, the single-process loop, the critic, checkpoints and metrics."""

from rlbook.training.batch import Batch, Rollout, collate, micro_batch_rows, minibatches
from rlbook.training.checkpoint import load_checkpoint, save_checkpoint
from rlbook.training.collect import Engine, RewardScheme, collect_rollouts, derive_seed
from rlbook.training.config import TrainConfig
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.pool import PromptPool
from rlbook.training.runlog import RunLog, read_jsonl, write_csv
from rlbook.training.step import critic_step, train_step
from rlbook.training.trainer import Trainer, find_method

__all__ = [
    "Batch",
    "Critic",
    "Engine",
    "PromptPool",
    "RewardScheme",
    "Rollout",
    "RunLog",
    "TrainConfig",
    "Trainer",
    "collate",
    "collect_rollouts",
    "critic_step",
    "derive_seed",
    "explained_variance",
    "find_method",
    "load_checkpoint",
    "micro_batch_rows",
    "minibatches",
    "read_jsonl",
    "save_checkpoint",
    "train_step",
    "write_csv",
]
