"""One prompt becomes a group of verified rollouts: sampling, forced interruption, reward."""

import asyncio
import re
from dataclasses import dataclass
from random import Random

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.engine import AsyncEngine, GenerationFailed, VersionedCompletion, all_of
from rlbook.scale.rollout.verify import Verifiers
from rlbook.tasks import Problem
from rlbook.training.batch import Rollout
from rlbook.training.collect import decode, derive_seed, encode, make_rollout, text_of
from rlbook.training.rewards import get_reward, give_rewards, rewards_of

CLOSING_TAG = re.compile(r"</\w+>")


@dataclass(frozen=True)
class Manner:
    """How a problem is asked, where that is not as in training.

    `task` judges the answers. A `max_new_tokens` of its own is a limit without interruption. Only
    generators with weights of `version` are asked, if one is named.
    """

    task: str | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    version: int | None = None


AS_IN_TRAINING = Manner()


class GroupSampler:
    """Samples groups from an engine and has them verified; keeps no state between calls."""

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer,
        verifiers: Verifiers,
        config: ScaleConfig,
    ):
        self.engine, self.tokenizer, self.verifiers = engine, tokenizer, verifiers
        self.rollout, self.generate, self.seed = config.rollout, config.generate, config.seed
        own = get_reward(config.data.reward) if config.data.reward else None
        self.rewards = rewards_of(config.resolved_method, config.rollout.max_new_tokens, own)
        self.rewarding = asyncio.Lock()  # a reward of one's own need not bear two threads
        if cut := config.generate.interruption:
            self.forced = tokenizer(cut.text, add_special_tokens=False).input_ids
            self.closing = CLOSING_TAG.search(cut.text)

    async def sample(
        self,
        problem: Problem,
        group: int,
        n: int,
        rewarded: bool = True,
        manner: Manner = AS_IN_TRAINING,
    ) -> list[Rollout]:
        """`n` verified rollouts of a problem, `rewarded` if they are for training.

        Raises `GenerationFailed`, also if a verifier failed, or `RequestRefused`.
        """
        prompt = encode(self.tokenizer, problem)
        written = await self.write(prompt, group, n, manner)
        rollouts = await asyncio.gather(
            *(self.judge(problem, group, prompt, *one, manner.task) for one in written)
        )
        if rewarded:
            async with self.rewarding:
                await asyncio.to_thread(give_rewards, rollouts, self.rewards)
        return rollouts

    async def write(
        self, prompt: list[int], group: int, n: int, manner: Manner
    ) -> list[tuple[VersionedCompletion, list[bool] | None]]:
        """Completions, each with the mask of its forced tokens."""
        cut = None if manner.max_new_tokens else self.generate.interruption
        if cut is None:
            limit = manner.max_new_tokens or self.rollout.max_new_tokens
            return [(one, None) for one in await self.ask(prompt, n, limit, manner)]
        if isinstance(cut.after, int):
            thoughts = await self.ask(prompt, n, cut.after, manner)
        else:
            limits = cut.limits(n, Random(derive_seed(self.seed, "interruption", group)))
            asked = await all_of(self.ask(prompt, 1, limit, manner) for limit in limits)
            thoughts = [thought for (thought,) in asked]
        return await all_of(self.finish(prompt, thought, manner) for thought in thoughts)

    async def finish(
        self, prompt: list[int], thought: VersionedCompletion, manner: Manner
    ) -> tuple[VersionedCompletion, list[bool] | None]:
        """The answer to a thought that ran out of tokens, after the text that interrupts it.

        A thought that has closed itself is in its answer already: it goes on without that text.
        """
        if thought.finish_reason == "stop":
            return thought, None
        forced = [] if self.closed(thought) else self.forced
        context = prompt + thought.token_ids + forced
        tokens = self.generate.interruption.answer_tokens
        (answer,) = await self.ask(context, 1, tokens, manner)
        mask = [False] * len(thought.token_ids) + [True] * len(forced)
        mask += [False] * len(answer.token_ids)
        return join(thought, forced, answer), mask if forced else None

    def closed(self, thought: VersionedCompletion) -> bool:
        return bool(self.closing) and self.closing[0] in decode(self.tokenizer, thought.token_ids)

    async def ask(
        self, prompt: list[int], n: int, tokens: int, manner: Manner
    ) -> list[VersionedCompletion]:
        """The engine's completions, within the time limit and of the promised shape."""
        own = manner.temperature
        temperature = self.rollout.temperature if own is None else own
        try:
            async with asyncio.timeout(self.generate.timeout):
                completions = await self.engine.complete(
                    prompt,
                    n,
                    max_new_tokens=tokens,
                    temperature=temperature,
                    version=manner.version,
                )
        except TimeoutError:
            limit = f"{self.generate.timeout:g} s (generate.timeout)"
            raise GenerationFailed(f"no completion within {limit}") from None
        check_shape(completions, n)
        return completions

    async def judge(
        self,
        problem: Problem,
        group: int,
        prompt: list[int],
        completion: VersionedCompletion,
        forced: list[bool] | None,
        task: str | None,
    ) -> Rollout:
        text = text_of(self.tokenizer, completion)
        finished = completion.finish_reason == "stop"
        verdict = await self.verifiers.verify(problem, text, finished, task)
        rollout = make_rollout(
            problem, group, prompt, completion, completion.versions, text, verdict
        )
        rollout.forced = forced
        return rollout


def join(
    thought: VersionedCompletion, forced: list[int], answer: VersionedCompletion
) -> VersionedCompletion:
    """One completion; forced tokens carry log-probability 0 and the version that read them."""
    read_by = answer.versions[0]
    return VersionedCompletion(
        token_ids=thought.token_ids + forced + answer.token_ids,
        logps=thought.logps + [0.0] * len(forced) + answer.logps,
        finish_reason=answer.finish_reason,
        versions=thought.versions + [read_by] * len(forced) + answer.versions,
    )


def check_shape(completions: list[VersionedCompletion], n: int) -> None:
    """Raises `GenerationFailed` unless there are `n` completions with a value per token."""
    lengths = [{len(c.token_ids), len(c.logps), len(c.versions)} for c in completions]
    if len(completions) != n or any(len(sizes) > 1 or 0 in sizes for sizes in lengths):
        raise GenerationFailed(
            f"malformed reply: {len(completions)} completions for {n} asked, with lengths of "
            f"tokens, log-probabilities and versions {[sorted(sizes) for sizes in lengths]}"
        )
