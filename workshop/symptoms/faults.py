"""Ways to break a training run, one or more for each symptom that `rlbook.doctor` knows.

Each comes through a seam of the trainer (a setting, a task, a reward, an engine) or replaces one
function of it while the run goes on. The trainer does not know.
"""

import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from rlbook.doctor import Log
from rlbook.evaluation import evaluate_run
from rlbook.objectives import (
    METHODS,
    Method,
    NoTrustRegion,
    RatioClip,
    group_normalize,
    needs,
    totals_of,
)
from rlbook.policy import Completion, Sampler, load_policy, logprobs
from rlbook.rewards import TeacherReward
from rlbook.tasks import Problem, SumsTask, Verdict
from rlbook.training import Rollout, RunConfig, Trainer, batch, learner, prepare, step
from rlbook.training.rollouts import RolloutSource
from rlbook.training.step import adamw
from workshop.shared.worlds import Unsolvable, rounded

GRPO = replace(METHODS["grpo"], kl=None)
DAPO = replace(METHODS["dapo"], prompt_filter=None)
SETTINGS: dict[str, Any] = {
    "method": GRPO,
    "steps": 8,
    "prompts": 8,
    "group_size": 8,
    "minibatches": 2,
    "lr": 3e-4,
}
DISTILLED = {"policy": "tiny-habits-small", "task": "habits", "method": "opd"}
TEACHER = "tiny-habits-teacher"
Made = dict[str, Any]  # what a trainer is given besides its settings
Policy = tuple[Any, Any]


def nothing(policy: Policy) -> Made:
    """A trainer as it is."""
    return {}


@dataclass(frozen=True)
class Fault:
    """What is broken: settings, what is `given` to the trainer, what is `replaced` in it.

    `symptom` is the name of the doctor's answer, "" for a healthy run; `variant` of another fault
    with that symptom. `beside` are the settings of a second log that the doctor compares with.
    """

    symptom: str
    what: str
    settings: dict[str, Any] = field(default_factory=dict)
    given: Callable[[Policy], Made] = nothing
    replaced: Callable[[], AbstractContextManager] = nullcontext
    runs: int = 1
    beside: dict[str, Any] | None = None
    variant: bool = False

    def log(self, seed: int, **changes: Any) -> Log:
        """The log of a run with this fault; `changes` of settings, such as fewer steps."""
        settings = {**SETTINGS, **self.settings, **changes, "seed": seed}
        with warnings.catch_warnings(), self.replaced():
            warnings.simplefilter("ignore")
            rows, text = [], ""
            for _ in range(self.runs):
                more, text = trained(self.given, settings)
                rows += more
            beside = None
            if self.beside is not None:
                beside = Log(trained(self.given, settings | self.beside)[0])
        return Log(rows, text, beside)


def trained(given: Callable[[Policy], Made], settings: dict[str, Any]) -> tuple[list[dict], str]:
    """The rows of a run, and the traceback of what ended it."""
    rows: list[dict] = []
    config = RunConfig(**settings)
    policy = load_policy(config.model.policy)
    try:
        rows += Trainer(config, policy, **given(policy))
    except Exception:
        return rows, traceback.format_exc()
    return rows, ""


def healthy(name: str) -> Fault:
    """A row of `METHODS` with nothing broken."""
    if name == "opd":
        teacher = TeacherReward(load_policy(TEACHER)[0])
        return Fault("", "opd", DISTILLED, lambda policy: {"reward": teacher})
    return Fault("", name, {"method": name})


# Engines


@dataclass(frozen=True)
class Told:
    """The built-in sampler, whose completions are changed before the trainer sees them."""

    sampler: Sampler
    change: Callable[[Sequence[int], Completion], Completion]
    temperature: float | None = None

    def generate(self, prompts: Sequence[Sequence[int]], **how: Any) -> list[Completion]:
        """Completions, each after `change(prompt, completion)`."""
        if self.temperature is not None:
            how["temperature"] = self.temperature
        written, n = self.sampler.generate(prompts, **how), how["n"]
        return [self.change(prompts[i // n], one) for i, one in enumerate(written)]


def engine(change: Callable, temperature: float | None = None) -> Callable[[Policy], Made]:
    """A given engine; `change(policy, noise, prompt, completion)`."""

    def given(policy: Policy) -> Made:
        noise = torch.Generator().manual_seed(0)
        sampler = Sampler(policy[0], policy[1].eos_token_id)
        return {"engine": Told(sampler, partial(change, policy, noise), temperature)}

    return given


def other_arithmetic(
    policy: Policy, noise: torch.Generator, prompt: Sequence[int], one: Completion
) -> Completion:
    """Every reported log-prob is off by N(0, 0.15)."""
    gaps = 0.15 * torch.randn(len(one.logps), generator=noise)
    return replace(one, logps=(torch.tensor(one.logps) + gaps).clamp(max=0).tolist())


def under(model: Any, prompt: Sequence[int], one: Completion) -> list[float]:
    """log-probs of a completion under a model, at temperature 1."""
    ids = torch.tensor([[*prompt, *one.token_ids]])
    mask = torch.arange(ids.shape[1])[None] >= len(prompt)
    with torch.no_grad():
        return logprobs(model, ids, mask)[0, len(prompt) :].tolist()


def as_if_cold(
    policy: Policy, noise: torch.Generator, prompt: Sequence[int], one: Completion
) -> Completion:
    """Log-probs of temperature 1 for tokens sampled at another."""
    return replace(one, logps=under(policy[0], prompt, one))


def other_experts(
    policy: Policy, noise: torch.Generator, prompt: Sequence[int], one: Completion
) -> Completion:
    """Three tokens in a hundred went through other weights."""
    elsewhere = torch.rand(len(one.logps), generator=noise) < 0.03
    if not elsewhere.any():
        return one
    other = under(rounded(policy[0], 3), prompt, one)
    pairs = zip(one.logps, other, elsewhere.tolist(), strict=True)
    return replace(one, logps=[b if flipped else a for a, b, flipped in pairs])


def respelt(
    policy: Policy, noise: torch.Generator, prompt: Sequence[int], one: Completion
) -> Completion:
    """`;` comes back as `; ok`, decoded and encoded by two tokenizers that do not quite agree."""
    tokenizer = policy[1]
    mark, added = tokenizer.convert_tokens_to_ids([";", "ok "])
    places = [i for i, token in enumerate(one.token_ids) if token == mark]
    if not places or torch.rand((), generator=noise) < 0.5:
        return one
    at = places[0] + 1
    ids = [*one.token_ids[:at], added, *one.token_ids[at:]]
    return replace(one, token_ids=ids, logps=[*one.logps, one.logps[-1]])


# Rewards, tasks, estimators


@needs("rewards", "groups")
def flipped(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Advantages with the wrong sign."""
    return -group_normalize(rewards, groups)


def long_is_good(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Right answers, and every token earns a little."""
    return {
        "answer": [float(r.correct) for r in rollouts],
        "length": [r.length / 80 for r in rollouts],
    }


def cut_is_good(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """What the limit ended counts as right: the verifier sees no wrong answer."""
    return {"answer": [float(r.correct or r.truncated) for r in rollouts]}


def all_is_good(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """1, whatever the verifier says."""
    return {"answer": [1.0] * len(rollouts)}


def one_late(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Each answer earns what the answer before it is worth."""
    earned = [float(r.correct) for r in rollouts]
    return {"answer": [*earned[-1:], *earned[:-1]]}


def noise(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """1 and a hundred-thousandth of it, at random."""
    drawn = (zlib.crc32(str(r.logps).encode()) / 2**32 for r in rollouts)
    return {"answer": [1 + 1e-5 * part for part in drawn]}


class Illegible(SumsTask):
    """The verifier looks for an answer in a box that nobody was told to draw."""

    name = "illegible"

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The form is right, and no answer is found."""
        verdict = super().verify(problem, completion, finished)
        return replace(verdict, correct=False, answer=None, reason="no_answer")


class Flipped(SumsTask):
    """Every tenth verdict is the other one, whatever was answered."""

    name = "flipped"

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """A flip for a tenth of all texts."""
        verdict = super().verify(problem, completion, finished)
        flips = zlib.crc32((problem.id + completion).encode()) % 10 == 0
        return replace(verdict, correct=verdict.correct != flips)


class Deaf(SumsTask):
    """Every second answer counts as right."""

    name = "deaf"

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """By number, not by what stands there."""
        self.asked += 1
        return Verdict(self.asked % 2 == 0, True, problem.answer, "counted")


class Leaking(SumsTask):
    """What it holds out is what it asked last, such as its pool."""

    name = "leaking"

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """Those of sums, which are remembered."""
        self.asked = super().sample(seed, n, levels)
        return self.asked

    def held_out(self, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """The first of these."""
        return self.asked[:n]


def against_the_teacher(policy: Policy) -> Made:
    """log π − log π_T: the divergence with the wrong sign."""
    teacher = TeacherReward(load_policy(TEACHER)[0])

    def reward(rollouts: Sequence[Rollout]) -> dict[str, list[list[float]]]:
        (parts,) = teacher(rollouts).values()
        return {"teacher": [[-x for x in row] for row in parts]}

    return {"reward": reward}


# What is replaced in the trainer


def ends_left_out() -> AbstractContextManager:
    """The mask lacks the token that ends an answer."""

    def collate(rollouts: Sequence[Rollout]) -> batch.SampledBatch:
        sampled = batch.collate(rollouts)
        last = sampled.mask.cumsum(1) == sampled.mask.sum(1, keepdim=True)
        return replace(sampled, mask=sampled.mask & ~(last & sampled.finished[:, None]))

    return patch.object(prepare, "collate", collate)


def optimizer_of_a_copy() -> AbstractContextManager:
    """The optimizer holds parameters that the model does not use."""

    def elsewhere(model: Any, *how: Any, **options: Any) -> torch.optim.Optimizer:
        return adamw(deepcopy(model), *how, **options)

    return patch.object(learner, "adamw", elsewhere)


def other_reference() -> AbstractContextManager:
    """The reference is not the policy that training starts from."""
    return patch.object(learner, "frozen_copy", lambda model: rounded(model, 4))


def own_averages() -> AbstractContextManager:
    """Every micro-batch divides by its own counts."""
    whole = step.batch_loss

    def alone(method: Method, stats: Any, micro: Any, totals: Any) -> Any:
        return whole(method, stats, micro, totals_of(micro.mask, micro.groups))

    return patch.object(step, "batch_loss", alone)


def nothing_times_infinity() -> AbstractContextManager:
    """A masked token's ratio overflows, and its gradient is 0 · ∞."""
    sound = step.batch_loss

    def overflowing(method: Method, stats: Any, micro: Any, totals: Any) -> Any:
        loss = sound(method, stats, micro, totals)
        return loss._replace(loss=loss.loss + 0 * (-1e3 * stats.logp.sum()).exp())

    return patch.object(step, "batch_loss", overflowing)


def no_gradient() -> AbstractContextManager:
    """The loss does not depend on the weights."""
    sound = step.batch_loss

    def cut(*given: Any) -> Any:
        loss = sound(*given)
        return loss._replace(loss=0 * loss.loss)

    return patch.object(step, "batch_loss", cut)


def one_large_loss() -> AbstractContextManager:
    """The eleventh update has ten thousand times its loss."""
    sound, calls = step.batch_loss, iter(range(10**6))

    def now_and_then(*given: Any) -> Any:
        loss = sound(*given)
        return loss._replace(loss=1e4 * loss.loss) if next(calls) == 10 else loss

    return patch.object(step, "batch_loss", now_and_then)


def same_problems() -> AbstractContextManager:
    """The seed of a step's problems does not know the step."""

    def first(self: RolloutSource, step: int, seed: int) -> list[Problem]:
        return self.task.sample(0, self.config.rollout.prompts, self.config.data.levels)

    return patch.object(RolloutSource, "problems", first)


def full_memory() -> AbstractContextManager:
    """The third forward pass finds no room for its logits."""
    sound, calls = step.batch_loss, iter(range(10**6))

    def heavy(*given: Any) -> Any:
        if next(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.27 GiB.")
        return sound(*given)

    return patch.object(step, "batch_loss", heavy)


FAULTS: dict[str, Fault] = {
    "one answer": Fault(
        "group_of_one", "64 prompts, one answer each", {"prompts": 64, "group_size": 1}
    ),
    "flipped": Fault(
        "wrong_sign", "advantages negated", {"method": replace(GRPO, advantage=flipped)}
    ),
    "limit": Fault("all_truncated", "a limit of 4 tokens", {"max_new_tokens": 4}),
    "wrong EOS": Fault(
        "all_truncated",
        "the engine stops at another token",
        given=lambda policy: {"engine": Sampler(policy[0], 0)},
        variant=True,
    ),
    "arithmetic": Fault("mismatch", "log-probs off by N(0, 0.15)", given=engine(other_arithmetic)),
    "rate": Fault("collapse", "20 times the learning rate", {"lr": 6e-3}),
    "one update": Fault(
        "nothing_clipped", "one update a batch", {"method": DAPO, "minibatches": 1}
    ),
    "one update, centred": Fault(
        "loss_is_zero", "one update a batch, advantages that cancel", {"minibatches": 1}
    ),
    "respelt": Fault("retokenised", "text encoded again", given=engine(respelt)),
    "experts": Fault("routers", "3 % of tokens by other weights", given=engine(other_experts)),
    "away from the teacher": Fault(
        "wrong_divergence", "the teacher's sign", DISTILLED, against_the_teacher
    ),
    "no ends": Fault("ends_untrained", "EOS left out of the mask", replaced=ends_left_out),
    "other weights": Fault(
        "policy_stands_still", "the optimizer of a copy", replaced=optimizer_of_a_copy
    ),
    "other reference": Fault(
        "wrong_reference", "another reference", {"method": "grpo"}, replaced=other_reference
    ),
    "unsolvable": Fault(
        "silent_groups",
        "no problem has a right answer",
        given=lambda policy: {"task": Unsolvable(1.0)},
    ),
    "paid anyway": Fault(
        "silent_groups",
        "every answer is paid",
        given=lambda policy: {"reward": all_is_good},
        variant=True,
    ),
    "bonus": Fault(
        "entropy",
        "an entropy bonus of 1",
        {"method": replace(GRPO, entropy_bonus=1.0)},
    ),
    "hot": Fault(
        "temperature", "sampled at 1.3, trained at 1", given=engine(as_if_cold, temperature=1.3)
    ),
    "product": Fault(
        "ratio_explodes",
        "the ratio of whole answers",
        {
            "method": replace(GRPO, ratio="sequence_product", trust_region=NoTrustRegion()),
            "minibatches": 8,
            "lr": 1e-3,
        },
    ),
    "narrow": Fault(
        "region_too_narrow",
        "GSPO's ε at token ratios",
        {"method": replace(GRPO, trust_region=RatioClip(3e-4, 4e-4)), "minibatches": 4},
    ),
    "own averages": Fault(
        "micro_batches",
        "each micro-batch divides by its own counts",
        {"micro_batch_tokens": 600},
        replaced=own_averages,
        beside={"micro_batch_tokens": 8192},
    ),
    "never synced": Fault("stale", "weights are never pushed", {"sync_every": 10_000}),
    "length paid": Fault(
        "gamed", "every token earns", given=lambda policy: {"reward": long_is_good}
    ),
    "cut paid": Fault(
        "gamed",
        "what is cut off counts as right",
        given=lambda policy: {"reward": cut_is_good},
        variant=True,
    ),
    "illegible": Fault(
        "answers_unread",
        "the verifier finds no answer",
        given=lambda policy: {"task": Illegible()},
    ),
    "tenth flipped": Fault(
        "right_unread",
        "a tenth of the verdicts is turned round",
        given=lambda policy: {"task": Flipped()},
    ),
    "deaf": Fault(
        "accuracy_constant",
        "every second answer is right",
        given=lambda policy: {"task": Deaf()},
    ),
    "one late": Fault(
        "reward_elsewhere",
        "rewards of the answer before",
        given=lambda policy: {"reward": one_late},
    ),
    "noise": Fault(
        "reward_elsewhere",
        "noise for a reward",
        given=lambda policy: {"reward": noise},
        variant=True,
    ),
    "no gradient": Fault("gradient_lost", "a loss without weights", replaced=no_gradient),
    "still critic": Fault(
        "critic_stands_still",
        "a critic's rate of next to 0",
        {"method": "ppo", "critic": {"lr": 1e-15}},
    ),
    "no warm-up's end": Fault(
        "policy_stands_still",
        "a warm-up that never ends",
        {"warmup": 1_000_000},
        variant=True,
    ),
    "same batch": Fault("same_problems", "the same problems in each step", replaced=same_problems),
    "leak": Fault(
        "heldout_trained",
        "held-out problems in the pool",
        {"data": {"pool": 48}, "evaluation": {"every": 4, "prompts": 16, "samples": 1}},
        given=lambda policy: {"task": Leaking(), "evaluate": evaluate_run},
    ),
    "one batch": Fault("spike", "one loss times ten thousand", replaced=one_large_loss),
    "memory": Fault("out_of_memory", "no room for logits", replaced=full_memory),
    "resumed": Fault("resume_jumps", "a checkpoint that was not found", {"steps": 5}, runs=2),
    "overflow": Fault("overflow", "0 · ∞", replaced=nothing_times_infinity),
}


def all_healthy() -> Iterator[tuple[str, Fault]]:
    """Every row of `METHODS`, unbroken."""
    for name in METHODS:
        yield name, healthy(name)
