"""From completions to rewarded rollouts, for notebook, nano and rooms: text, verdict, rewards.

`judged(rollouts_of(…), task, rewards)` is all of it. Whoever verifies elsewhere, as the rooms do in
processes, hands what comes back to `take_verdict`, and the rollouts to `give_rewards`.
"""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from rlbook.importing import errors_of
from rlbook.policy import Completion, StopTexts, stopping
from rlbook.tasks import AnyTask, Environment, Problem, Task, Verdict, stop_texts
from rlbook.tasks.base import listed, verdict_of
from rlbook.training.batch import Rollout
from rlbook.training.chat import text_of
from rlbook.training.engine import checked_completions
from rlbook.training.episodes import Turns
from rlbook.training.rewards import Reward, VerifierReward, give_rewards


def rollouts_of(
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    completions: Sequence[Completion],
    n: int,
    *,
    version: int = 0,
    first_group: int = 0,
    engine: str = "the engine",
    stop: StopTexts | None = None,
) -> list[Rollout]:
    """Completions with text and provenance, before anybody has judged them.

    Every problem, with its `prompts` of token ids, has `n` of them, adjacent; groups count from
    `first_group`. `version` wrote all tokens of a completion that does not say itself who did;
    behind a text of `stop` nothing counts.
    Raises `ValueError` naming the `engine` for completions that do not fit what was asked.
    """
    asked = [(place, prompt) for place, prompt in enumerate(prompts) for _ in range(n)]
    completions = checked_completions(completions, len(prompts), n, engine)
    completions = [stop.cut(one) for one in completions] if stop else completions
    return [
        Rollout(
            problem=problems[place],
            group=first_group + place,
            prompt_ids=prompt,
            token_ids=one.token_ids,
            logps=one.logps,
            versions=one.versions or [version] * len(one.token_ids),
            finish_reason=one.finish_reason,
            text=text_of(tokenizer, one, stop.texts if stop else ()),
            forced=one.forced,
        )
        for (place, prompt), one in zip(asked, completions, strict=True)
    ]


def rollouts_of_turns(
    tokenizer: PreTrainedTokenizerBase,
    world: str,
    problems: Sequence[Problem],
    episodes: Sequence[Turns],
    n: int,
    *,
    version: int = 0,
    first_group: int = 0,
) -> list[Rollout]:
    """`rollouts_of` for episodes of a `world`.

    Raises `ValueError` naming the world for episodes of one problem that begin with different
    prompts, and for one that pays for some of its turns.
    """
    groups = [episodes[i * n : (i + 1) * n] for i in range(len(problems))]
    for problem, group in zip(problems, groups, strict=True):
        if any(one.prompt_ids != group[0].prompt_ids for one in group):
            raise ValueError(
                f"{world}: episodes of {problem.id} begin with different prompts, and a group is "
                "compared: what all of them share stands in the problem, `seed` is each one's luck"
            )
    prompts, written = [group[0].prompt_ids for group in groups], [e.completion() for e in episodes]
    rollouts = rollouts_of(
        tokenizer, problems, prompts, written, n, version=version, first_group=first_group
    )
    for rollout, one in zip(rollouts, episodes, strict=True):
        rollout.turn_of, rollout.places = one.turn_of, one.places
        rollout.earned, rollout.world_seconds = one.paid(world), one.world_seconds
    return rollouts


def stop_of(
    tokenizer: PreTrainedTokenizerBase, task: AnyTask, texts: Sequence[str] | None
) -> StopTexts | None:
    """What ends completions besides EOS tokens: these texts, or if None those of the task.

    Raises `ValueError` for an environment with such texts: its turns end with tokens.
    """
    texts = stop_texts(task) if texts is None else listed("stop", texts)
    if texts and isinstance(task, Environment):
        raise ValueError(
            f"stop {list(texts)}: turns with {task.name} end with single tokens: name them in its "
            "`ends`, and leave rollout.stop out"
        )
    return stopping(tokenizer, texts)


def judged(
    rollouts: list[Rollout], task: Task, rewards: Sequence[Reward] = (VerifierReward(),)
) -> list[Rollout]:
    """The same rollouts, each with the task's verdict, then with all rewards."""
    for rollout in rollouts:
        verdict = verdict_of(task, rollout.problem, rollout.text, not rollout.truncated)
        take_verdict(rollout, verdict)
    give_rewards(rollouts, rewards)
    return rollouts


def take_verdict(rollout: Rollout, verdict: Verdict) -> None:
    """Write a verifier's word on a rollout into it."""
    rollout.correct, rollout.format_ok = verdict.correct, verdict.format_ok
    rollout.answer, rollout.reason, rollout.score = verdict.answer, verdict.reason, verdict.score
    if rollout.earned is not None and verdict.score is not None:
        raise ValueError(
            f"an episode of {rollout.problem.id} was paid for its turns, and once more at its end "
            f"(score {verdict.score:g}): a world pays with `Reply.reward` or `Verdict.score`"
        )


def labeller(task: AnyTask) -> Callable[[Rollout], str] | None:
    """The task's own name for a kind of answer (`Task.label`), for a rollout; None without one."""
    label = getattr(task, "label", None)
    if label is None:
        return None

    def labelled(rollout: Rollout) -> str:
        name = f"task {task.name!r}: label, for an answer to {rollout.problem.id},"
        with errors_of(name):
            word = label(rollout.problem, rollout.text, not rollout.truncated)
        if not isinstance(word, str):
            raise ValueError(f"{name} returned {word!r:.60}: return one word")
        return word

    return labelled
