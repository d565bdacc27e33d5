"""One prompt becomes a group of rollouts: sampling, forced interruption, verdicts, rewards."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.scale.config import Interruption, ScaleConfig
from rlbook.scale.generate.protocol import GenerationFailed, all_of
from rlbook.tasks import Problem, Verdict
from rlbook.tasks.sandbox.bounded import BoundedWorker
from rlbook.training.batch import Rollout
from rlbook.training.chat import decode, encode
from rlbook.training.config import derive_seed
from rlbook.training.judge import rollouts_of, take_verdict
from rlbook.training.rewards import give_rewards, rewards_of

if TYPE_CHECKING:
    from rlbook.scale.generate.client import HTTPEngine

CLOSING_TAG = re.compile(r"</\w+>")


class Verifiers:
    """A task's verifier in `count` processes, off the event loop; a verdict may compute `seconds`.

    A process that hangs, dies or fails is replaced and asked once more. Out of time twice, the
    completion counts as wrong, for the reason "timeout": its own text keeps the verifier busy, for
    only time in which it computes is counted. Any other failure, also a host that is too busy to
    run it, gives no verdict. `events` counts "verify_timeouts" and "verify_errors".
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
        for _ in range(2):
            worker = await self._idle.get()
            try:
                return Verdict(**await asyncio.to_thread(worker.call, request, self.seconds))
            except (TimeoutError, RuntimeError) as error:
                failure, late = error, isinstance(error, TimeoutError)
                self.events["verify_timeouts" if late else "verify_errors"] += 1
            finally:
                self._idle.put_nowait(worker)
        if late:
            return Verdict(False, False, None, "timeout")
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

    engine: "HTTPEngine"
    tokenizer: PreTrainedTokenizerBase
    verifiers: Verifiers
    config: ScaleConfig
    asking: Callable[[], AbstractContextManager] = nullcontext  # around every group

    def __post_init__(self) -> None:
        self.rewards = rewards_of(self.config)
        self.rewarding = asyncio.Lock()  # a reward of one's own need not bear two threads

    async def rewarded(self, problem: Problem, group: int) -> list[Rollout]:
        """A group to train on, rewarded; it knows a greedy answer's reward if the method asks."""
        rollouts, greedy = await self.sample(problem, group, self.config.rollout.group_size), []
        if "greedy" in self.config.method.requirements():
            greedy = await self.sample(problem, group, 1, temperature=0.0)
        async with self.rewarding:
            for written in filter(None, (rollouts, greedy)):
                await asyncio.to_thread(give_rewards, written, self.rewards)
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
        prompt, rollout = encode(self.tokenizer, problem), self.config.rollout
        usual = rollout.temperature if temperature is None else temperature
        ask = partial(self.engine.complete, temperature=usual)

        async def judge(one: Rollout) -> None:
            verdict = await self.verifiers.verify(problem, one.text, not one.truncated, task)
            take_verdict(one, verdict)

        with self.asking():
            if (cut := self.config.generate.interruption) and not max_new_tokens:
                limits = cut.limits(n, Random(derive_seed(self.config.seed, "interruption", group)))
                written = await all_of(self.interrupted(ask, prompt, one, cut) for one in limits)
            else:
                limit = max_new_tokens or rollout.max_new_tokens
                written = await ask(prompt, n, max_new_tokens=limit)
            rollouts = rollouts_of(
                self.tokenizer, [problem], [prompt], written, n, first_group=group
            )
            await asyncio.gather(*map(judge, rollouts))
            return rollouts

    async def interrupted(
        self, ask: partial, prompt: list[int], limit: int, cut: Interruption
    ) -> Completion:
        """A thought, and if it runs out of tokens, its answer after the text that interrupts it.

        A thought that has closed itself, with the marker that would be forced on it, is in its
        answer already: it goes on without that text. Forced tokens carry log-probability 0 and the
        version that read them.
        """
        (thought,) = await ask(prompt, 1, max_new_tokens=limit)
        if thought.finish_reason == "stop":
            return thought
        marker = CLOSING_TAG.search(cut.text)
        closed = marker and marker[0] in decode(self.tokenizer, thought.token_ids)
        forced = [] if closed else self.tokenizer(cut.text, add_special_tokens=False).input_ids
        context = prompt + thought.token_ids + forced
        (answer,) = await ask(context, 1, max_new_tokens=cut.answer_tokens)
        before, added, after = len(thought.token_ids), len(forced), len(answer.token_ids)
        return Completion(
            token_ids=thought.token_ids + forced + answer.token_ids,
            logps=thought.logps + [0.0] * added + answer.logps,
            finish_reason=answer.finish_reason,
            versions=thought.versions + answer.versions[:1] * added + answer.versions,
            forced=[False] * before + [True] * added + [False] * after if forced else None,
        )
