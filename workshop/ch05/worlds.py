"""Chapter 05: held-out prompts of the pupil, a critic that learns them, favourite answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.tasks import Problem, held_out_problems
from rlbook.tasks.habits import FAMILIES
from rlbook.training import Critic, Rollout, RunConfig, Trainer
from rlbook.training.step import critic_step

HABITS = {"policy": "tiny-habits", "task": "habits"}
ANSWERS, SIBLINGS, OF_A_FAMILY = 64, 8, 8
BATCH = 128  # answers that a critic sees at a time


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts, 64 answers to each, and what a critic thinks of them as it learns."""

    pupil: Trainer
    problems: list[Problem]
    answers: list[Rollout]  # 64 of each prompt in turn
    rewards: Float[Tensor, "P 64"]
    critic: Float[Tensor, "B P"]  # V of each prompt after so many batches, the first before any

    @property
    def siblings(self) -> Float[Tensor, " P"]:
        """The mean reward of the first eight answers."""
        return self.rewards[:, :SIBLINGS].mean(1)

    @property
    def worth(self) -> Float[Tensor, " P"]:
        """The solve rate, from the other 56."""
        return self.rewards[:, SIBLINGS:].mean(1)

    @property
    def seen(self) -> list[int]:
        """Answers that the critic had learnt from at each of its guesses."""
        return [BATCH * batch for batch in range(len(self.critic))]

    @property
    def errors(self) -> dict[str, list[float]]:
        """Root mean square error of each guess over the prompts; the critic's by batches."""
        one_mean = self.worth.std(correction=0).item()
        siblings = (self.siblings - self.worth).square().mean().sqrt().item()
        critic = (self.critic - self.worth).square().mean(1).sqrt().tolist()
        return {"one mean for all": [one_mean], "eight siblings": [siblings], "critic": critic}

    @property
    def level(self) -> int:
        """Answers after which the critic first errs no more than eight siblings do."""
        errors = self.errors
        found = zip(self.seen, errors["critic"], strict=True)
        return next(n for n, error in found if error <= errors["eight siblings"][0])

    @property
    def between(self) -> float:
        """Share of the reward's variance that lies between prompts."""
        return (self.worth.var(correction=0) / self.rewards.var(correction=0)).item()

    def guesses(self, prompts: Sequence[int], batches: int = 8) -> pd.DataFrame:
        """What is guessed of some prompts, the critic after so many batches, and what is so."""
        rows = list(prompts)
        columns = {
            f"critic after {self.seen[batches]:,} answers": self.critic[batches, rows],
            "eight siblings": self.siblings[rows],
            "solve rate": self.worth[rows],
        }
        return pd.DataFrame(columns, index=[self.problems[row].prompt for row in rows])


def held_out(batches: int = 32, critic_lr: float = 1e-3) -> HeldOut:
    """Eight prompts of each of the pupil's families, and a critic that learns them.

    The pupil stands still; a batch is 128 fresh answers, each learnt from once. One seed, half a
    minute.
    """
    pupil = Trainer(RunConfig(method="ppo", critic_lr=critic_lr, **HABITS))
    levels = pupil.task.levels
    problems = [p for level in levels for p in held_out_problems(pupil.task, OF_A_FAMILY, [level])]
    answers = pupil.sample(problems, n=ANSWERS)
    rewards = torch.tensor([r.reward for r in answers], dtype=torch.float64)
    learner = pupil.learner
    asked = learner.prepare(answers[::ANSWERS])
    first = asked.mask.int().argmax(1, keepdim=True)  # before it V has seen the prompt alone

    @torch.no_grad()
    def guess(critic: Critic) -> Float[Tensor, " P"]:
        return critic(asked.ids, asked.mask).gather(1, first).squeeze(1).double()

    guesses = [guess(learner.critic)]
    for batch in range(batches):
        for part in learner.minibatches(learner.prepare(pupil.collect(seed=batch)), batch):
            critic_step(learner.critic, learner.optimizers["critic"], part)
        guesses.append(guess(learner.critic))
    return HeldOut(pupil, problems, answers, rewards.reshape(-1, ANSWERS), torch.stack(guesses))


def favourites(trainers: Mapping[str, Trainer], problems: Sequence[Problem]) -> pd.DataFrame:
    """Prompts of each family whose likeliest answer is right; a row per policy.

    The likeliest token is taken each time. `problems` has as many of each family, in their order.
    """
    rows = {}
    for name, trainer in trainers.items():
        greedy = trainer.sample(problems, n=1, temperature=0)
        right = torch.tensor([r.correct for r in greedy]).reshape(len(FAMILIES), -1).sum(1)
        rows[name] = dict(zip(FAMILIES, right.tolist(), strict=True))
    table = pd.DataFrame(rows).T
    return table.assign(total=table.sum(axis=1))
