"""A sampler that steps in a thread: whoever talks to its server never waits for the model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from rlbook.policy import Completion
from rlbook.policy.continuous import ContinuousSampler


class Stepper:
    """Takes steps while there is something to do. `async with stepper` is between two of them.

    Nobody touches the sampler otherwise.
    """

    def __init__(self, sampler: ContinuousSampler):
        self.sampler, self.paused = sampler, False
        self.thread = ThreadPoolExecutor(1, "sampler")
        self._turn, self._woken = asyncio.Lock(), asyncio.Event()
        self._completions: dict[int, asyncio.Future[Completion]] = {}

    async def __aenter__(self) -> ContinuousSampler:
        await self._turn.acquire()
        return self.sampler

    async def __aexit__(self, *error) -> None:
        self._turn.release()
        self._woken.set()

    async def add(
        self, n: int, prompt: list[int], max_new_tokens: int, temperature: float
    ) -> list[asyncio.Future[Completion]]:
        """`n` futures of completions. Cancelling one frees it."""
        loop = asyncio.get_running_loop()
        async with self as sampler:
            numbers = [sampler.add(prompt, max_new_tokens, temperature) for _ in range(n)]
            return [self._completions.setdefault(one, loop.create_future()) for one in numbers]

    async def run(self) -> None:
        """Step for ever; a step that fails ends every completion, for no row can go on."""
        loop = asyncio.get_running_loop()
        while True:
            await self._woken.wait()
            async with self._turn:
                self._forget_cancelled()
                if self.paused or not self.sampler.busy:
                    self._woken.clear()
                    continue
                try:
                    finished = await loop.run_in_executor(self.thread, self.sampler.step)
                except Exception as error:
                    finished = {}
                    self.sampler.cancel(self._completions)
                    for future in self._completions.values():
                        if not future.done():
                            future.set_exception(error)
                    self._completions.clear()
                for number, completion in finished.items():
                    future = self._completions.pop(number)
                    if not future.done():  # cancelled meanwhile
                        future.set_result(completion)

    def _forget_cancelled(self) -> None:
        cancelled = [number for number, f in self._completions.items() if f.cancelled()]
        self.sampler.cancel(cancelled)
        for number in cancelled:
            del self._completions[number]
