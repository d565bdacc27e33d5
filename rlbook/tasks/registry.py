"""Tasks by name, and the problems that are held out of training."""

import inspect
import re
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

from rlbook.importing import check_call, import_name
from rlbook.tasks.base import HeldOut, Labelled, Problem, Task, stop_texts
from rlbook.tasks.environment import AnyTask, Environment, ends_of, tools_of
from rlbook.tasks.habits import HabitsTask
from rlbook.tasks.mixture import MixtureTask, read_weights
from rlbook.tasks.sums import SumsTask

__all__ = ["get_task", "held_out_problems"]

NAMES = (
    "sums",
    "habits",
    "reasoning_gym:<dataset>",
    "dataset:<file, folder or hub id>",
    "benchmark:<file, folder or hub id>",
    "<package.module>:<class>",
)
SMALL_WORLDS: dict[str, Callable[[], Task]] = {"sums": SumsTask, "habits": HabitsTask}
FAMILIES = "reasoning_gym", "dataset", "benchmark"  # of tasks by what stands behind a colon
HELD_OUT_SEED = 1_000_003  # training seeds stay small, so no training run draws from this one

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_MEMBERS = ("name", "levels", "sample", "verify")  # an environment has `begin` for `verify`


def get_task(name: str) -> AnyTask:
    """The task called `name`: "sums", "habits", a data set after a colon, or a class of yours.

    "reasoning_gym:<dataset>" is one of that library's data sets; "dataset:<source>" takes
    questions and answers from a JSONL file, a folder or the Hugging Face hub (`DatasetTask`);
    "benchmark:<source>" is the same for evaluation alone (`BenchmarkTask`). "mixture:<weights as
    JSON>" draws from several (`MixtureTask`; in settings: `data.mixture`).
    "<package.module>:<class>" imports the module, from the working directory if need be, and calls
    the class (or function) without arguments for an object that is a `Task`.
    Raises `ValueError` for an unknown name or an object that is no task, and `ImportError` if a
    module or an optional library is missing.
    """
    if name in SMALL_WORLDS:
        return SMALL_WORLDS[name]()
    family, _, source = name.partition(":")
    if family == "reasoning_gym" and source:
        from rlbook.tasks.gym import ReasoningGymTask

        return ReasoningGymTask(source)
    if family == "dataset" and source:
        from rlbook.tasks.dataset import DatasetTask

        return DatasetTask(source)
    if family == "benchmark" and source:
        from rlbook.tasks.dataset import BenchmarkTask

        return BenchmarkTask(source)
    if family == "mixture" and source:
        weights, tasks = read_weights(name), {}
        for one in weights:
            if not isinstance(task := get_task(one), Task):
                raise ValueError(
                    f"data.mixture: {one!r} answers in several turns: train it by itself"
                )
            tasks[one] = task
        return MixtureTask(weights, tasks, held_out_problems)
    if _IMPORT_PATH.fullmatch(name):
        return made(name)
    raise ValueError(f"unknown task {name!r}: choose one of {', '.join(NAMES)}")


def made(name: str) -> AnyTask:
    """The task that a class or function of the reader's makes."""
    try:
        make = import_name(name)
    except ImportError as error:
        raise ImportError(f"task {name!r}: {error} (tasks are {', '.join(NAMES)})") from error
    if not callable(make):
        raise ValueError(f"task {name!r} is neither a class nor a function that makes a task")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ValueError(f"task {name!r} must be made without arguments ({error})") from None
    return checked(name, make())


def checked(name: str, task: object) -> AnyTask:
    """The task itself, if it has what every task has, and what else it has is what it should be.

    Raises `ValueError` naming what it lacks, or what does not fit.
    """
    if isinstance(task, str):
        raise ValueError(f"task is the name {task!r}: hand over the task, get_task({task!r})")
    missing = [member for member in _MEMBERS if not hasattr(task, member)]
    if isinstance(task, type):
        raise ValueError(f"task {name!r} is a class: make one, {task.__name__}()")
    if not isinstance(task, Task | Environment):
        raise ValueError(
            f"task {name!r} has no {', '.join(missing)}: a task has {', '.join(_MEMBERS)} "
            "(rlbook.tasks.Task), an environment `begin` for `verify` (rlbook.tasks.Environment)"
        )
    check_call(f"task {name!r}: sample", task.sample, ("seed", "n", "levels"))
    if isinstance(task, Environment):
        check_call(f"environment {name!r}: begin", task.begin, ("problem", "seed"))
        ends_of(task)
        tools_of(task)
    else:
        check_call(f"task {name!r}: verify", task.verify, ("problem", "completion", "finished"))
    if isinstance(task, Labelled):
        answer = "problem", "completion", "finished"
        check_call(f"task {name!r}: label", task.label, answer)
    if isinstance(task, HeldOut):
        check_call(f"task {name!r}: held_out", task.held_out, ("n", "levels"))
    stop_texts(task)
    return task


def sampled(task: AnyTask, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
    """`task.sample(seed, n, levels)`; `ValueError` unless these are `n` problems."""
    what, mend = f"task {task.name!r}: sample", f"return {n} × Problem(id, prompt, answer)"
    problems = checked_problems(what, task.sample(seed, n, levels), mend)
    if len(problems) != n:
        raise ValueError(f"{what} returned {len(problems)} problems: {mend}")
    return problems


def checked_problems(what: str, given: object, mend: str) -> list[Problem]:
    """The problems in a list; `ValueError` for what is none."""
    if isinstance(given, Sequence) and all(isinstance(one, Problem) for one in given):
        return list(given)
    raise ValueError(f"{what} returned {given!r:.60}: {mend}")


@lru_cache
def environment(name: str) -> Environment | None:
    """The environment behind an import path; None for the name of a task."""
    if name.partition(":")[0] in FAMILIES or not _IMPORT_PATH.fullmatch(name):
        return None
    task = get_task(name)
    return task if isinstance(task, Environment) else None


def held_out_problems(task: AnyTask, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
    """`n` problems to evaluate on, the only way to draw them, for every task.

    A task of finitely many problems gives those that it never trains on (`HeldOut`); one that
    generates them draws from a seed of its own, `HELD_OUT_SEED`. Where there are few problems to
    generate, as among sums of two operands, training may still come across one of these.
    """
    if isinstance(task, HeldOut):
        what, mend = f"task {task.name!r}: held_out", f"return {n} × Problem(id, prompt, answer)"
        return checked_problems(what, task.held_out(n, levels), mend)
    return sampled(task, HELD_OUT_SEED, n, levels)


def question(task: AnyTask, problem: Problem) -> Hashable:
    """What is asked: the prompt, and the state of a world, which may stand in no prompt."""
    state = problem.answer, repr(sorted(problem.meta.items()))
    return (problem.prompt, *state) if isinstance(task, Environment) else problem.prompt
