"""The process behind `bounded`: reads requests, writes scores, one JSON per line."""

import ast
import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from rlbook.tasks.base import Problem, Task, verdict_of
from rlbook.tasks.environment import (
    AnyTask,
    Environment,
    Reply,
    Session,
    begun,
    final_verdict,
    opened,
    replied,
)
from rlbook.tasks.registry import get_task
from rlbook.tasks.sandbox import bounded
from rlbook.tasks.sandbox.bounded import Row

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

MEMORY_BYTES = 4 << 30
EVALUATING_MODULES = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)


def score_math(request: Row) -> Row:
    """Whether two LaTeX expressions are equal, judged by math-verify.

    Its numbers are rounded to places after the point, so 10^-20 would be 10^-21: two that it calls
    equal have to agree in fifteen digits too, or within the `tolerance` of the request.
    """
    import math_verify

    config = [math_verify.LatexExtractionConfig()]
    answer, reference = (
        math_verify.parse(f"\\boxed{{{text}}}", config, parsing_timeout=None)
        for text in (request["answer"], request["reference"])
    )
    parsed = {"parsed": bool(answer), "reference_parsed": bool(reference)}
    if not answer or not reference:
        return parsed | {"correct": False}
    within = numbers_agree(answer[0], reference[0], request.get("tolerance"))
    equal = within if request.get("tolerance") else within is not False
    if equal and not request.get("tolerance"):
        equal = math_verify.verify(reference, answer, timeout_seconds=None)
    return parsed | {"correct": bool(equal)}


def numbers_agree(a: Any, b: Any, tolerance: str | None) -> bool | None:
    """Whether two numbers of SymPy are the same to fifteen digits; None if one is no number."""
    from sympy import Expr, Integral, Limit, Rational, Sum

    if not all(
        isinstance(x, Expr) and x.is_number and not x.has(Integral, Limit, Sum) for x in (a, b)
    ):
        return None
    gap, size = abs((a - b).evalf(30, maxn=400)), abs(b.evalf(30, maxn=400))
    limit = Rational(tolerance) if tolerance else size * Rational(1, 10**15)
    return bool(gap.is_finite and gap <= limit)


def score_gym(request: Row) -> Row:
    """The reasoning-gym data set's own score of one answer."""
    settings = request.get("settings", {})
    dataset = gym_dataset(request["dataset"], request["seed"], request["size"], **settings)
    entry = dataset[request["index"]]
    return {"score": float(dataset.score_answer(request["answer"], entry))}


@lru_cache(maxsize=8)
def gym_dataset(name: str, seed: int, size: int, **settings: Any) -> "ProceduralDataset":
    """A data set whose scorer, where it would `eval` the answer, reads a literal instead."""
    import reasoning_gym

    for module in EVALUATING_MODULES:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = ast.literal_eval
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **settings)


def score_task(request: Row) -> Row:
    """A task's verdict on one completion."""
    task, problem = cast(Task, local_task(request["task"])), Problem(**request["problem"])
    return asdict(verdict_of(task, problem, request["completion"], request["finished"]))


@lru_cache
def local_task(name: str) -> AnyTask:
    """A task that scores right here: this process is bounded already, it starts no other."""
    bounded.WORKER.here = lambda request: SCORERS[request["scorer"]][0](request)
    return get_task(name)


SESSIONS: dict[int, Session] = {}  # of an environment, by number
LONGEST_REPLY = 1_000_000  # characters


def play(request: Row) -> Row:
    """What a session of an environment answers: the first word opens it, `close` ends them all."""
    verb, number = request["verb"], request["session"]
    if verb == "close":
        while SESSIONS:
            SESSIONS.popitem()[1].close()
        return {}
    if verb == "open":
        world = cast(Environment, local_task(request["task"]))
        problem, seed = Problem(**request["problem"]), request["seed"]
        SESSIONS[number] = session = begun(world, problem, seed, SESSIONS.values())
        return row_of(opened(session))
    if number not in SESSIONS:
        raise ValueError(f"session {number} is gone: its process has been started anew")
    session = SESSIONS[number]
    if verb == "verdict":
        return asdict(final_verdict(session))
    return row_of(replied(session, request["text"], request["finished"]))


def row_of(reply: Reply) -> Row:
    """A reply as JSON; `ValueError` for one that is too long for any policy."""
    if (size := sum(len(message.content) for message in reply.messages)) > LONGEST_REPLY:
        raise ValueError(
            f"the world said {size:,} characters; a reply has {LONGEST_REPLY:,} at most"
        )
    said = [asdict(message) for message in reply.messages]
    return {"said": said, "done": reply.done, "reward": reply.reward, "place": reply.place}


def load_task(request: Row) -> None:
    """Load a task and, by a first verdict, the libraries behind it."""
    task = cast(Task, local_task(request["task"]))
    with contextlib.suppress(Exception):
        task.verify(Problem("", "", "1"), r"<answer>1</answer>\boxed{1}")


SCORERS: dict[str, tuple[Callable[[Row], Row], Callable[[Row], object]]] = {
    "math": (score_math, lambda request: importlib.import_module("math_verify")),
    "gym": (score_gym, lambda request: importlib.import_module("reasoning_gym")),
    "task": (score_task, load_task),
    "world": (play, lambda request: local_task(request["task"])),
}


def main() -> None:
    """Answer requests until the input ends; what scorers print goes nowhere."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    limit_memory(MEMORY_BYTES)
    for line in sys.stdin:
        request = json.loads(line)
        with own_time_limit(request["seconds"], request["waiting"]):
            reply = answer(request)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def answer(request: Row) -> Row:
    """The reply to one request; an exception becomes `{"error": …}`."""
    score, prepare = SCORERS[request["scorer"]]
    try:
        if request.get("warm_up"):
            prepare(request)
            return {"ready": True}
        return score(request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


@contextlib.contextmanager
def own_time_limit(seconds: float, waiting: float) -> Iterator[None]:
    """End after so many seconds of work; `waiting` later if there is none, and no caller to kill.

    The signals' default action ends the process, in whatever code it hangs (not on Windows).
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds + waiting + 2)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory(size: int) -> None:
    """Cap the address space where the system can (not on Windows, not enforced on macOS)."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()
