"""Verification off the event loop: worker processes with a time limit per completion."""

import asyncio
from collections import Counter
from dataclasses import asdict

from rlbook.scale.generate.protocol import GenerationFailed
from rlbook.tasks import Problem, Verdict
from rlbook.tasks.sandbox.bounded import BoundedWorker


class VerificationFailed(GenerationFailed):
    """A verifier failed, so its group has no rewards: it is asked again."""


class Verifiers:
    """A task's verifier in `count` worker processes; each verdict may compute for `seconds`.

    A process that hangs, dies or fails is replaced and asked once more. Out of time twice, the
    completion counts as wrong, for the reason "timeout": its own text keeps the verifier busy, for
    only time in which it computes is counted. Any other failure, also a host that is too busy to
    run it, gives no verdict. `failures` counts "verify_timeouts" and "verify_errors". Chapter 17.
    """

    def __init__(self, task: str, count: int = 1, seconds: float = 5.0):
        self.task, self.seconds = task, seconds
        self.failures: Counter[str] = Counter()
        self.workers = [BoundedWorker() for _ in range(count)]
        self._idle: asyncio.Queue[BoundedWorker] = asyncio.Queue()
        for worker in self.workers:
            self._idle.put_nowait(worker)

    async def verify(
        self, problem: Problem, completion: str, finished: bool = True, task: str | None = None
    ) -> Verdict:
        """The verdict on a completion (EOS excluded), of another task if one is named.

        Raises `VerificationFailed` if the verifier itself failed twice.
        """
        request = {
            "scorer": "task",
            "task": task or self.task,
            "problem": asdict(problem),
            "completion": completion,
            "finished": finished,
        }
        for _ in range(2):
            worker = await self._idle.get()
            try:
                return Verdict(**await asyncio.to_thread(worker.call, request, self.seconds))
            except (TimeoutError, RuntimeError) as error:
                failure = error
                late = isinstance(error, TimeoutError)
                self.failures["verify_timeouts" if late else "verify_errors"] += 1
            finally:
                self._idle.put_nowait(worker)
        if isinstance(failure, TimeoutError):
            return Verdict(False, False, None, "timeout")
        raise VerificationFailed(f"no verdict on an answer to {problem.id}: {failure}")

    def close(self) -> None:
        """End the worker processes."""
        for worker in self.workers:
            worker.close()
