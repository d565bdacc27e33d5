"""A sampler in a thread of its own, so that whoever talks to it never waits for the model."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from rlbook.scale.generate.continuous import ContinuousSampler
from rlbook.scale.generate.engine import VersionedCompletion


class SamplerThread(Thread):
    """Takes steps while there is something to do, and between two of them does what it is asked.

    Nobody else touches the sampler.
    """

    def __init__(self, sampler: ContinuousSampler):
        super().__init__(daemon=True)
        self.sampler, self.paused = sampler, False
        self._asked: SimpleQueue[tuple[Future, Callable[[], Any]]] = SimpleQueue()
        self._completions: dict[int, Future[VersionedCompletion]] = {}

    def ask(self, action: Callable[[], Any]) -> Future:
        """Have the thread call `action` between two steps; the future brings its result."""
        future = Future()
        self._asked.put((future, action))
        return future

    def add(
        self, n: int, prompt: list[int], max_new_tokens: int, temperature: float
    ) -> list[Future[VersionedCompletion]]:
        """`n` futures of completions, to be called inside the thread. Cancelling one frees it."""
        futures = []
        for _ in range(n):
            number = self.sampler.add(prompt, max_new_tokens, temperature)
            futures.append(self._completions.setdefault(number, Future()))
        return futures

    def pause(self, clear_cache: bool) -> None:
        """Take no further steps; called inside the thread, like `resume`."""
        self.paused = True
        if clear_cache:
            self.sampler.clear_cache()

    def resume(self) -> None:
        self.paused = False

    def run(self) -> None:
        while True:
            self._answer()
            self._forget_cancelled()
            if self._may_step:
                self._step()

    @property
    def _may_step(self) -> bool:
        return self.sampler.busy and not self.paused

    def _answer(self) -> None:
        """Do all that has been asked; wait for something if there is nothing else to do."""
        while True:
            try:
                future, action = self._asked.get(block=not self._may_step)
            except Empty:
                return
            resolve(future, action)

    def _forget_cancelled(self) -> None:
        cancelled = [number for number, f in self._completions.items() if f.cancelled()]
        if cancelled:
            self.sampler.cancel(cancelled)
        for number in cancelled:
            del self._completions[number]

    def _step(self) -> None:
        try:
            finished = self.sampler.step()
        except Exception as error:
            self._fail_all(error)
            return
        for number, completion in finished.items():
            resolve(self._completions.pop(number), lambda done=completion: done)

    def _fail_all(self, error: Exception) -> None:
        """No row can go on after a step that failed."""

        def fail() -> None:
            raise error

        self.sampler.cancel(self._completions)
        for future in self._completions.values():
            resolve(future, fail)
        self._completions.clear()


def resolve(future: Future, action: Callable[[], Any]) -> None:
    """Give a future, unless it was cancelled, the result of `action` or its exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(action())
    except Exception as error:
        future.set_exception(error)
