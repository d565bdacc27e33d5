"""A world that answers back: what a policy plays in several turns.

The policy writes a turn, the world replies, the policy goes on. A `Task` is the case of one turn.
Text goes in and text comes out; nothing here knows tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from rlbook.importing import check_call, errors_of
from rlbook.tasks.base import (
    Problem,
    Task,
    Verdict,
    checked_verdict,
    flag,
    listed,
    number,
    verdict_of,
)

__all__ = ["AnyTask", "Environment", "Message", "OneTurn", "Reply", "Session"]

ROLES = "user", "tool", "system"  # of who may say something to the policy


@dataclass(frozen=True)
class Message:
    """Something that is said to the policy, and by whom: a user, or a tool by its name."""

    content: str
    role: str = "user"
    name: str | None = None


@dataclass(frozen=True)
class Reply:
    """What the world says back to a turn.

    `said` is what the policy reads next: a text, or several messages (the results of several
    tools). `done`: nothing more is asked. `reward` is what this turn has earned; None from a world
    that pays at the end, through its verdict. `place` is a word for where the world stands now:
    turns that begin at equal places can be compared.
    """

    said: str | tuple[Message, ...] = ""
    done: bool = False
    reward: float | None = None
    place: str | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """What is said, as messages; a text is a user's."""
        if isinstance(self.said, str):
            return (Message(self.said),) if self.said else ()
        return self.said


def checked_reply(session: object, reply: object) -> Reply:
    """The reply in plain values, if a policy can read it.

    Raises `ValueError` naming the session, what it said and the mend.
    """
    name = type(session).__name__
    if not isinstance(reply, Reply):
        raise ValueError(f"{name} answered {reply!r:.60}: return Reply(said, done)")
    several = not isinstance(reply.said, str)
    if several and not (isinstance(reply.said, Sequence) and all(map(is_text, reply.said))):
        raise ValueError(
            f"{name} said {reply.said!r:.60}: say a text, or Message(text) several times"
        )
    for message in reply.messages:
        if message.role not in ROLES:
            raise ValueError(
                f"{name} said something as {message.role!r}: Message.role is one of "
                f"{', '.join(ROLES)}"
            )
        if not (message.name is None or isinstance(message.name, str)):
            raise ValueError(f"{name}: Message.name is {message.name!r:.60}: give a text, or None")
    if not (reply.place is None or isinstance(reply.place, str)):
        raise ValueError(f"{name}: Reply.place is {reply.place!r:.60}: give a text, or None")
    done, reward = flag(f"{name}: Reply.done", reply.done), reply.reward
    paid = None if reward is None else number(f"{name}: Reply.reward", reward)
    return replace(reply, done=done, reward=paid)


def opened(session: "Session") -> Reply:
    """What a session says first, checked."""
    with errors_of(f"{type(session).__name__}: Session.open"):
        reply = session.open()
    return checked_reply(session, reply)


def replied(session: "Session", text: str, finished: bool) -> Reply:
    """What a session replies to a turn, checked."""
    with errors_of(f"{type(session).__name__}: Session.turn"):
        reply = session.turn(text, finished)
    return checked_reply(session, reply)


def is_text(message: object) -> bool:
    """Whether it is a message that says a text."""
    return isinstance(message, Message) and isinstance(message.content, str)


class Session:
    """One episode of a world. It has state, and nothing outside it does.

    A world of one's own writes `turn` and `verdict`.
    """

    def open(self) -> Reply:
        """What the world says first; it follows the problem's prompt. Called once."""
        return Reply()

    def turn(self, text: str, finished: bool = True) -> Reply:
        """The policy has said this, the token that ends a turn excluded.

        `finished` is False for a turn that the limit on tokens cut off: it was not said to its end.
        """
        raise NotImplementedError(f"{type(self).__name__} has no turn(text, finished)")

    def verdict(self) -> Verdict:
        """How the episode went, whatever ended it: judged by the world's state, not by its text."""
        raise NotImplementedError(f"{type(self).__name__} has no verdict()")

    def close(self) -> None:
        """Give back what the session holds. Called once, also after an error."""


@runtime_checkable
class Environment(Protocol):
    """A family of problems, each the beginning of an episode.

    It may also say which tokens end a turn besides the model's own (`ends`, a tuple of their
    texts), and which tools its chat template is to offer (`tools`).
    """

    @property
    def name(self) -> str:
        """One or two words for tables."""
        ...

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of difficulty, the easiest first."""
        ...

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """`n` problems: a pure function of the arguments. What a group shares stands in them."""
        ...

    def begin(self, problem: Problem, seed: int) -> Session:
        """A new episode of this problem; `seed` is its own luck."""
        ...


AnyTask = Task | Environment


def ends_of(world: Environment) -> tuple[str, ...]:
    """Tokens that end a turn besides the model's own: the world's `ends`, or none."""
    return listed(f"environment {world.name!r}: ends", getattr(world, "ends", ()))


def tools_of(world: Environment) -> list[Any] | None:
    """What a chat template is to offer: the world's `tools`, functions or their JSON schemas."""
    tools = getattr(world, "tools", None)
    if tools is None:
        return None
    if isinstance(tools, list | tuple) and all(callable(t) or isinstance(t, dict) for t in tools):
        return list(tools)
    raise ValueError(
        f"environment {world.name!r}: tools is {tools!r:.60}: list functions, or their JSON schemas"
    )


VERBS = {"open": (), "turn": ("text", "finished"), "verdict": (), "close": ()}  # of a session
UNWRITTEN = Session.turn, Session.verdict


def begun(world: Environment, problem: Problem, seed: int, others: Iterable[Session]) -> Session:
    """A new episode, beside `others` that go on.

    Raises `ValueError` naming the world for what is no session, and for one that began before.
    """
    name = f"environment {world.name!r}: begin"
    with errors_of(name):
        session = world.begin(problem, seed)
    if isinstance(session, type):
        raise ValueError(f"{name} returned the class {session.__name__}: make one of it")
    if missing := [verb for verb in VERBS if lacks(session, verb)]:
        raise ValueError(
            f"{name} returned {session!r:.60}, which has no {', '.join(missing)}: return a Session "
            "with turn(text, finished) and verdict()"
        )
    for verb, arguments in VERBS.items():
        what = f"{type(session).__name__}: Session.{verb}"
        check_call(what, getattr(session, verb), arguments)
    if any(session is other for other in others):
        raise ValueError(
            f"{name} returned the same {type(session).__name__} for two episodes: make a new "
            "session in each call"
        )
    return session


def lacks(session: object, verb: str) -> bool:
    """Whether a session cannot do this: `Session` itself has no turn and no verdict."""
    method = getattr(session, verb, None)
    return not callable(method) or getattr(method, "__func__", None) in UNWRITTEN


@contextmanager
def sessions_of(
    world: Environment, asked: Iterable[tuple[Problem, int]]
) -> Iterator[list[Session]]:
    """A session for each of these problems and seeds; in the end all of them are closed."""
    with ExitStack() as closing:
        sessions: list[Session] = []
        for problem, seed in asked:
            sessions.append(begun(world, problem, seed, sessions))
            closing.callback(sessions[-1].close)
        yield sessions


def final_verdict(session: Session) -> Verdict:
    """What a session says of its episode; `ValueError` unless that is a verdict."""
    name = f"{type(session).__name__}: Session.verdict"
    with errors_of(name):
        verdict = session.verdict()
    return checked_verdict(name, verdict)


@dataclass
class OneTurn(Session):
    """A `Task` as a world: it hears one turn, and that is all."""

    task: Task
    problem: Problem
    heard: Verdict | None = None

    def turn(self, text: str, finished: bool = True) -> Reply:
        self.heard = verdict_of(self.task, self.problem, text, finished)
        return Reply(done=True)

    def verdict(self) -> Verdict:
        return self.heard or Verdict(False, False, None, "empty")
