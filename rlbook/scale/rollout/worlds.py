"""The worlds of a run's episodes: sessions in bounded processes, those of one group in each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from rlbook.scale.generate.protocol import GenerationFailed, RequestRefused
from rlbook.tasks import Message, Problem, Reply, Verdict
from rlbook.tasks.sandbox.bounded import BoundedWorker
from rlbook.training.episodes import Say

PATIENCE = 3  # failures of one problem's world, one after the other, before it is refused


@dataclass
class Place:
    """A process of a world, and what waits for it."""

    worker: BoundedWorker
    turn: asyncio.Lock


@dataclass(frozen=True)
class Seat:
    """Stands for a `Session` that another process holds."""

    place: Place
    task: str
    problem: Problem
    number: int
    seed: int


class Worlds:
    """Up to `count` processes; each holds the sessions of one group until all of them are over.

    A session that raises, hangs for `seconds`, dies or answers more than can be read fails its
    group, which is asked again; a problem whose world has failed `PATIENCE` times is refused.
    Groups in other processes go on meanwhile. `events` counts "world_failures".
    """

    def __init__(self, count: int, seconds: float, events: Counter[str]):
        self.seconds, self.events = seconds, events
        self.failures: Counter[tuple[str, str]] = Counter()  # by task and problem
        self.threads = ThreadPoolExecutor(count, "world")
        self.places = [Place(BoundedWorker(), asyncio.Lock()) for _ in range(count)]
        self._idle: asyncio.Queue[Place] = asyncio.Queue()
        for place in self.places:
            self._idle.put_nowait(place)

    @asynccontextmanager
    async def seats(
        self, task: str, problem: Problem, seeds: Sequence[int]
    ) -> AsyncIterator[list[Seat]]:
        """A session for each seed; inside, a world's failure is the group's."""
        place = await self._idle.get()
        try:
            yield [Seat(place, task, problem, i, seed) for i, seed in enumerate(seeds)]
        except (RuntimeError, TimeoutError) as error:
            if isinstance(error, GenerationFailed | RequestRefused):
                raise
            self.events["world_failures"] += 1
            self.failures[task, problem.id] += 1
            text = f"the world of {problem.id}: {error}"
            again = self.failures[task, problem.id] < PATIENCE
            raise (GenerationFailed if again else RequestRefused)(text) from None
        else:
            del self.failures[task, problem.id]
        finally:
            try:
                with suppress(RuntimeError, TimeoutError):
                    await self._call(Seat(place, task, problem, 0, 0), "close")
            finally:  # also of a group that is cancelled meanwhile: the next one's `close` is later
                self._idle.put_nowait(place)

    async def tell(self, say: Say) -> Reply:
        """What a session says: `rlbook.training.episodes.asked` asks it here."""
        seat: Any = say.session
        if say.text is None:
            begin = {"problem": asdict(seat.problem), "seed": seat.seed}
            row = await self._call(seat, "open", **begin)
        else:
            row = await self._call(seat, "turn", text=say.text, finished=say.finished)
        return Reply(tuple(Message(**message) for message in row.pop("said")), **row)

    async def verdict(self, seat: Seat) -> Verdict:
        """How a session's episode went."""
        return Verdict(**await self._call(seat, "verdict"))

    async def _call(self, seat: Seat, verb: str, **more: Any) -> dict[str, Any]:
        request = {"scorer": "world", "task": seat.task, "session": seat.number, "verb": verb}
        async with seat.place.turn:  # no thread waits for a process that another one asks
            return await asyncio.get_running_loop().run_in_executor(
                self.threads, seat.place.worker.call, request | more, self.seconds, 0.0
            )

    def close(self) -> None:
        """End the processes."""
        for place in self.places:
            place.worker.close()
        self.threads.shutdown(wait=False)
