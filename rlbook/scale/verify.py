"""Verification off the event loop: worker processes with a time limit per completion."""

import asyncio
from collections import Counter
from dataclasses import asdict

from rlbook.tasks import Problem, Verdict
from rlbook.tasks.sandbox.bounded import BoundedWorker


class Verifiers:
    """A task's verifier in `count` worker processes; each verdict takes at most `seconds`.

    A process that hangs, dies or fails is replaced and the completion counts as wrong, for the
    reason "timeout" or "error"; `failures` counts "verify_timeouts" and "verify_errors".
    Chapter 17.
    """

    def __init__(self, task: str, count: int = 1, seconds: float = 5.0):
        self.task, self.seconds = task, seconds
        self.failures: Counter[str] = Counter()
        self.workers = [BoundedWorker() for _ in range(count)]
        self._idle: asyncio.Queue[BoundedWorker] = asyncio.Queue()
        for worker in self.workers:
            self._idle.put_nowait(worker)

    async def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """The task's verdict on a completion (EOS excluded)."""
        request = {
            "scorer": "task",
            "task": self.task,
            "problem": asdict(problem),
            "completion": completion,
            "finished": finished,
        }
        worker = await self._idle.get()
        try:
            reply = await asyncio.to_thread(worker.call, request, self.seconds)
        except TimeoutError:
            return self._failed("timeout")
        except RuntimeError:
            return self._failed("error")
        finally:
            self._idle.put_nowait(worker)
        return Verdict(**reply)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def _failed(self, reason: str) -> Verdict:
        self.failures[f"verify_{reason}s"] += 1
        return Verdict(False, False, None, reason)
