"""A world that answers back: what a policy plays in several turns.

The policy writes a turn, the world replies, the policy goes on. A `Task` is the case of one turn.
Text goes in and text comes out; nothing here knows tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlbook.tasks.base import Problem, Task, Verdict

__all__ = ["AnyTask", "Environment", "Message", "OneTurn", "Reply", "Session"]


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
    """The reply itself, if a policy can read it; `ValueError` names the session and the mend."""
    name = type(session).__name__
    if not isinstance(reply, Reply):
        raise ValueError(f"{name} answered {reply!r:.60}: return Reply(said, done)")
    several = not isinstance(reply.said, str)
    if several and not (isinstance(reply.said, Sequence) and all(map(is_text, reply.said))):
        raise ValueError(
            f"{name} said {reply.said!r:.60}: say a text, or Message(text) several times"
        )
    return reply


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


@dataclass
class OneTurn(Session):
    """A `Task` as a world: it hears one turn, and that is all."""

    task: Task
    problem: Problem
    heard: Verdict | None = None

    def turn(self, text: str, finished: bool = True) -> Reply:
        self.heard = self.task.verify(self.problem, text, finished)
        return Reply(done=True)

    def verdict(self) -> Verdict:
        return self.heard or Verdict(False, False, None, "empty")
