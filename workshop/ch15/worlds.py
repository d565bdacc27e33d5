"""Chapter 15: the runs of its main line: an even draw of five families, and a calculator beside."""

from collections.abc import Sequence

from rlbook.policy import load_policy
from rlbook.tasks import Problem
from rlbook.tasks.habits import HabitsTask
from rlbook.training import Reward, RunConfig, Trainer
from workshop.ch15.tools import Calculator, Unmasked


class EvenHabits(HabitsTask):
    """`HabitsTask` whose batches hold as many problems of one family as of another."""

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems, family by family in turn."""
        levels = tuple(levels or self.levels)
        each = -(-n // len(levels))
        drawn = [HabitsTask.sample(self, seed, each, (level,)) for level in levels]
        return [problem for turn in zip(*drawn, strict=True) for problem in turn][:n]


def with_calculator(
    config: RunConfig, wrong: float, reward: Reward | None = None, masked: bool = True
) -> Trainer:
    """A run whose answers are written together with a calculator, `wrong` in that share of calls.

    `masked=False` trains the calculator's tokens as if the policy had chosen them.
    """
    policy = load_policy(config.model.policy)
    tool = Calculator(*policy, wrong=wrong)
    engine = tool if masked else Unmasked(tool)
    return Trainer(config, policy, task=EvenHabits(), engine=engine, reward=reward)
