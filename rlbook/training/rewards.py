"""What an answer is worth: functions of rollouts, each giving parts of the reward by name."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, cast, runtime_checkable

import torch

from rlbook.importing import call_with_list, import_name
from rlbook.objectives import Method, overlong_penalty
from rlbook.tasks.base import number
from rlbook.training.batch import Rollout
from rlbook.training.config import RunConfig

__all__ = ["Reward", "VerifierReward", "give_rewards"]

Part = Sequence[float] | Sequence[Sequence[float]]
EACH = "give every {} a number, 0.0 where there is nothing"


@runtime_checkable
class Reward(Protocol):
    """Parts of the reward by name: a number per rollout, or one per token of each rollout.

    It is called with whole groups (`Rollout.group`), after the verifier: a vote of the group, a
    reward model or a teacher is a reward like the verifier's word.

        def brevity(rollouts):
            return {"brevity": [-0.01 * r.length for r in rollouts]}
    """

    def __call__(self, rollouts: Sequence[Rollout], /) -> Mapping[str, Part]: ...


@dataclass(frozen=True)
class VerifierReward:
    """One value for a right answer, one for any other, and a bonus for the required format.

    A verifier's own score counts in their place, and what a world paid for the turns of an episode
    stands on the last token that the policy wrote in each of them (part "turns").
    """

    right: float = 1.0
    wrong: float = 0.0
    format_bonus: float = 0.0

    def of_whole(self, rollout: Rollout) -> float:
        """What the whole answer earns; one whose turns were paid has earned it already."""
        if rollout.earned is not None:
            return 0.0
        if rollout.score is not None:
            return rollout.score
        return self.right if rollout.correct else self.wrong

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, Part]:
        parts: dict[str, Part] = {"answer": [self.of_whole(r) for r in rollouts]}
        if any(r.earned for r in rollouts):
            parts["turns"] = [by_turn(r) for r in rollouts]
        if self.format_bonus:
            parts["format"] = [self.format_bonus * r.format_ok for r in rollouts]
        return parts


def by_turn(rollout: Rollout) -> list[float]:
    """What each turn was paid, on the last token that the policy wrote in it; 0 elsewhere."""
    forced = rollout.forced or [False] * rollout.length
    last = {turn: t for t, turn in enumerate(rollout.turns) if not forced[t]}
    values = [0.0] * rollout.length
    for turn, value in enumerate(rollout.earned or ()):
        values[last[turn]] = value
    return values


@dataclass(frozen=True)
class OverlongPenalty:
    """DAPO's soft ramp below the generation limit, by default over its last fifth."""

    limit: int
    cache: int | None = None

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        lengths = torch.tensor([r.length for r in rollouts])
        cache = self.cache or max(1, self.limit // 5)
        return {"overlong": overlong_penalty(lengths, self.limit, cache).tolist()}


@dataclass(frozen=True)
class RewardByTask:
    """Each task's own reward in a mixture, the usual one where a task has none.

    All of them give one part, the sum of theirs.
    """

    usual: Reward
    of: Mapping[str, Reward]

    def __call__(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        values, sources = (
            [0.0] * len(rollouts),
            [str(r.problem.meta.get("mixture")) for r in rollouts],
        )
        for source in dict.fromkeys(sources):
            places = [place for place, one in enumerate(sources) if one == source]
            reward = self.of.get(source, self.usual)
            for part, given in parts_given(reward, [rollouts[place] for place in places]).items():
                for place, value in zip(places, given, strict=True):
                    if isinstance(value, list):
                        raise ValueError(
                            f"reward {reward_name(reward)}: part {part!r} of a mixture is not one "
                            "number per rollout"
                        )
                    values[place] += value
        return {"answer": values}


def verifier_reward(method: Method) -> VerifierReward:
    """What the method gives for the verifier's word."""
    wrong, right = method.reward_values
    return VerifierReward(right, wrong, method.format_bonus)


def rewards_of(config: RunConfig, own: Reward | None = None) -> tuple[Reward, ...]:
    """All rewards of a run: what an answer is worth, then the method's shaping.

    The first is `own`, or what `data.reward` names, or what the method gives for the verifier's
    word.
    """
    method, name = config.method, config.data.reward
    if own is None:
        own = get_reward(name) if name else verifier_reward(method)
        if by_task := config.data.rewards:
            own = RewardByTask(own, {task: get_reward(one) for task, one in by_task.items()})
    if method.reward_shaping != "overlong":
        return (own,)
    return own, OverlongPenalty(config.rollout.max_new_tokens, method.overlong_cache)


def get_reward(name: str) -> Reward:
    """The reward function behind an import path, "package.module:function".

    Raises `ValueError` or `ImportError` naming what is missing.
    """
    reward = import_name(name)
    if not callable(reward):
        raise ValueError(f"reward {name!r} is not a function of rollouts")
    return cast(Reward, reward)


def give_rewards(rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> None:
    """Write the parts of every reward into the rollouts.

    Raises `ValueError` naming the reward, and the part and rollout whose values are not a number
    per rollout, or one per token.
    """
    for rollout in rollouts:
        rollout.rewards, rollout.token_rewards = {}, {}
    given_by: dict[str, str] = {}
    for reward in rewards:
        for part, values in parts_given(reward, rollouts).items():
            if first := given_by.get(part):
                raise ValueError(
                    f"two rewards give a part {part!r}: rename the one of {first}, as "
                    f"{reward_name(reward)} has it too"
                )
            given_by[part] = reward_name(reward)
            for rollout, value in zip(rollouts, values, strict=True):
                if isinstance(value, list):
                    rollout.token_rewards[part] = value
                else:
                    rollout.rewards[part] = value


def parts_given(
    reward: Reward, rollouts: Sequence[Rollout]
) -> dict[str, list[float | list[float]]]:
    """The parts of one reward: for each rollout a number, or a list of one per token.

    Raises `ValueError` naming the reward, and what of it is none.
    """
    source = f"reward {reward_name(reward)}"
    mend = "it is called with all of them, return {part: [value for r in rollouts]}"
    parts = call_with_list(source, reward, rollouts, mend)
    if not isinstance(parts, Mapping) or (rollouts and not parts):
        raise ValueError(
            f"{source} returned {parts!r:.60}: return {{part: one value per rollout}}, "
            'such as {"brevity": [-0.01 * r.length for r in rollouts]}'
        )
    return {name: part_of(f"{source}: part {name!r}", v, rollouts) for name, v in parts.items()}


def part_of(what: str, values: Any, rollouts: Sequence[Rollout]) -> list[float | list[float]]:
    """One part of a reward, checked and as Python's own numbers."""
    listed = hasattr(values, "__len__") and getattr(values, "ndim", 1) > 0
    if not listed or isinstance(values, str | Mapping | Set):
        raise ValueError(
            f"{what} has {values!r:.60} as its values for {len(rollouts)} rollouts: give a list, "
            "one value for each, in their order"
        )
    if len(values) != len(rollouts):
        raise ValueError(f"{what} has {len(values)} values for {len(rollouts)} rollouts")
    return [
        value_of(what, value, f"rollout {number}, of {rollout.problem.id}", rollout.length)
        for number, (rollout, value) in enumerate(zip(rollouts, values, strict=True))
    ]


def value_of(what: str, value: Any, whose: str, length: int) -> float | list[float]:
    """What a part of a reward gives a rollout: a number, or one for each of its tokens."""
    value = unboxed(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return number(what, value, EACH.format("rollout"), f" for {whose}")
    if len(value) != length:
        raise ValueError(f"{what} has {len(value)} values for a completion of {length} tokens")
    each, where = EACH.format("token"), f" for a token of {whose}"
    return [number(what, unboxed(v), each, where) for v in value]


def unboxed(value: Any) -> Any:
    """What a tensor or an array holds, as Python has it: one number, or a list of them."""
    if not hasattr(value, "tolist"):
        return value
    return value.item() if prod(getattr(value, "shape", (0,))) == 1 else value.tolist()


def reward_name(reward: Reward) -> str:
    """What messages call a reward: the name of the function or of its class."""
    return getattr(reward, "__name__", type(reward).__name__)
