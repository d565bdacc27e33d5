"""RL for reasoning LLMs, from REINFORCE to ScaleRL: the mathematics and the trainers of the book.

A step goes prompts → rollouts → rewards → advantages → objective → update, and so do the rooms:

    tasks        problems, and the verifier's word on an answer (no torch)
    policy       load a model, sample from it, score its tokens
    rewards      what an answer can be worth
    objectives   the mathematics: advantages, ratios, trust regions, averages; methods as rows
    training     the loop in fifteen lines, the trainer around it, one step, checkpoints
    evaluation   measure a policy: pass@k, pass rates by level or problem
    exact        policies small enough to enumerate
    stats        intervals and differences              scaling    compute curves, pipelines, memory
    scale        the same step asynchronously, on many processes and GPUs
    interop      a method in the settings of TRL, verl, SkyRL and prime-rl, and back
    viz          style, live plots, the report of a run
    cli          `rlbook train method=grpo lr=3e-4`

    from rlbook import RunConfig, Trainer

    for metrics in Trainer(RunConfig(method="grpo")):
        print(metrics["step"], metrics["accuracy"])

The twelve names below are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from rlbook.evaluation import evaluate
    from rlbook.objectives import METHODS, Method, policy_loss
    from rlbook.policy import Sampler, load_policy
    from rlbook.tasks import Task, get_task
    from rlbook.training import Reward, RunConfig, Trainer, train

HOMES = {
    "Method": "objectives",
    "METHODS": "objectives",
    "policy_loss": "objectives",
    "RunConfig": "training",
    "Trainer": "training",
    "train": "training",
    "evaluate": "evaluation",
    "load_policy": "policy",
    "Sampler": "policy",
    "get_task": "tasks",
    "Task": "tasks",
    "Reward": "training",
}
__all__ = [
    "METHODS",
    "Method",
    "Reward",
    "RunConfig",
    "Sampler",
    "Task",
    "Trainer",
    "evaluate",
    "get_task",
    "load_policy",
    "policy_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'rlbook' has no {name!r}: it has {', '.join(__all__)}")
    return getattr(import_module(f"rlbook.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])
