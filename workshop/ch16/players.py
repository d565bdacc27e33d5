"""Careless players, the base that their episodes teach, and a group that waits for a world.

A player is an engine that is no network: `collect_rollouts` plays it, `sft` imitates it.
Chapter 16.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import Completion, Sampler, load_policy
from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.scale.rollout.worlds import Worlds
from rlbook.tasks import Problem
from rlbook.training import collect_rollouts
from rlbook.training.chat import Dialect, decode
from rlbook.training.episodes import Ask, Limits, asked, dialogue
from rlbook.training.sft import sft
from workshop.ch16.worlds import Guessing, Walking


@dataclass
class Player:
    """An engine that is no network: it reads what has been said and says what `play` does."""

    tokenizer: PreTrainedTokenizerBase
    luck: random.Random = field(default_factory=lambda: random.Random("player"))

    def generate(self, prompts: Sequence[Sequence[int]], *, n: int, **how: Any) -> list[Completion]:
        return [self.says(decode(self.tokenizer, list(p))) for p in prompts for _ in range(n)]

    def says(self, text: str) -> Completion:
        """A turn as tokens."""
        ids = self.tokenizer(f"{self.play(text)};", add_special_tokens=False).input_ids
        return Completion(ids, [0.0] * len(ids), "stop")

    def play(self, text: str) -> str:
        """What to say after this."""
        raise NotImplementedError


class Guesser(Player):
    """Any number that is still possible, and in 15 of 100 turns any number at all."""

    def play(self, text: str) -> str:
        low, top = 1, int(text[text.index("?") - 2 : text.index("?")])
        anything = self.luck.randint(low, top)
        for guess, said in re.findall(r"(\d\d);([+-])", text):
            if said == "+":
                low = max(low, int(guess) + 1)
            else:
                top = min(top, int(guess) - 1)
        possible = self.luck.randint(low, top)
        return f"{anything if self.luck.random() < 0.15 else possible:02d}"


class Walker(Player):
    """Towards the goal in 80 of 100 steps."""

    def play(self, text: str) -> str:
        asked = text.index("?")
        goal, here = int(text[asked + 1]), int(text[-1] if ";" in text else text[asked - 1])
        towards = self.luck.random() < 0.8
        return "+" if (goal > here) == towards else "-"


TAUGHT: dict[str, tuple[Any, Any, int, int]] = {
    "guess": (Guessing(), Guesser, 2000, 3),
    "walk": (Walking(), Walker, 4000, 3),
}


@cache
def base_of(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The book's model, taught by the episodes of a careless player: the base of a world."""
    torch.manual_seed(0)
    model, tokenizer = load_policy("tiny")
    world, player, episodes, epochs = TAUGHT[name]
    problems = world.sample(12345, episodes)
    told = collect_rollouts(player(tokenizer), tokenizer, world, problems, 1)
    for _ in sft(model, told, epochs=epochs, batch=64, lr=1e-3):
        pass
    return model, tokenizer


Ids = list[int]
Turn = tuple[Callable[[Ids], Ids], Ids, Callable[[Ids], str], Callable[[str], Ids]]


def turn_by_turn(sampler: Sampler, tokenizer: PreTrainedTokenizerBase, problem: Problem) -> Turn:
    """A policy that is asked for one turn at a time, the prompt, and text from and to tokens."""

    def encode(text: str) -> Ids:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def engine(ids: Ids) -> Ids:
        how = {"n": 1, "max_new_tokens": 4, "seed": len(ids), "stop": encode(";")}
        return sampler.generate([ids], **how)[0].token_ids

    def text_of(said: Ids) -> str:
        return decode(tokenizer, said[:-1])

    return engine, Dialect(tokenizer).prompt(problem), text_of, encode


HERE = "workshop.ch16.worlds:"
GAME = Problem("game-1", "09?", "", 4, {"high": 9, "hidden": 7, "turns": 4})


async def play_group(
    worlds: Worlds, world: str, tokenizer: PreTrainedTokenizerBase, n: int = 1
) -> None:
    """A group of episodes in the rooms of a cluster; its policy is a player and needs no time."""
    dialect, player = Dialect(tokenizer, (";",)), Guesser(tokenizer)

    async def complete(ask: Ask) -> Completion:
        return player.says(decode(tokenizer, ask.token_ids))

    async with worlds.seats(HERE + world, GAME, range(n)) as seats:
        episodes = [dialogue(GAME, seat, dialect, Limits(24)) for seat in seats]
        await asyncio.gather(*(asked(complete, one, worlds.tell) for one in episodes))


async def sleeping_group(tokenizer: PreTrainedTokenizerBase, seconds: float) -> str:
    """What a group of that world comes to in the rooms of a cluster."""
    events: Counter[str] = Counter()
    worlds = Worlds(1, seconds, events)
    try:
        await play_group(worlds, "SleepingGame", tokenizer)
    except (GenerationFailed, RequestRefused) as error:
        return f"{error}; counted: {dict(events)}"
    finally:
        worlds.close()
    return "the world answered in time"


async def beside_a_slow_world(
    tokenizer: PreTrainedTokenizerBase, groups: int = 6
) -> list[tuple[str, float]]:
    """Who is over when: a group of a world of 200 ms a turn, and others, one after the other.

    The slow one has a process of its own, the others share a second one.
    """
    worlds, over = Worlds(2, 60.0, Counter()), list[tuple[str, float]]()

    async def play(world: str) -> None:
        await play_group(worlds, world, tokenizer, n=4)
        over.append((world, perf_counter() - began))

    try:
        began = perf_counter()
        await asyncio.gather(play("Guessing"), play("Guessing"))  # both are loaded
        over.clear()
        began = perf_counter()
        slow = asyncio.create_task(play("SlowGame"))
        await asyncio.sleep(0.01)  # it has taken its place
        for _ in range(groups):
            await play("Guessing")
        await slow
    finally:
        worlds.close()
    return over
