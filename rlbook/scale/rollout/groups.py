"""One prompt becomes a group of verified rollouts: sampling, forced interruption, reward."""

import asyncio
import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import GenerationFailed, all_of
from rlbook.scale.rollout.verify import Verifiers
from rlbook.tasks import Problem
from rlbook.training.batch import Rollout
from rlbook.training.config import derive_seed
from rlbook.training.rewards import give_rewards, rewards_of
from rlbook.training.rollouts import decode, encode, make_rollout, text_of

if TYPE_CHECKING:
    from rlbook.scale.generate.client import HTTPEngine

CLOSING_TAG = re.compile(r"</\w+>")


@dataclass(frozen=True)
class Manner:
    """How a problem is asked, where that is not as in training.

    `task` judges the answers. A `max_new_tokens` of its own is a limit without interruption.
    """

    task: str | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None


AS_IN_TRAINING = Manner()
GREEDY = Manner(temperature=0.0)


class GroupSampler:
    """Samples groups from an engine and has them verified; keeps no state between calls."""

    def __init__(
        self,
        engine: "HTTPEngine",
        tokenizer,
        verifiers: Verifiers,
        config: ScaleConfig,
    ):
        self.engine, self.tokenizer, self.verifiers = engine, tokenizer, verifiers
        self.rollout, self.generate, self.seed = config.rollout, config.generate, config.seed
        self.rewards = rewards_of(config)
        self.compares = "greedy" in config.method.requirements()  # with a greedy answer
        self.rewarding = asyncio.Lock()  # a reward of one's own need not bear two threads
        if cut := config.generate.interruption:
            self.forced = tokenizer(cut.text, add_special_tokens=False).input_ids
            self.answer_tokens = cut.answer_tokens
            marker = CLOSING_TAG.search(cut.text)
            self.closing = marker and marker[0]

    async def sample(
        self,
        problem: Problem,
        group: int,
        n: int,
        rewarded: bool = True,
        manner: Manner = AS_IN_TRAINING,
    ) -> list[Rollout]:
        """`n` verified rollouts of a problem, `rewarded` if they are for training.

        A method that compares with a greedy answer has one more written, of which the rollouts
        know the reward.

        Raises `GenerationFailed`, also if a verifier failed, or `RequestRefused`.
        """
        rollouts = await self.verified(problem, group, n, manner)
        if rewarded:
            await self.reward(rollouts)
        if rewarded and self.compares:
            (greedy,) = await self.verified(problem, group, 1, GREEDY)
            await self.reward([greedy])
            for rollout in rollouts:
                rollout.greedy_reward = greedy.reward
        return rollouts

    async def reward(self, rollouts: list[Rollout]) -> None:
        """Write the rewards of a group into it."""
        async with self.rewarding:
            await asyncio.to_thread(give_rewards, rollouts, self.rewards)

    async def verified(self, problem: Problem, group: int, n: int, manner: Manner) -> list[Rollout]:
        """`n` rollouts of a problem with the verifier's word on each."""
        prompt = encode(self.tokenizer, problem)

        async def judged(written: Completion) -> Rollout:
            text, finished = text_of(self.tokenizer, written), written.finish_reason == "stop"
            verdict = await self.verifiers.verify(problem, text, finished, manner.task)
            return make_rollout(problem, group, prompt, written, text, verdict)

        return await asyncio.gather(*map(judged, await self.write(prompt, group, n, manner)))

    async def write(
        self, prompt: list[int], group: int, n: int, manner: Manner
    ) -> list[Completion]:
        """Completions, interrupted where the settings say so."""
        cut = None if manner.max_new_tokens else self.generate.interruption
        if cut is None:
            limit = manner.max_new_tokens or self.rollout.max_new_tokens
            return await self.ask(prompt, n, limit, manner)
        if isinstance(cut.after, int):
            thoughts = await self.ask(prompt, n, cut.after, manner)
        else:
            limits = cut.limits(n, Random(derive_seed(self.seed, "interruption", group)))
            asked = await all_of(self.ask(prompt, 1, limit, manner) for limit in limits)
            thoughts = [thought for (thought,) in asked]
        return await all_of(self.finish(prompt, thought, manner) for thought in thoughts)

    async def finish(self, prompt: list[int], thought: Completion, manner: Manner) -> Completion:
        """The answer to a thought that ran out of tokens, after the text that interrupts it.

        A thought that has closed itself, with the marker that would be forced on it, is in its
        answer already: it goes on without that text. Forced tokens carry log-probability 0 and the
        version that read them.
        """
        if thought.finish_reason == "stop":
            return thought
        said = decode(self.tokenizer, thought.token_ids)
        forced = [] if self.closing and self.closing in said else self.forced
        context = prompt + thought.token_ids + forced
        (answer,) = await self.ask(context, 1, self.answer_tokens, manner)
        assert thought.versions and answer.versions  # they were asked for
        before, added, after = len(thought.token_ids), len(forced), len(answer.token_ids)
        return Completion(
            token_ids=thought.token_ids + forced + answer.token_ids,
            logps=thought.logps + [0.0] * added + answer.logps,
            finish_reason=answer.finish_reason,
            versions=thought.versions + [answer.versions[0]] * added + answer.versions,
            forced=[False] * before + [True] * added + [False] * after if forced else None,
        )

    async def ask(self, prompt: list[int], n: int, tokens: int, manner: Manner) -> list[Completion]:
        """The engine's completions, within the time limit and with a value per token."""
        own = manner.temperature
        temperature = self.rollout.temperature if own is None else own
        try:
            async with asyncio.timeout(self.generate.timeout):
                completions = await self.engine.complete(
                    prompt, n, max_new_tokens=tokens, temperature=temperature
                )
        except TimeoutError:
            limit = f"{self.generate.timeout:g} s (generate.timeout)"
            raise GenerationFailed(f"no completion within {limit}") from None
        lengths = [{len(c.token_ids), len(c.logps), len(c.versions or ())} for c in completions]
        if len(completions) != n or any(len(sizes) > 1 or 0 in sizes for sizes in lengths):
            raise GenerationFailed(
                f"malformed reply: {len(completions)} completions for {n} asked, with lengths of "
                f"tokens, log-probabilities and versions {[sorted(sizes) for sizes in lengths]}"
            )
        return completions
