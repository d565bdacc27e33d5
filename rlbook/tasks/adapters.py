"""Worlds written for other libraries, played unchanged: none of these libraries is imported here.

    trl_world(Class, rows)         a class for TRL's `environment_factory`: reset, tools, get_reward
    openenv_world(connect, …)      a client of OpenEnv: reset, step, close
    verifiers_world(env, tasks)    an `Env` of verifiers, whose `run` asks for the turns itself
    skyrl_world(make, rows)        a text environment of skyrl-gym: init, step, close
    textarena_world(make)          a game of textarena for one player

What a group shares must stand in the problem: TRL and OpenEnv leave it to the row and to `reset`.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.environment import Message, Reply, Session

__all__ = [
    "openenv_world",
    "skyrl_world",
    "textarena_world",
    "trl_world",
    "verifiers_world",
]

Row = dict[str, Any]
Calls = Callable[[str], Sequence[tuple[str, Row]]]
HERMES = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


@dataclass
class World:
    """An environment of these problems; `start(problem, seed)` makes a session."""

    name: str
    problems: Sequence[Problem]
    start: Callable[[Problem, int], Session]
    levels: tuple[int, ...] = (0,)
    ends: tuple[str, ...] = ()
    tools: list[Callable[..., Any]] | None = None

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` of its problems, none twice before all of them."""
        luck, drawn = Random(seed), list[Problem]()
        while len(drawn) < n:
            drawn += luck.sample(self.problems, len(self.problems))
        return drawn[:n]

    def begin(self, problem: Problem, seed: int) -> Session:
        """A new episode."""
        return self.start(problem, seed)


def problems_of(name: str, rows: Sequence[Row]) -> list[Problem]:
    """A problem for each row, whose `prompt` is a text or a conversation that ends with a user."""

    def text(prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else prompt[-1]["content"]

    return [
        Problem(f"{name}-{i}", text(row.get("prompt", "")), "", meta={"row": row, "chat": True})
        for i, row in enumerate(rows)
    ]


def scored(total: float, finished: bool = True) -> Verdict:
    """The verdict of a world that gives a number: right above 0."""
    return Verdict(total > 0, finished, f"{total:g}", "ok", score=total)


# ── TRL ───────────────────────────────────────────────────────────────────────────────────────────


def hermes_calls(text: str) -> list[tuple[str, Row]]:
    """Tool calls as Qwen and Hermes write them, behind the thought; what is no JSON is no call."""
    calls = []
    for written in HERMES.findall(text.rpartition("</think>")[2]):
        try:
            call = json.loads(written)
            calls.append((str(call["name"]), dict(call.get("arguments") or {})))
        except (ValueError, KeyError, TypeError):
            continue
    return calls


@dataclass
class TRLSession(Session):
    """Three rules of TRL's: every public method but two is a tool, a tool that fails says
    `{"error": …}`, a turn without a call is the last."""

    world: Any
    row: Row
    calls: Calls = hermes_calls

    def open(self) -> Reply:
        return Reply(run(self.world.reset(**self.row)) or "")

    def turn(self, text: str, finished: bool = True) -> Reply:
        calls = self.calls(text) if finished else ()
        said = tuple(Message(self.use(name, given), "tool", name) for name, given in calls)
        return Reply(said, done=not said)

    def use(self, name: str, arguments: Row) -> str:
        """What a tool answers."""
        try:
            tools = {tool.__name__: tool for tool in tools_of(self.world)}
            if name not in tools:
                raise ValueError(f"Tool {name} not found.")
            return str(run(tools[name](**arguments)))
        except Exception as error:
            return str({"error": str(error)})

    def verdict(self) -> Verdict:
        return scored(float(run(self.world.get_reward())))


def tools_of(world: Any) -> list[Callable[..., Any]]:
    """The public methods of an object made for `environment_factory`, but reset and get_reward."""
    names = [name for name, _ in inspect.getmembers(type(world), inspect.isfunction)]
    own = (n for n in names if n not in ("reset", "get_reward") and not n.startswith("_"))
    return [getattr(world, name) for name in own]


def run(value: Any) -> Any:
    """A value, or what a coroutine comes to."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def trl_world(
    factory: Callable[[], Any], rows: Sequence[Row], calls: Calls = hermes_calls
) -> World:
    """A class for TRL's `environment_factory` over the rows of its data set."""
    name = getattr(factory, "__name__", "trl")

    def start(problem: Problem, seed: int) -> Session:
        return TRLSession(factory(), dict(problem.meta["row"]), calls)

    return World(name, problems_of(name, rows), start, tools=tools_of(factory()))


# ── OpenEnv ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class OpenEnvSession(Session):
    """`step(action)` has an observation, a reward (of this turn) and done."""

    client: Any
    settings: Row
    act: Callable[[str], Any]
    read: Callable[[Any], str]
    place: Callable[[Any], str | None]
    total: float = 0.0
    over: bool = False

    def reply(self, result: Any, paid: bool = True) -> Reply:
        """A result as a reply; what `reset` says earns nothing."""
        reward = float(result.reward or 0.0) if paid else None
        self.total, self.over = self.total + (reward or 0.0), bool(result.done)
        seen = result.observation
        return Reply(self.read(seen), self.over, reward, self.place(seen))

    def open(self) -> Reply:
        return self.reply(self.client.reset(**self.settings), paid=False)

    def turn(self, text: str, finished: bool = True) -> Reply:
        return self.reply(self.client.step(self.act(text)))

    def verdict(self) -> Verdict:
        return Verdict(self.total > 0, self.over, f"{self.total:g}", "ok")

    def close(self) -> None:
        self.client.close()


def openenv_world(
    connect: Callable[[], Any],
    rows: Sequence[Row],
    act: Callable[[str], Any],
    read: Callable[[Any], str],
    place: Callable[[Any], str | None] = lambda observation: None,
    name: str = "openenv",
    ends: tuple[str, ...] = (),
) -> World:
    """A world behind `connect()`, a synchronous client with `reset`, `step` and `close`.

    `act` makes an action of a turn's text, `read` a text and `place` a word of an observation. A
    row's other entries than `prompt` are handed to `reset`. One client holds one episode at a time,
    so the server must allow as many sessions as a batch has (`max_concurrent_envs`).
    """

    def start(problem: Problem, seed: int) -> Session:
        row = {key: value for key, value in problem.meta["row"].items() if key != "prompt"}
        return OpenEnvSession(connect(), row, act, read, place)

    return World(name, problems_of(name, rows), start, ends=ends)


# ── verifiers ─────────────────────────────────────────────────────────────────────────────────────


class Interaction:
    """What `run` is given in place of an agent's: `await turn(message)` waits for the policy."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[Any] = asyncio.Queue()
        self.answered: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        self.rewards: dict[str, float] = {}
        self.trace = SimpleNamespace(rewards=self.rewards, info={}, metrics={}, stop_condition=None)
        self.trace.record_reward = self.record
        self.trace.record_metric = self.trace.metrics.__setitem__
        self.trace.stop = lambda why: setattr(self.trace, "stop_condition", why)
        self.over = False

    def record(self, name: str, value: float, weight: float = 1.0) -> None:
        """A reward of the trace."""
        self.rewards[name] = float(value) * weight

    async def turn(self, message: Any = None) -> Any:
        """The policy's next turn, after a message to it."""
        if self.over:
            return SimpleNamespace(messages=[], terminated=True, last_reply="")
        await self.questions.put(message)
        text, finished = await self.answered.get()
        self.over = not finished
        return SimpleNamespace(messages=[], terminated=False, last_reply=text.strip())

    async def __aenter__(self) -> "Interaction":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.over = True


class DrivenSession(Session):
    """A coroutine that asks for turns, turned inside out: it runs while it is the world's turn."""

    def __init__(self, program: Callable[[Interaction], Coroutine[Any, Any, Any]]):
        self.loop, self.interaction = asyncio.new_event_loop(), Interaction()
        self.program = self.loop.create_task(program(self.interaction))

    def step(self) -> Reply:
        """Let it run until it asks, or ends; its own error is raised here."""

        async def until_it_asks() -> Any:
            asking = asyncio.ensure_future(self.interaction.questions.get())
            await asyncio.wait([asking, self.program], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            asking.cancel()
            return self.program.result() and None

        said = self.loop.run_until_complete(until_it_asks())
        return Reply(str(said or ""), done=self.program.done())

    def open(self) -> Reply:
        return self.step()

    def turn(self, text: str, finished: bool = True) -> Reply:
        self.interaction.answered.put_nowait((text, finished))
        return self.step()

    def verdict(self) -> Verdict:
        return scored(sum(self.interaction.rewards.values()))

    def close(self) -> None:
        self.program.cancel()
        self.loop.run_until_complete(asyncio.gather(self.program, return_exceptions=True))
        self.loop.close()


def verifiers_world(
    env: Any, tasks: Sequence[Any], role: str = "agent", ends: tuple[str, ...] = ()
) -> World:
    """An `Env` of verifiers with one role over its tasks: `env.run(task, agents)`, unchanged.

    Not carried: programs behind a proxy that rewrite their own history, and several policies.
    """
    name = type(env).__name__

    def start(problem: Problem, seed: int) -> Session:
        task = tasks[problem.meta["row"]["index"]]

        async def program(interaction: Interaction) -> None:
            seat = SimpleNamespace(interaction=lambda task: interaction)
            await env.run(task, SimpleNamespace(**{role: seat}))

        return DrivenSession(program)

    rows = [
        {"prompt": getattr(task.data, "prompt_text", None) or "", "index": i}
        for i, task in enumerate(tasks)
    ]
    return World(name, problems_of(name, rows), start, ends=ends)


# ── skyrl-gym and textarena ───────────────────────────────────────────────────────────────────────


@dataclass
class SkyRLSession(Session):
    """`init(prompt)` once, then `step(text)`: observations, a reward of the turn, done."""

    world: Any
    prompt: list[Row]
    total: float = 0.0

    def open(self) -> Reply:
        messages, _ = self.world.init(self.prompt)
        told = messages[len(self.prompt) :]
        return Reply(tuple(Message(m["content"], m["role"]) for m in told))

    def turn(self, text: str, finished: bool = True) -> Reply:
        out = self.world.step(text)
        self.total += float(out["reward"])
        said = tuple(Message(m["content"], m["role"]) for m in out["observations"])
        return Reply(said, bool(out["done"]), float(out["reward"]))

    def verdict(self) -> Verdict:
        return Verdict(self.total > 0, True, f"{self.total:g}", "ok")

    def close(self) -> None:
        self.world.close()


def skyrl_world(make: Callable[[Row], Any], rows: Sequence[Row], name: str = "skyrl") -> World:
    """A text environment of skyrl-gym: `make(row)` for every episode of a row's `prompt`."""

    def start(problem: Problem, seed: int) -> Session:
        row = problem.meta["row"]
        return SkyRLSession(make(row), [{"role": "user", "content": problem.prompt}])

    return World(name, problems_of(name, rows), start)


@dataclass
class TextArenaSession(Session):
    """One player; the reward comes when the game is closed."""

    world: Any
    seed: int
    seen: int = 0
    rewards: dict[int, float] = field(default_factory=dict)

    def new(self) -> str:
        """What the player has not read yet: by default observations repeat all that was said."""
        observation = str(self.world.get_observation()[1])
        text, self.seen = observation[self.seen :], len(observation)
        return text

    def open(self) -> Reply:
        self.world.reset(num_players=1, seed=self.seed)
        return Reply(self.new())

    def turn(self, text: str, finished: bool = True) -> Reply:
        done, _ = self.world.step(text)
        return Reply("" if done else self.new(), bool(done))

    def verdict(self) -> Verdict:
        rewards, _ = self.world.close()
        return scored(float((rewards or {}).get(0, 0.0)))


def textarena_world(
    make: Callable[[], Any], seeds: Sequence[int] = range(1_000), name: str = "textarena"
) -> World:
    """A game of textarena for one player; a problem is a seed of its `reset`.

    Some games draw from the process's own random numbers: theirs are the group's only in a process
    of their own.
    """
    rows = [{"prompt": "", "seed": seed} for seed in seeds]
    return World(
        name,
        problems_of(name, rows),
        lambda problem, seed: TextArenaSession(make(), problem.meta["row"]["seed"]),
    )
