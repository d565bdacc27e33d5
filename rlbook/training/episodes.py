"""An answer in turns: the policy writes, something is put in, the policy goes on.

An episode is a generator over token ids. It asks the policy (`Ask`, and is sent a `Completion`) or
tells the world (`Say`, and is sent its `Reply`), and returns the whole answer as `Turns`. It does
no work of its own; whoever drives it does:

    written    many episodes with an engine that completes batches       (a notebook)
    asked      one episode, one request at a time, beside others          (servers)

Tokens are only ever appended: what was sampled is never encoded again, so it is what is trained.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from time import perf_counter
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.tasks import Problem
from rlbook.tasks.environment import Reply, opened, replied
from rlbook.training.chat import Dialect, decode
from rlbook.training.config import derive_seed
from rlbook.training.engine import Engine, checked_completions

__all__ = ["Ask", "Episode", "Limits", "Say", "Turns", "asked", "cut_short", "dialogue", "single"]


CLOSING_TAG = re.compile(r"</\w+>")
LONGEST_TOKEN = 128  # characters; a reply of more for every token that is left finds no room


@dataclass(frozen=True)
class Ask:
    """Go on from these tokens by at most `room` more, until one of `stop` or the end token."""

    token_ids: list[int]
    room: int
    stop: tuple[int, ...] = ()


@dataclass(frozen=True)
class Say:
    """The policy has said `text` to the world; None: the world is to open.

    `session` is a `rlbook.tasks.Session`, or what stands for one that another process holds.
    """

    session: Any
    text: str | None = None
    finished: bool = True


@dataclass(frozen=True)
class Limits:
    """How long an episode may be: in tokens, those put in included; in turns; in tokens a turn."""

    tokens: int
    turns: int = 64
    turn_tokens: int | None = None


@dataclass
class Turns:
    """An answer in the making.

    `forced[t]` marks a token that was put in, with log-probability 0; `turn_of[t]` counts the turns
    from 0, and what is put in belongs to the turn that it answers. `places` says where the world
    stood before each turn and at the end, `earned` what each turn was paid (None: nothing was).
    """

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_of: list[int] = field(default_factory=list)
    places: list[str | None] = field(default_factory=list)
    earned: list[float | None] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] = "length"
    world_seconds: float = 0.0

    @property
    def context(self) -> list[int]:
        """All that the policy reads."""
        return self.prompt_ids + self.token_ids

    def write(self, turn: int, one: Completion) -> None:
        """Add what the policy wrote; what was put in before has the version that read it."""
        if one.versions:
            unread = len(self.token_ids) - len(self.versions)
            self.versions += one.versions[:1] * unread + one.versions
        self.add(turn, one.token_ids, one.logps, one.forced or [False] * len(one.token_ids))
        self.finish_reason = one.finish_reason

    def put(self, turn: int, token_ids: Sequence[int]) -> None:
        """Add tokens that nobody sampled."""
        count = len(token_ids)
        self.add(turn, token_ids, [0.0] * count, [True] * count)

    def add(
        self, turn: int, token_ids: Sequence[int], logps: Sequence[float], forced: Sequence[bool]
    ) -> None:
        """Add tokens to a turn."""
        self.token_ids += token_ids
        self.logps += logps
        self.forced += forced
        self.turn_of += [turn] * len(token_ids)

    def completion(self) -> Completion:
        """The answer as one completion."""
        return Completion(
            self.token_ids,
            self.logps,
            self.finish_reason,
            forced=self.forced if any(self.forced) else None,
            versions=self.versions or None,
        )

    def paid(self, world: str) -> list[float] | None:
        """What each turn earned, if the world pays for turns: a number then for each of them."""
        if all(reward is None for reward in self.earned):
            return None
        for turn, reward in enumerate(self.earned):
            if reward is None or not isfinite(reward):
                raise ValueError(
                    f"{world} paid {reward} for turn {turn} and numbers for others: a world that "
                    "pays for turns gives each of them a finite `Reply.reward`, 0.0 for nothing"
                )
        return [float(reward) for reward in self.earned if reward is not None]


Episode = Generator[Ask | Say, Any, Turns]


def single(prompt_ids: list[int], room: int) -> Episode:
    """The policy writes once."""
    turns = Turns(prompt_ids)
    turns.write(0, (yield Ask(prompt_ids, room)))
    return turns


def dialogue(problem: Problem, session: Any, dialect: Dialect, limits: Limits) -> Episode:
    """The policy writes, the world replies, until the world is done or a limit is met.

    A turn that a limit cut off ends the episode: the world hears it (`finished` is False), and its
    reply is read by nobody. So does a reply that leaves no room for a further turn.
    """
    opened = yield Say(session)
    if opened.done:
        raise ValueError(f"{problem.id} is over before the policy has said anything")
    turns = Turns(dialect.prompt(problem, opened.messages), places=[opened.place])
    for turn in range(limits.turns):
        left = limits.tokens - len(turns.token_ids)
        one = yield Ask(turns.context, min(left, limits.turn_tokens or left), dialect.stop)
        turns.write(turn, one)
        cut = one.finish_reason == "length"
        reply = yield Say(session, dialect.text(one), not cut)
        turns.earned.append(reply.reward)
        turns.places.append(reply.place)
        if cut or reply.done:
            return turns
        turns.finish_reason = "length"  # unless another turn is written
        room = limits.tokens - len(turns.token_ids)
        if sum(len(m.content) for m in reply.messages) > LONGEST_TOKEN * room:
            return turns
        said = dialect.between(problem, reply.messages)
        if turn + 1 == limits.turns or len(said) >= room:
            return turns
        turns.put(turn, said)
    raise ValueError(f"an episode has one turn at least, got a limit of {limits.turns}")


def cut_short(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], thought: int, text: str, answer: int
) -> Episode:
    """A thought, and if its tokens run out, an answer behind the text that interrupts it.

    A thought that has closed itself, with the tag that the text would close it with, is in its
    answer already: it goes on without that text. Sources: s1, arXiv:2501.19393 ("budget forcing");
    ScaleRL, arXiv:2510.13786.
    """
    turns = Turns(prompt_ids)
    one = yield Ask(prompt_ids, thought)
    turns.write(0, one)
    if one.finish_reason == "stop":
        return turns
    tag = CLOSING_TAG.search(text)
    if not (tag and tag[0] in decode(tokenizer, one.token_ids)):
        turns.put(0, tokenizer(text, add_special_tokens=False).input_ids)
    turns.write(1, (yield Ask(turns.context, answer)))
    return turns


# ── Who drives them ───────────────────────────────────────────────────────────────────────────────


def said_to(say: Say) -> Reply:
    """The world's reply, asked right here."""
    if say.text is None:
        return opened(say.session)
    return replied(say.session, say.text, say.finished)


def written(
    complete: Callable[[list[Ask]], list[Completion]], episodes: Sequence[Episode]
) -> list[Turns]:
    """All episodes to their ends; those that wait for the policy are completed together."""
    ended: dict[int, Turns] = {}
    waiting: dict[int, Ask] = {}
    seconds = [0.0] * len(episodes)

    def go_on(number: int, given: Completion | Reply | None) -> None:
        """To the next thing that the policy is asked; the world is told meanwhile."""
        try:
            while isinstance(want := episodes[number].send(given), Say):
                began = perf_counter()
                given = said_to(want)
                seconds[number] += perf_counter() - began
            waiting[number] = want
        except StopIteration as end:
            ended[number] = end.value
            ended[number].world_seconds = seconds[number]

    for number in range(len(episodes)):
        go_on(number, None)
    while waiting:
        asks = dict(waiting)
        waiting.clear()
        for number, one in zip(asks, complete(list(asks.values())), strict=True):
            go_on(number, one)
    return [ended[number] for number in range(len(episodes))]


async def asked(
    complete: Callable[[Ask], Awaitable[Completion]],
    episode: Episode,
    tell: Callable[[Say], Awaitable[Reply]] | None = None,
) -> Turns:
    """One episode to its end; the world answers in a thread, or where `tell` asks it."""
    given: Completion | Reply | None = None
    seconds = 0.0
    while True:
        try:
            want = episode.send(given)
        except StopIteration as end:
            turns: Turns = end.value
            turns.world_seconds = seconds
            return turns
        if isinstance(want, Ask):
            given = await complete(want)
        else:
            began = perf_counter()
            given = await (tell(want) if tell else asyncio.to_thread(said_to, want))
            seconds += perf_counter() - began


def in_batches(
    engine: Engine, temperature: float, seed: int
) -> Callable[[list[Ask]], list[Completion]]:
    """`complete` for `written`: one call of the engine for all asks with the same stop tokens.

    Asks that would not fit its `positions` together, the longest with the widest room, are parted.
    The first round is drawn with `seed`, as one completion would be; every later one has its own.
    """
    rounds = 0

    def complete(asks: list[Ask]) -> list[Completion]:
        nonlocal rounds
        noise = derive_seed(seed, "turn", rounds) if rounds else seed
        rounds += 1
        answers: dict[int, Completion] = {}
        for stop, of_stop in parted(asks, getattr(engine, "positions", inf)):
            room = max(asks[i].room for i in of_stop)
            drawn = engine.generate(
                [asks[i].token_ids for i in of_stop],
                n=1,
                max_new_tokens=room,
                temperature=temperature,
                seed=noise,
                **({"stop": stop} if stop else {}),
            )
            drawn = checked_completions(drawn, len(of_stop), 1, type(engine).__name__, room)
            answers |= {i: cut(one, asks[i].room) for i, one in zip(of_stop, drawn, strict=True)}
        return [answers[i] for i in range(len(asks))]

    return complete


def parted(asks: Sequence[Ask], positions: float) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Stop tokens, and the places of asks that one call with these may complete."""
    for stop in dict.fromkeys(ask.stop for ask in asks):
        left = [i for i, ask in enumerate(asks) if ask.stop == stop]
        while left:
            room = max(asks[i].room for i in left)
            most = positions - room  # tokens before it
            fit = [i for i in left if len(asks[i].token_ids) <= most or asks[i].room == room]
            yield stop, fit
            left = [i for i in left if i not in fit]


def cut(one: Completion, room: int) -> Completion:
    """No more than there was room for: a batch is written to the widest room in it."""
    if len(one.token_ids) <= room:
        return one
    head = slice(room)
    return Completion(
        one.token_ids[head],
        one.logps[head],
        "length",
        forced=one.forced and one.forced[head],
        versions=one.versions and one.versions[head],
    )
