"""One prompt becomes a group of rollouts: sampling, episodes, verdicts, rewards."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import HTTPEngine, Stay
from rlbook.scale.generate.protocol import GenerationFailed, all_of
from rlbook.scale.rollout.worlds import Worlds
from rlbook.tasks import Environment, Problem, Verdict, get_task
from rlbook.tasks.registry import environment
from rlbook.tasks.sandbox.bounded import BoundedWorker
from rlbook.training.batch import Rollout
from rlbook.training.chat import Dialect, encode
from rlbook.training.config import derive_seed
from rlbook.training.episodes import Ask, Limits, asked, dialogue
from rlbook.training.judge import rollouts_of, rollouts_of_turns, stop_of, take_verdict
from rlbook.training.rewards import give_rewards, rewards_of


class Verifiers:
    """A task's verifier in `count` processes, off the event loop; a verdict may compute `seconds`.

    A process that hangs, dies or fails is replaced and asked once more. Out of time twice, the
    completion counts as wrong, for the reason "timeout": its own text keeps the verifier busy, for
    only time in which it computes is counted. Any other failure, also a host that is too busy to
    run it, gives no verdict. `events` counts attempts without a verdict, "verify_timeouts" and
    "verify_errors".
    """

    def __init__(self, task: str, count: int = 1, seconds: float = 5.0):
        self.task, self.seconds = task, seconds
        self.events: Counter[str] = Counter()
        self.workers = [BoundedWorker() for _ in range(count)]
        self._idle: asyncio.Queue[BoundedWorker] = asyncio.Queue()
        for worker in self.workers:
            self._idle.put_nowait(worker)

    async def verify(
        self, problem: Problem, completion: str, finished: bool = True, task: str | None = None
    ) -> Verdict:
        """The verdict on a completion (EOS excluded), of another task if one is named.

        Raises `GenerationFailed` if the verifier itself failed twice: the group is asked again.
        """
        answer = {"problem": asdict(problem), "completion": completion, "finished": finished}
        request = {"scorer": "task", "task": task or self.task, **answer}
        for again in (False, True):
            worker = await self._idle.get()
            try:
                return Verdict(**await asyncio.to_thread(worker.call, request, self.seconds))
            except (TimeoutError, RuntimeError) as error:
                failure, late = error, isinstance(error, TimeoutError)
                if late and again:
                    return Verdict(False, False, None, "timeout")
                self.events["verify_timeouts" if late else "verify_errors"] += 1
            finally:
                self._idle.put_nowait(worker)
        raise GenerationFailed(f"no verdict on an answer to {problem.id}: {failure}")

    def close(self) -> None:
        """End the worker processes."""
        for worker in self.workers:
            worker.close()


@dataclass
class GroupSampler:
    """Samples groups from an engine and has them verified.

    Raises `GenerationFailed`, also if a verifier failed, or `RequestRefused`.
    """

    engine: HTTPEngine
    tokenizer: PreTrainedTokenizerBase
    verifiers: Verifiers
    config: ScaleConfig
    asking: Callable[[], AbstractContextManager] = nullcontext  # around every group
    worlds: Worlds | None = None  # of a run with an environment

    def __post_init__(self) -> None:
        self.rewards = rewards_of(self.config)
        task = get_task(self.config.data.task)
        self.stop = stop_of(self.tokenizer, task, self.config.rollout.stop)
        self.rewarding = ThreadPoolExecutor(1)  # a reward of one's own need not bear two threads

    async def rewarded(self, problem: Problem, group: int) -> list[Rollout]:
        """A group to train on, rewarded; it knows a greedy answer's reward if the method asks."""
        rollouts, greedy = await self.sample(problem, group, self.config.rollout.group_size), []
        if "greedy" in self.config.method.requirements():
            greedy = await self.sample(problem, group, 1, temperature=0.0)
        in_turn = partial(asyncio.get_running_loop().run_in_executor, self.rewarding)
        for written in filter(None, (rollouts, greedy)):
            await in_turn(give_rewards, written, self.rewards)
        for rollout in rollouts:
            rollout.greedy_reward = greedy[0].reward if greedy else None
        return rollouts

    async def sample(
        self,
        problem: Problem,
        group: int,
        n: int,
        task: str | None = None,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ) -> list[Rollout]:
        """`n` verified rollouts of a problem, asked as in training where nothing else is said.

        `task` judges the answers. A `max_new_tokens` of its own is a limit without interruption.
        """
        rollout = self.config.rollout
        prompt = encode(self.tokenizer, problem, self.config.model.chat)
        usual = rollout.temperature if temperature is None else temperature

        async def judge(one: Rollout) -> None:
            verdict = await self.verifiers.verify(problem, one.text, not one.truncated, task)
            take_verdict(one, verdict)

        with self.asking():
            name = task or self.config.data.task
            if world := environment(name):
                return await self.played(world, name, problem, group, n, usual, max_new_tokens)
            if (cut := self.config.generate.interruption) and not max_new_tokens:
                luck = derive_seed(self.config.seed, "interruption", group)
                episodes = cut.episodes(self.tokenizer, prompt, n, luck)
                turns = await all_of(asked(self.asker(usual), one) for one in episodes)
                written = [one.completion() for one in turns]
            else:
                limit = max_new_tokens or rollout.max_new_tokens
                written = await self.engine.complete(
                    prompt, n, max_new_tokens=limit, temperature=usual
                )
            rollouts = rollouts_of(
                self.tokenizer, [problem], [prompt], written, n, first_group=group, stop=self.stop
            )
            await asyncio.gather(*map(judge, rollouts))
            return rollouts

    async def played(
        self,
        world: Environment,
        name: str,
        problem: Problem,
        group: int,
        n: int,
        temperature: float,
        max_new_tokens: int | None,
    ) -> list[Rollout]:
        """`n` judged episodes of a problem, side by side."""
        assert self.worlds, "an orchestrator has processes for its environment"
        rollout = self.config.rollout
        limit = max_new_tokens or rollout.max_new_tokens
        limits = Limits(limit, rollout.max_turns, rollout.turn_tokens)
        dialect = Dialect.of(self.tokenizer, world, self.config.model.chat)
        luck = [derive_seed(self.config.seed, "world", group, i) for i in range(n)]
        async with self.worlds.seats(name, problem, luck) as seats:
            episodes = [dialogue(problem, seat, dialect, limits) for seat in seats]
            turns = await all_of(
                asked(self.asker(temperature), one, self.worlds.tell) for one in episodes
            )
            rollouts = rollouts_of_turns(
                self.tokenizer, world.name, [problem], turns, n, first_group=group
            )
            for one, seat in zip(rollouts, seats, strict=True):
                take_verdict(one, await self.worlds.verdict(seat))
        return rollouts

    def asker(self, temperature: float) -> Callable[[Ask], Awaitable[Completion]]:
        """Asks for one episode, whose turns stay on one server."""
        stay = Stay(self.config.generate.kv == "keep")

        async def ask(want: Ask) -> Completion:
            (one,) = await self.engine.complete(
                want.token_ids,
                1,
                max_new_tokens=want.room,
                temperature=temperature,
                stop=want.stop,
                stay=stay,
            )
            return one

        return ask
