"""Chapter 14: length, data, the pipeline, distillation."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rlbook.evaluation import pass_rates
from rlbook.grouping import group_by, mean
from rlbook.objectives import METHODS, Method
from rlbook.policy import Sampler, load_policy
from rlbook.rewards import KimiLength, L1Max, LengthCost, TeacherReward
from rlbook.tasks import Problem
from rlbook.tasks.habits import LEVELS, draw, problem_of
from rlbook.training import (
    PromptPool,
    Reward,
    Rollout,
    RunConfig,
    Trainer,
    VerifierReward,
    derive_seed,
)
from rlbook.training.metrics import rollout_metrics
from rlbook.training.rollouts import RolloutSource
from rlbook.training.sft import Answer, sft, written_answer
from workshop.bases.habits import written
from workshop.shared.design import Arm, arm, vary
from workshop.shared.experiments import RLOO
from workshop.shared.worlds import HABITS


def right_answers(
    rollouts: Iterable[Rollout], most: int | None = None, shortest: bool = False
) -> list[Rollout]:
    """Rejection sampling: the right answers, at most so many of each problem.

    The first ones, or the `shortest` (Kimi k1.5's short answers to imitate). Equal texts of one
    problem count once. Source: DeepSeek-R1, arXiv:2501.12948, §2.3.3. Chapter 14.
    """
    kept: list[Rollout] = []
    for members in group_by(rollouts, lambda r: r.problem.id).values():
        right = list({r.text: r for r in reversed(members) if r.correct}.values())[::-1]
        kept += sorted(right, key=lambda r: r.length if shortest else 0)[:most]
    return kept


def difficulty_window(
    problems: Iterable[Problem], rates: Mapping[str, float], low: float = 0.2, high: float = 0.8
) -> list[Problem]:
    """The problems whose pass rate lies in [low, high]: neither solved nor hopeless.

    Rates are estimates from a few answers each, and those answers are part of the bill. PRIME
    (arXiv:2502.01456) keeps 0.2 to 0.8. Chapter 14.
    """
    return [p for p in problems if low <= rates[p.id] <= high]


def learning_impact(curves: Float[Tensor, "P E"]) -> Float[Tensor, " P"]:
    """LIMR's score of each problem: how closely its reward curve follows the mean curve.

    s_i = 1 − Σ_k (r_ik − r̄_k)² / Σ_k (1 − r̄_k)² over the epochs k of a full run, r̄ the mean over
    problems: 1 for a curve that is the mean. The full run that gives the curves is part of the
    bill. Raises `ValueError` where every problem is always solved.
    Source: LIMR, arXiv:2502.11886. Chapter 14.
    """
    mean_curve = curves.mean(0)
    room = (1 - mean_curve).square().sum()
    if room == 0:
        raise ValueError("all problems are always solved: no score can tell them apart")
    return 1 - (curves - mean_curve).square().sum(1) / room


TEACHER = "tiny-habits-teacher"
# The policy gradient on another's answers, each worth 1, is supervised fine-tuning.
SFT = replace(METHODS["reinforce"], name="sft", aggregation="token_mean")
CURRICULUM, WAIT = "curriculum", 4
ASKED, ANY = 96, "any problems"
HERE = "workshop.ch14.experiments"
FIVE = (0, 1, 2, 3, 4)


def taught(config: RunConfig) -> Trainer:
    """The trainer of an arm, with the teacher where the arm has a use for one."""
    if config.method.name == "rloo":
        return Trainer(config)
    teacher, tokenizer = load_policy(TEACHER)
    if config.method.name == "opd":
        return Trainer(config, reward=TeacherReward(teacher))
    engine = Sampler(teacher, tokenizer.eos_token_id)
    return Trainer(config, reward=VerifierReward(1.0, 1.0), engine=engine)


def students(policy: str, **rates: tuple[float, ...]) -> Iterator[Arm]:
    """RL, imitation of the teacher, and on-policy distillation: 64 answers a batch each."""
    settings: dict[str, Any] = HABITS | {"policy": policy, "steps": 40, "minibatches": 1}
    settings |= {"evaluation": {"every": 10, "prompts": 48, "samples": 4}}
    single = {"prompts": 64, "group_size": 1}
    yield vary(arm("RL", RLOO, prompts=8, group_size=8, **settings), lr=rates["rl"])
    yield vary(arm("SFT on the teacher", SFT, **single, **settings), lr=rates["sft"])
    yield vary(arm("on-policy distillation", "opd", **single, **settings), lr=rates["opd"])


LOW_PRICE, HIGH_PRICE = LengthCost(0.005), LengthCost(0.02)
BUDGET, SIBLINGS = L1Max(alpha=0.02, budget=32), KimiLength(1.0)
LENGTH_RULES = {
    "no price": None,
    "0.005 a token": f"{HERE}:LOW_PRICE",
    "0.02 a token": f"{HERE}:HIGH_PRICE",
    "L1-Max, 32 tokens": f"{HERE}:BUDGET",
    "Kimi, among siblings": f"{HERE}:SIBLINGS",
}


def length_rules() -> Iterator[Arm]:
    """What length may cost, on plain sums."""
    for label, reward in LENGTH_RULES.items():
        one = arm(label, RLOO, reward=reward, steps=16, minibatches=1)
        yield vary(one, lr=(1.5e-4, 3e-4))


def on_chosen_data() -> Iterator[Arm]:
    """All families; problems of middling pass rate, and as many of any; one; four; a curriculum."""
    settings: dict[str, Any] = HABITS | {"steps": 20, "minibatches": 1}
    choices: dict[str, tuple[Method, dict[str, Any]]] = {
        "all families": (RLOO, {}),
        "pass rate 0.2 to 0.8": (RLOO, {"pool": ASKED}),
        "as many, any": (replace(RLOO, name=ANY), {"pool": ASKED}),
        "brackets only": (RLOO, {"levels": (2,)}),
        "four problems": (RLOO, {"pool": 4}),
        "easy first": (replace(RLOO, name=CURRICULUM), {}),
    }
    for label, (method, choice) in choices.items():
        yield vary(arm(label, method, **settings | choice), lr=(3e-4, 6e-4))


class Curriculum(RolloutSource):
    """Two families at first, and every `WAIT` batches the next rarer one."""

    def problems(self, step: int, seed: int) -> list[Problem]:
        return self.task.sample(seed, self.config.rollout.prompts, LEVELS[: 2 + step // WAIT])


class EasyFirst(Trainer):
    """A trainer that takes its prompts from a `Curriculum`."""

    source_class = Curriculum


def chosen_data(config: RunConfig) -> Trainer:
    """The trainer of an arm; a pool of `ASKED` problems is cut down to those of middling pass rate.

    The control keeps as many of them, whatever their pass rate.
    """
    if config.method.name == CURRICULUM:
        return EasyFirst(config)
    trainer = Trainer(config)
    if config.data.pool == ASKED:
        problems = list(trainer.source.pool.problems.values())
        kept = middling(trainer, problems)
        if config.method.name == ANY:
            kept = problems[: len(kept)]
        trainer.source.pool = PromptPool(kept, config.seed)
    return trainer


def middling(trainer: Trainer, problems: Sequence[Problem]) -> list[Problem]:
    """The problems that the policy solves in 20 to 80 % of eight tries."""
    asked = trainer.sample(problems, n=8, seed=derive_seed(trainer.config.seed, "pass rates"))
    return difficulty_window(problems, pass_rates(asked), 0.2, 0.8)


KEPT, EPOCHS = 32, 4
SCORES = {
    "LIMR's third": learning_impact,
    "the third of most variance": lambda curves: curves.var(1),
    "any third": lambda curves: torch.arange(len(curves), 0, -1),
}


def after_a_run() -> Iterator[Arm]:
    """A third of 96 problems, chosen by what a whole run over them has shown, and all of them."""
    settings: dict[str, Any] = HABITS | {"steps": 20, "minibatches": 1, "pool": ASKED}
    for label in (*SCORES, "all 96"):
        one = arm(label, replace(RLOO, name=label), **settings)
        yield vary(one, lr=(3e-4, 6e-4))


def chosen_after_a_run(config: RunConfig) -> Trainer:
    """The trainer of an arm, its pool cut down to the problems that its score puts first."""
    trainer = Trainer(config)
    if score := SCORES.get(config.method.name):
        scores = score(curves(config.seed, config.optimizer.lr))
        problems = list(trainer.source.pool.problems.values())
        best = scores.argsort(descending=True, stable=True)[:KEPT]
        trainer.source.pool = PromptPool([problems[i] for i in best], config.seed)
    return trainer


@cache
def curves(seed: int, lr: float) -> Tensor:
    """(problems, epochs): pass rate of each problem in each epoch of a run over the whole pool."""
    (whole,) = (one for one in after_a_run() if one.label == "all 96")
    trainer = Trainer(whole.config.replace(seed=seed, lr=lr))
    tried: dict[str, list[float]] = {key: [] for key in trainer.source.pool.problems}
    while min(map(len, tried.values())) < EPOCHS:
        for group in group_by(learned_from(trainer), lambda r: r.group).values():
            tried[group[0].problem.id].append(mean(r.correct for r in group))
    return torch.tensor([rates[:EPOCHS] for rates in tried.values()])


def learned_from(trainer: Trainer) -> list[Rollout]:
    """The answers of a step that is made."""
    answers = trainer.collect()
    trainer.learn(answers)
    return answers


def worked_examples(per_family: int, seed: int) -> list[tuple[Problem, str]]:
    """Problems of every family with an answer by the right rule: what a cold start imitates."""
    rng = random.Random(f"cold start {seed}")
    drawn = [(level, draw(rng, level)) for level in LEVELS for _ in range(per_family)]
    return [(problem_of(one, level), written(one.right, rng)) for level, one in drawn]


def cold_start(trainer: Trainer, per_family: int = 8, lr: float = 3e-4) -> None:
    """A few worked examples imitated, four times over."""
    examples = worked_examples(per_family, trainer.config.seed)
    answers = [written_answer(trainer.tokenizer, problem, text) for problem, text in examples]
    fine_tune(trainer, answers, epochs=4, lr=lr, batch=16)


def fine_tune(trainer: Trainer, answers: Sequence[Answer | Rollout], **how: Any) -> None:
    for _ in sft(trainer.model, answers, seed=trainer.config.seed, **how):
        pass


def staged(config: RunConfig) -> Trainer:
    """The last stage of an arm, with the stages before it behind it.

    "cold start" comes to RL from a few worked examples. "r1" goes on: RL, two right answers of each
    problem kept, the *base* fine-tuned on them, and RL again, which is the run that is logged.
    """
    trainer = Trainer(config)
    if config.method.name == "rloo":
        return trainer
    cold_start(trainer)
    if config.method.name == "cold start":
        return trainer
    for _ in trainer:
        pass
    problems = trainer.task.sample(derive_seed(config.seed, "kept"), 160)
    kept = right_answers(trainer.sample(problems, n=4, seed=config.seed), most=2)
    last = Trainer(config.replace(seed=config.seed + 1000))
    fine_tune(last, kept, epochs=3, lr=1e-3)
    return last


def stages() -> Iterator[Arm]:
    """RL alone, RL behind a cold start, and the four stages of R1: 5,760 answers each."""
    settings: dict[str, Any] = HABITS | {"minibatches": 1}
    named = {"RL alone": "rloo", "cold start, then RL": "cold start", "R1's four stages": "r1"}
    for label, name in named.items():
        steps = 20 if name == "r1" else 45
        one = arm(label, replace(RLOO, name=name), steps=steps, **settings)
        yield vary(one, lr=(3e-4, 6e-4))


PRICE, UNPRICED = LengthCost(0.02), 12
PRICED = f"{__name__}:PRICE"


class Imitation(Trainer):
    """A step imitates 48 worked examples once; the policy's own answers are only logged."""

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        examples = worked_examples(8, self.config.seed)
        answers = [written_answer(self.tokenizer, problem, text) for problem, text in examples]
        fine_tune(self, answers, epochs=1, lr=self.config.optimizer.lr, batch=16)
        self.step += 1
        return {"step": self.step, **rollout_metrics(rollouts, self.version)}


def examples_or_rl(config: RunConfig) -> Trainer:
    return (Imitation if config.method.name == "imitation" else Trainer)(config)


def teacher_null() -> Iterator[Arm]:
    """What 48 examples teach by themselves, and RL at its best: the arms beside distillation."""
    settings: dict[str, Any] = HABITS | {"prompts": 8, "group_size": 8, "minibatches": 1}
    imitation = replace(RLOO, name="imitation")
    yield vary(arm("48 examples", imitation, steps=12, **settings), lr=(3e-4, 1e-3, 3e-3))
    settings |= {"steps": 40}
    yield vary(arm("RL", RLOO, **settings), lr=(3e-4, 4.5e-4, 6e-4))
    max_rl = replace(METHODS["maxrl"], kl=None)
    yield vary(arm("RL, MaxRL", max_rl, **settings), lr=(3e-4, 6e-4, 1.2e-3))


class LatePrice(Trainer):
    """A price per token that is paid from batch `WAIT` on."""

    def collect(self, seed: int | None = None) -> list[Rollout]:
        reward: Reward = PRICE if self.step >= UNPRICED else VerifierReward()
        self.source.rewards = (reward, *self.source.rewards[1:])
        return super().collect(seed)


def late_price() -> Iterator[Arm]:
    """A price above the worth of a token: never, at once, after twelve batches."""
    settings: dict[str, Any] = {"steps": 24, "minibatches": 1}
    for label, name, reward in (
        ("no price", "rloo", None),
        ("at once", "rloo", PRICED),
        ("after 12 batches", "late", None),
    ):
        one = arm(label, replace(RLOO, name=name), reward=reward, **settings)
        yield vary(one, lr=(1.5e-4, 3e-4))


def priced(config: RunConfig) -> Trainer:
    return (LatePrice if config.method.name == "late" else Trainer)(config)
