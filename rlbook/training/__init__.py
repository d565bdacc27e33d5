"""The loop, the trainer around it, one training step, the critic, checkpoints and metrics."""

from rlbook.training.batch import (
    Rollout,
    SampledBatch,
    TrainBatch,
    collate,
    micro_batch_rows,
    minibatches,
)
from rlbook.training.checkpoint import load_checkpoint, save_checkpoint
from rlbook.training.config import RunConfig, dump_config, load_config
from rlbook.training.critic import Critic, explained_variance
from rlbook.training.learner import Learner
from rlbook.training.loop import train
from rlbook.training.pool import PromptPool, derive_seed
from rlbook.training.prepare import BatchBuilder
from rlbook.training.rewards import Reward, VerifierReward, give_rewards
from rlbook.training.rollouts import (
    Engine,
    RolloutSource,
    collect_rollouts,
    select_groups,
)
from rlbook.training.runlog import RunLog, write_csv
from rlbook.training.step import adamw, critic_step, train_step
from rlbook.training.trainer import Trainer

__all__ = [
    "BatchBuilder",
    "Critic",
    "Engine",
    "Learner",
    "PromptPool",
    "Reward",
    "Rollout",
    "RolloutSource",
    "RunConfig",
    "RunLog",
    "SampledBatch",
    "TrainBatch",
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
    "save_checkpoint",
    "select_groups",
    "train",
    "train_step",
    "write_csv",
]
