"""One piece of reinforcement learning that two programs can be asked to do."""

from dataclasses import dataclass, replace

from rlbook.objectives import METHODS, Method
from rlbook.tasks import Problem, get_task
from rlbook.training import RunConfig
from rlbook.training.config import derive_seed


@dataclass(frozen=True)
class Workload:
    """Model, prompts, completions, updates and loss of a run; everything else is up to the program.

    A step samples `completions` and makes `updates` optimizer updates of equal size on them. With
    one update its log-probabilities are those of π_old; with more, both programs compute π_old in
    a forward pass of its own before the first. TRL lets nobody choose.
    """

    method: str = "grpo"
    completions: int = 128
    steps: int = 15
    updates: int = 1
    lr: float = 4e-4
    seed: int = 0
    group_size: int = 8
    max_new_tokens: int = 80
    policy: str = "tiny"

    @property
    def recompute(self) -> str:
        """Which programs compute π_old in a pass of its own: "neither" or "both"."""
        return "both" if self.updates > 1 else "neither"

    @property
    def prompts(self) -> int:
        return self.completions // self.group_size

    @property
    def config(self) -> RunConfig:
        """The run as this package's settings."""
        return RunConfig(
            policy=self.policy,
            method=self.row,
            steps=self.steps,
            prompts=self.prompts,
            group_size=self.group_size,
            max_new_tokens=self.max_new_tokens,
            minibatches=self.updates,
            lr=self.lr,
            seed=self.seed,
        )

    @property
    def row(self) -> Method:
        """The method without what changes the amount of work: KL, prompt filter, length penalty."""
        return replace(
            METHODS[self.method],
            kl=None,
            prompt_filter=None,
            reward_shaping="none",
            old_logprobs="recomputed" if self.recompute == "both" else "sampler",
        )

    def problems(self, step: int) -> list[Problem]:
        """The prompts `Trainer` draws at this step."""
        seed = derive_seed(self.seed, step, "prompts", 0)
        return get_task("sums").sample(seed, self.prompts)

    def all_problems(self) -> list[Problem]:
        """The prompts of all steps, in order."""
        return [problem for step in range(self.steps) for problem in self.problems(step)]


UPDATES_AND_LR = {"grpo": (1, 4e-4), "dapo": (4, 1.5e-4)}


def setting(method: str, **changes) -> Workload:
    """GRPO with one update on every batch, as is TRL's default; DAPO with four, which it is for."""
    if method not in UPDATES_AND_LR:
        raise ValueError(f"no workload for {method!r}: choose from {', '.join(UPDATES_AND_LR)}")
    updates, lr = UPDATES_AND_LR[method]
    return Workload(method, updates=updates, lr=lr, **changes)
