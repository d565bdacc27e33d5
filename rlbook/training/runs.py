"""Independent runs side by side: a process each where forking is safe, else in turn."""

import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, cast

import torch

from rlbook.policy import set_threads
from rlbook.training.config import RunConfig

__all__ = ["side_by_side"]

Runs = Mapping[Any, Iterable[Any]]


def side_by_side(
    runs: Runs, learners: Mapping[Any, Any] | None = None, *, at_once: int | None = None
) -> "SideBySide":
    """Independent runs trained at the same time; iterate for (name, metrics) as they come.

        for name, metrics in side_by_side({"a": Trainer(config), "b": Trainer(other)}):
            print(name, metrics["step"], metrics["accuracy"])

    A run is a `Trainer`, or whatever else is iterated over, such as a generator that trains.
    `learners[name]` is what that run changes and what has to come back: a trainer, a model, an
    optimizer, or a tuple or list of them; by default the run itself, where it is a trainer.

    On Linux every run is a forked process with one thread: the longest first, `at_once` of them,
    by default as many as there are cores and memory for. Elsewhere, where CUDA is in use, and with
    `at_once=1`, they are made here, one after the other, with one thread. Metrics, weights and
    moments are equal bit for bit either way, as long as no run draws from a generator of random
    numbers that others draw from. An interrupt ends all of them, and those that have not finished
    leave their learners as they were.

    Raises what a run raises, with the run's name in a note; `RuntimeError` if its process dies;
    `ValueError` for learners of no run and for at_once < 1.
    """
    if unknown := set(learners or {}) - set(runs):
        raise ValueError(f"learners {sorted(map(str, unknown))} belong to none of the runs")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once must be at least 1, got {at_once}")
    return SideBySide(runs, learners or {}, at_once)


class SideBySide:
    """Runs that are made when this is iterated over; see `side_by_side`."""

    def __init__(self, runs: Runs, learners: Mapping[Any, Any], at_once: int | None):
        self.runs = runs
        self.learners = {name: learners.get(name, run) for name, run in runs.items()}
        self.at_once = min(at_once or places(), len(runs)) if can_fork() else 1

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return forked(self) if self.at_once > 1 else in_turn(self.runs)

    def histories(self) -> dict[Any, list[Any]]:
        """Make all runs: what each of them yields, in the order of `runs`."""
        made: dict[Any, list[Any]] = {name: [] for name in self.runs}
        for name, item in self:
            made[name].append(item)
        return made

    def last(self) -> dict[Any, Any]:
        """Make all runs: the last that each of them yields, in the order of `runs`."""
        return {name: items[-1] for name, items in self.histories().items()}


def can_fork() -> bool:
    """Whether a copy of this process can compute: not where a driver or the system forbids it."""
    return (
        sys.platform == "linux"
        and not current_process().daemon  # itself a run of others: it may have no children
        and not torch.cuda.is_initialized()
    )


def places() -> int:
    """How many copies of this process the cores and the free memory of this machine bear."""
    facts = Path("/proc/meminfo").read_text().splitlines()
    free = next(1024 * int(fact.split()[1]) for fact in facts if fact.startswith("MemAvailable"))
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), free // own))


def in_turn(runs: Runs) -> Iterator[tuple[Any, Any]]:
    """One run after the other, with one thread."""
    threads = torch.get_num_threads()
    set_threads(1)
    try:
        for name, run in runs.items():
            try:
                for item in run:
                    yield name, item
            except Exception as error:
                raise with_note(error, f"in the run {name!r}") from error.__cause__
    finally:
        torch.set_num_threads(threads)


def forked(several: SideBySide) -> Iterator[tuple[Any, Any]]:
    """As many runs at once as there are places, each in a process of its own."""
    waiting = sorted(several.runs, key=lambda name: -tokens_of(several.runs[name]))
    begun, working = dict.fromkeys(several.runs, 0), Working()
    try:
        with on_interrupt(lambda: working.interrupt(begun)):
            while waiting or working:
                while waiting and len(working) < several.at_once:
                    name = waiting.pop(0)
                    working.start(name, several.runs[name], several.learners[name])
                for name, kind, content in working.messages():
                    if kind == "item":
                        begun[name] += 1
                        yield name, content
                    elif kind == "text":
                        print(content, end="")
                    else:
                        load_state(several.learners[name], content)
    finally:
        working.end()


class Working(dict[Connection, tuple[Any, BaseProcess]]):
    """Processes that are at work: of each the end of its pipe, the run's name, itself."""

    def start(self, name: Any, run: Iterable[Any], learner: Any) -> None:
        """Fork a run; interrupts are kept from it, for it is the parent who ends it."""
        fork = get_context("fork")
        mine, its = fork.Pipe(duplex=False)
        others = [mine, *self]  # held open, they would keep runs from noticing that they are alone
        process = fork.Process(target=work, args=(run, learner, its, others), daemon=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self[mine] = name, process
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            its.close()

    def messages(self) -> Iterator[tuple[Any, str, Any]]:
        """A message of each run that has one, at least one of all; raises what a run raised."""
        for pipe in cast(list[Connection], wait(list(self))):
            name, process = self[pipe]
            try:
                kind, content = pickle.loads(pipe.recv_bytes())
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"the process of the run {name!r} has died, exit code {process.exitcode} "
                    "(-9 is most often a want of memory, and at_once=1 needs the least)"
                ) from None
            if kind == "error":
                error, story = content
                raise with_note(error, f"in the run {name!r}:\n{story}")
            if kind == "end":
                del self[pipe]
                process.join()
                pipe.close()
            yield name, kind, content

    def interrupt(self, begun: Mapping[Any, int]) -> None:
        """End all, and say so in one line."""
        lost = ", ".join(f"{name!r} after {begun[name]} steps" for name, _ in self.values())
        self.end()
        raise Interrupted(f"ended, and their learners as before: {lost}")

    def end(self) -> None:
        """Leave nothing running."""
        while self:
            pipe, (_, process) = self.popitem()
            process.kill()
            process.join()
            pipe.close()


class Interrupted(KeyboardInterrupt):
    """An interrupt of several runs: one line in a notebook."""

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self}"]


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Act on an interrupt wherever it comes, also while what the runs have yielded is used."""
    before = signal.getsignal(signal.SIGINT)
    ignored = before is signal.SIG_IGN  # as of what a script has put in the background
    if ignored or current_thread() is not main_thread():  # which alone gets interrupts
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def work(run: Iterable[Any], learner: Any, pipe: Connection, others: Sequence[Connection]) -> None:
    """What a process does: make a run and tell all of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in others:
        other.close()
    set_threads(1)
    sys.stdout = sys.stderr = Told(pipe)
    with suppress(BrokenPipeError):  # nobody is there to be told
        try:
            for item in run:
                tell(pipe, "item", item)
            tell(pipe, "end", state_of(learner))
        except Exception as error:
            tell(pipe, "error", (portable(error), traceback.format_exc()))


def tell(pipe: Connection, kind: str, content: Any) -> None:
    """Send a message by value: tensors in shared memory would not outlive their process."""
    pipe.send_bytes(pickle.dumps((kind, content)))


class Told(io.TextIOBase):
    """What a run prints, on its way to the process that shows it."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe

    def write(self, text: str) -> int:
        """Send it on."""
        tell(self.pipe, "text", text)
        return len(text)


def state_of(learner: Any) -> Any:
    """What training changes of a learner, or of each in a tuple or list; None of anything else."""
    if isinstance(learner, (list, tuple)):
        return [state_of(one) for one in learner]
    return learner.state_dict() if hasattr(learner, "state_dict") else None


def load_state(learner: Any, state: Any) -> None:
    """Bring a `state_of` home."""
    if isinstance(learner, (list, tuple)):
        for one, its in zip(learner, state, strict=True):
            load_state(one, its)
    elif state is not None:
        learner.load_state_dict(state)


def tokens_of(run: Any) -> int:
    """How many tokens a run may write at most: what it will take; 0 where it does not tell."""
    config = getattr(run, "config", None)
    if not isinstance(config, RunConfig):
        return 0
    rollout, steps = config.rollout, config.steps - getattr(run, "step", 0)
    return steps * rollout.prompts * rollout.group_size * rollout.max_new_tokens


def portable(error: Exception) -> Exception:
    """The error, or its words where it cannot be sent."""
    try:
        return cast(Exception, pickle.loads(pickle.dumps(error)))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def with_note(error: Exception, note: str) -> Exception:
    """The error with a note under it."""
    error.add_note(note)
    return error
