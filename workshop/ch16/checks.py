"""Chapter 16: a loop of two authors, worths of places, a credit by hand, a key; the lab's world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rlbook.rewards.turns import GROUP
from rlbook.tasks import Environment, Reply, Verdict
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right

# A vocabulary in which 47 is a token, so that what was sampled as 4 and 7 can be encoded otherwise.
TOKENS = {
    **{str(digit): digit for digit in range(10)},
    ";": 10,
    "+": 11,
    "-": 12,
    "=": 13,
    "47": 47,
}
TEXTS = {token: text for text, token in TOKENS.items()}
LIMIT = 3


def text_of(ids: Sequence[int]) -> str:
    """The text of tokens."""
    return "".join(TEXTS[token] for token in ids)


def encode(text: str) -> list[int]:
    """The tokens of a text, the longest first."""
    ids = []
    while text:
        piece = next(text[:size] for size in (2, 1) if text[:size] in TOKENS)
        ids.append(TOKENS[piece])
        text = text[len(piece) :]
    return ids


@dataclass
class Scripted:
    """A policy that says these turns, and a session that replies to them; both in order."""

    turns: Sequence[Sequence[int]]
    replies: Sequence[Reply]
    said: int = 0
    heard: list[str] = field(default_factory=list)

    def engine(self, context: Sequence[int]) -> list[int]:
        """The next turn; the last one for ever."""
        self.said += 1
        return list(self.turns[min(self.said, len(self.turns)) - 1])

    def turn(self, text: str) -> Reply:
        """The next reply; the last one for ever."""
        self.heard.append(text)
        return self.replies[min(len(self.heard), len(self.replies)) - 1]


PLAYS = (  # what the policy says, what the world replies
    (((4, 7, 10), (0, 8, 10), (1, 2, 10)), (Reply("-"), Reply("+"), Reply("=", done=True))),
    (((0, 8, 10), (0, 8, 10), (4, 7, 10)), (Reply("+"), Reply("+"), Reply("-", done=True))),
    (((1, 10), (9, 10)), (Reply("+"), Reply("=", done=True))),
    (((4, 7, 10),), (Reply("=", done=True),)),
    (((3, 10), (2, 10), (1, 10), (0, 10)), (Reply("-"), Reply("-"), Reply("-"), Reply("="))),
)


def play(
    engine: Callable[[Sequence[int]], list[int]],
    session: Any,
    prompt: Sequence[int],
    text_of: Callable[[list[int]], str],
    encode: Callable[[str], list[int]],
    limit: int,
    *,
    said_by: Callable[[list[int]], list[int]] = list,
    over: Callable[[Reply], bool] = lambda reply: reply.done,
    marks: Callable[[list[int]], list[bool]] = lambda put: [False] * len(put),
) -> tuple[list[int], list[bool]]:
    """Section 3: an episode as tokens, and which of them the policy wrote."""
    ids: list[int] = []
    mine: list[bool] = []
    for _ in range(limit):
        said = engine([*prompt, *ids])
        ids += said_by(said)
        mine += [True] * len(said)
        reply = session.turn(text_of(said))
        if over(reply):
            return ids, mine
        put = encode(reply.said)
        ids += put
        mine += marks(put)
    return ids, mine


def played(mine: Callable[..., Any], turns: Any, replies: Any) -> list[int]:
    """What a loop makes of a script, as a row of numbers: tokens, then marks."""
    script = Scripted(turns, replies)
    ids, marks = mine(script.engine, script, [1, 3], text_of, encode, LIMIT)
    return [*ids, -1, *(int(mark) for mark in marks)]


def wrong(**changed: Any) -> Callable[..., tuple[list[int], list[bool]]]:
    """The loop with one line otherwise."""
    return lambda *given: play(*given, **changed)


def check_play(mine: Callable[..., Any]) -> bool:
    """Section 3: the three lines that the reader writes."""
    return check_lines(
        mine,
        play,
        {
            "token 47 stands where 4 and 7 were sampled: append the ids, encode nothing again": (
                wrong(said_by=lambda said: encode(text_of(said)))
            ),
            "the world's tokens are marked as the policy's: it would be trained to be the world": (
                wrong(marks=lambda put: [True] * len(put))
            ),
            "there are more tokens than marks: what the world put in needs a mark as well": (
                wrong(marks=lambda put: [])
            ),
            "the token that ends a turn is the policy's own: without it nobody learns to stop": (
                wrong(said_by=lambda said: said[:-1])
            ),
            "the world was done, and the loop went on: nobody is asked behind `done`": (
                wrong(over=lambda reply: False)
            ),
            "the loop ends at the first reply: ask the reply whether the world is done": (
                wrong(over=lambda reply: True)
            ),
        },
        PLAYS,
        "one sequence, two authors, and only one of them will be trained",
        "append what was sampled, stop when the reply is done, mark what was put in with False",
        outcome=played,
    )


def check_worths(answer: Sequence[float] | None) -> None:
    """Exercise 1: V before three guesses up to 13: 08, larger; 08 again; 12, smaller."""
    check_numbers(
        answer,
        (7 / 13, 3 / 5, 1 / 5),
        "the first guess gained .06, the second threw .40 away, and the verdict cannot tell which",
        {
            (7 / 13, 3 / 5, 3 / 5): "a guess that teaches nothing still costs a turn",
            (7 / 13, 3 / 6, 1 / 6): "larger than 8, up to 13: how many numbers are that?",
            (8 / 13, 4 / 5, 2 / 5): "with t guesses left, halving tells 2^t - 1 numbers apart",
            (3 / 13, 2 / 5, 1 / 5): "one number a guess is found by asking one after the other; "
            "halving does better",
            (1.0, 1.0, 1.0): "three guesses tell seven numbers apart, not thirteen",
        },
        "min(1, (2^t - 1) / n) with t guesses left and n numbers still possible, three times",
    )


def check_beside(answer: Sequence[float] | None) -> None:
    """Exercise 2: A stood at a place twice and is right, B once and wrong, C once and right."""
    check_numbers(
        answer,
        (1 / 2, -1.0, 1 / 3),
        "A and C are both right, and A gets more: it is not among those it is compared with",
        {
            (1 / 3, -1.0, 1 / 3): "of A's two visits one still stands in its own baseline",
            (1 / 4, -3 / 4, 1 / 4): "nobody is left out: each is compared with itself as well",
            (1 / 2, -1.0, 1 / 2): "A was there twice: for B and C that are two visits",
            (1.0, 0.0, 1.0): "that is the reward; what the others earned there is missing",
        },
        "the reward less the mean of all visits of *other* episodes to that place",
    )


def check_liar(answer: float | None) -> None:
    """Exercise 3: three numbers, two guesses, a reply that is false one time in four."""
    check_numbers(
        answer,
        5 / 6,
        "the first guess is right one time in three, whatever the world says afterwards; of the "
        "other cases three in four are told the truth",
        {
            3 / 4: "the first guess may be right: then nothing is left to be told",
            1.0: "that is the honest world",
            2 / 3: "that is a world whose word is a coin",
            1 / 2: "the two cases are added, not multiplied",
        },
        "the first guess finds it, or else the reply is true and the second does",
    )


def a_rollout(group: int, places: Sequence[str]) -> Any:
    """As much of a rollout as a key reads."""
    turns = [turn for turn in range(len(places) - 1) for _ in range(2)]
    return SimpleNamespace(
        group=group, places=list(places), turns=turns, token_ids=list(range(len(turns)))
    )


VISITS = (
    (0, ("5 left", "2 left", "5 left", "end")),
    (0, ("5 left", "5 left", "end")),
    (1, ("5 left", "2 left", "end")),
)


def company(key: Callable[[Any, int], Any]) -> list[int]:
    """For all pairs of turns whether a key calls them equal."""
    rollouts = [a_rollout(*visit) for visit in VISITS]
    keys = [key(r, turn) for r in rollouts for turn in range(len(r.places) - 1)]
    if any(found is None or found is ... for found in keys):
        raise TypeError("NoneType")
    return [int(one == other) for one in keys for other in keys]


def check_key(mine: Callable[[Any, int], Any]) -> bool:
    """Exercise 4: which turns are compared: those of the group at the same place."""
    return check_lines(
        mine,
        GROUP,
        {
            "places of the whole batch: two groups were asked different things": (
                lambda r, turn: r.places[turn]
            ),
            "the whole group, wherever it stands": lambda r, turn: r.group,
            "the place behind the turn is the turn's own doing": (
                lambda r, turn: (r.group, r.places[turn + 1])
            ),
            "the same turn is not the same place": lambda r, turn: (r.group, turn),
            "place and turn: who came there later is left out": (
                lambda r, turn: (r.group, r.places[turn], turn)
            ),
        },
        [()],
        "whoever stood there is a fair comparison, by whatever road",
        "a pair: the group, and the place before the turn",
        outcome=lambda key: company(key),
    )


def check_world(world: Any, turns: Sequence[str] = ()) -> None:
    """Lab: what any world of several turns must hold to, tried with the reader's own turns."""
    if world is None or not turns:
        not_attempted()
        return
    if not isinstance(world, Environment):
        not_yet("an environment has name, levels, sample(seed, n, levels) and begin(problem, seed)")
        return
    if world.sample(3, 4) != world.sample(3, 4):
        not_yet("sample is to be a function of its arguments: the same seed, other problems")
        return
    problem = world.sample(3, 1)[0]
    first, second = (told(world.begin(problem, 5), turns) for _ in range(2))
    if first != second:
        not_yet("two sessions with the same seed and the same turns were told different things")
        return
    if world.begin(problem, 5).verdict().correct:
        not_yet("an episode is right before anybody has said anything")
        return
    if not any(reply.done for reply in first[0]):
        not_yet("your turns have not come to the end of an episode")
        return
    right("the world is its arguments' function, and keeps what it knows in the session")


def told(session: Any, turns: Sequence[str]) -> tuple[list[Reply], Verdict]:
    """What a session replies, and its verdict."""
    replies = [session.open()]
    for text in turns:
        if replies[-1].done:
            break
        replies.append(session.turn(text))
    verdict = session.verdict()
    session.close()
    return replies, verdict
