"""From completions to rollouts: the verifier's word on each, and the rewards of them all."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from rlbook.policy import Completion
from rlbook.tasks import Problem, Task, Verdict
from rlbook.training.batch import Rollout
from rlbook.training.chat import text_of
from rlbook.training.rewards import Reward, give_rewards


def judged(
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    completions: Sequence[Completion],
    rewards: Sequence[Reward],
    version: int = 0,
    *,
    first_group: int = 0,
) -> list[Rollout]:
    """From completions to rollouts: the verifier's word on each, then the rewards of them all.

    Every problem, with its `prompts` of token ids, has as many completions, adjacent. Groups count
    from `first_group`; for `version` see `make_rollout`.
    """
    each, rollouts = len(completions) // max(1, len(problems)), []
    for index, completion in enumerate(completions):
        place = index // each
        problem, text = problems[place], text_of(tokenizer, completion)
        verdict = task.verify(problem, text, completion.finish_reason == "stop")
        group = first_group + place
        rollouts.append(
            make_rollout(problem, group, prompts[place], completion, text, verdict, version)
        )
    give_rewards(rollouts, rewards)
    return rollouts


def make_rollout(
    problem: Problem,
    group: int,
    prompt_ids: list[int],
    completion: Completion,
    text: str,
    verdict: Verdict,
    version: int = 0,
) -> Rollout:
    """A completion with its provenance and the verifier's word on it.

    `version` wrote all of its tokens, if the completion does not say itself which weights did.
    """
    versions = completion.versions or [version] * len(completion.token_ids)
    return Rollout(
        problem=problem,
        group=group,
        prompt_ids=prompt_ids,
        token_ids=completion.token_ids,
        logps=completion.logps,
        versions=versions,
        finish_reason=completion.finish_reason,
        text=text,
        correct=verdict.correct,
        format_ok=verdict.format_ok,
        forced=completion.forced,
        answer=verdict.answer,
    )


def labeller(task: Task) -> Callable[[Rollout], str] | None:
    """The task's own name for a kind of answer (`Task.label`), for a rollout; None without one."""
    label = getattr(task, "label", None)
    return label and (lambda r: label(r.problem, r.text, not r.truncated))
