"""Chapter 15: what a step is worth."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.evaluation import held_out_rollouts
from rlbook.grouping import mean
from rlbook.objectives.process import token_credit
from rlbook.policy import Completion, load_policy
from rlbook.rewards.judges import habits_on_track
from rlbook.rewards.process import PrimeCredit, SiblingCredit, Steps, VerdictCredit, VineCredit
from rlbook.tasks import Task, get_task
from rlbook.training import Engine, Reward, Rollout, RunConfig, Trainer
from workshop.ch15.tools import Calculator, Unmasked
from workshop.shared.design import Arm, World, arm, vary
from workshop.shared.evidence import families
from workshop.shared.experiments import FEW, RLOO
from workshop.shared.worlds import HABITS

STEPWISE = replace(RLOO, advantage=token_credit)
UNMASKED = replace(RLOO, name="unmasked")  # the tool's tokens are trained like one's own
WHITENED = "PRIME, whitened"
CREDITS = {
    "outcome": None,
    "step groups": "rlbook.rewards.process:SiblingCredit",
    "process": "rlbook.rewards.process:VerdictCredit",
    "VinePPO, k = 2": "rlbook.rewards.process:VineCredit",
    "PRIME": "rlbook.rewards.process:PrimeCredit",
    "PRIME, slow judge": "workshop.ch15.experiments:slow_prime",
    WHITENED: "workshop.ch15.experiments:WhitenedPrime",
}
RATES = (3e-4, 6e-4)
SETTINGS: dict[str, Any] = {
    "prompts": 12,
    "group_size": 16,
    "minibatches": 1,
    "levels": (1, 2, 3, 4, 5),
    "max_new_tokens": 48,
} | HABITS


@dataclass
class Counted:
    """An engine that counts the answers and the tokens it was asked for."""

    engine: Engine
    answers: int = 0
    tokens: int = 0

    def generate(self, prompts: Sequence[Sequence[int]], **settings) -> list[Completion]:
        completions = self.engine.generate(prompts, **settings)
        self.answers += len(completions)
        self.tokens += sum(len(c.token_ids) for c in completions)
        return completions


def step_credit(
    config: RunConfig,
    policy: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    task: Task,
    engine: Engine,
) -> Reward | None:
    """The reward that the config names, built for this policy."""
    tokenizer, limit = policy[1], config.rollout.max_new_tokens
    steps = Steps.after(tokenizer)
    build: dict[str | None, Callable[[], Reward | None]] = {
        None: lambda: None,
        CREDITS["step groups"]: lambda: SiblingCredit(steps),
        CREDITS["process"]: lambda: VerdictCredit(steps, habits_on_track, tokenizer),
        CREDITS["VinePPO, k = 2"]: lambda: VineCredit(
            engine, tokenizer, task, steps, k=2, limit=limit
        ),
        CREDITS["PRIME"]: lambda: PrimeCredit(policy[0], lr=1e-3),
        CREDITS["PRIME, slow judge"]: lambda: slow_prime(policy[0]),
        CREDITS[WHITENED]: lambda: WhitenedPrime(policy[0], lr=1e-3),
    }
    return build[config.data.reward]()


def slow_prime(policy: PreTrainedModel) -> PrimeCredit:
    """PRIME whose model takes a tenth of the steps."""
    return PrimeCredit(policy, lr=1e-4)


class WhitenedPrime(PrimeCredit):
    """PRIME whose credit has standard deviation 1 over the tokens of a batch, as verl scales it."""

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        credit = super().__call__(rollouts)["credit"]
        tokens = torch.tensor([value for row in credit for value in row])
        mean, std = float(tokens.mean()), float(tokens.std()) + 1e-8
        return {"credit": [[(value - mean) / std for value in row] for row in credit]}


def unreliable_tool(wrong: float) -> World:
    """Habits with a calculator that is wrong with this probability in each call."""
    return partial(_with_calculator, wrong)


def _with_calculator(wrong: float, config: RunConfig) -> Trainer:
    policy, task = load_policy(config.model.policy), get_task(config.data.task)
    tool: Engine = Calculator(*policy, wrong=wrong)
    engine = Counted(Unmasked(tool) if config.method.name == UNMASKED.name else tool)
    reward = step_credit(config, policy, task, engine)
    return Trainer(config, policy, task=task, reward=reward, engine=engine)


def rules_and_cost(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The share of right rules by family, and what has been sampled so far for all purposes."""
    engine: Any = trainer.source.engine
    cost = {"answers_sampled": engine.answers, "tokens_sampled": engine.tokens}
    return families(trainer, rollouts) | cost


def with_and_without_tool(trainer: Trainer) -> dict[str, float]:
    """Rules, accuracy with the run's tool, and the policy's own arithmetic where there is none."""
    policy, asked = (trainer.model, trainer.tokenizer), {"prompts": 96, "n": 8}
    levels = SETTINGS["levels"]
    tools = trainer.source.engine
    tool = held_out_rollouts(policy, trainer.task, levels=levels, engine=tools, **asked)
    alone = held_out_rollouts(policy, trainer.task, levels=levels, **asked)
    ruled = [r for r in alone if trainer.task.label(r.problem, r.text) == "right"]
    return {
        **families(trainer, tool),
        "right_rule": mean(trainer.task.label(r.problem, r.text) == "right" for r in tool),
        "pass@1_with_tool": mean(r.correct for r in tool),
        "pass@1_alone": mean(r.correct for r in alone),
        "right_given_rule_alone": mean(r.correct for r in ruled),
    }


def arms(*labels: str, **settings) -> Iterator[Arm]:
    """The same run with other credit, each at two learning rates."""
    for label in labels:
        credit = CREDITS[label]
        one = arm(label, STEPWISE if credit else RLOO, reward=credit, **SETTINGS, **settings)
        yield vary(one, lr=RATES)


SEEN = {
    "chosen_by": None,
    "measure": with_and_without_tool,
    "watch": rules_and_cost,
    "evaluation": FEW,
}

KEPT = (  # of a step's metrics
    "accuracy",
    "completions",
    "truncated",
    "entropy",
    "grad_norm",
    "share_right",
    *(f"right_rule_level_{level}" for level in SETTINGS["levels"]),
    "answers_sampled",
    "tokens_sampled",
)


def sound_credit() -> Iterator[Arm]:
    """What an unreliable tool is compared with: the same credit where the tool is always right."""
    outcome = arm("outcome", RLOO, **SETTINGS, steps=20)
    judge = arm("PRIME", STEPWISE, reward=CREDITS["PRIME"], **SETTINGS, steps=20)
    for one in (outcome, judge, arm("tool tokens trained", UNMASKED, **SETTINGS, steps=20)):
        yield vary(one, lr=(3e-4, 6e-4))


def credit_above() -> Iterator[Arm]:
    """Outcomes and verdicts on steps at a rate above the two of `process_rewards`."""
    verdicts = arm("process", STEPWISE, reward=CREDITS["process"], **SETTINGS, steps=20)
    for one in (arm("outcome", RLOO, **SETTINGS, steps=20), verdicts):
        yield vary(one, lr=(8.5e-4,))
