"""Every data set of the reasoning-gym library as a task."""

import re
from collections.abc import Sequence

from rlbook.extras import require
from rlbook.tasks.base import Problem, Verdict
from rlbook.tasks.formats import format_reward, r1_prompt, tagged_answer
from rlbook.tasks.sandbox.bounded import WORKER

MAX_COMPLETION_CHARS, MAX_ANSWER_CHARS = 200_000, 4_000

_ARITHMETIC = re.compile(r"(?!.*\*\*)[0-9+\-*/() ]{1,200}")
_ALGEBRA = re.compile(
    r"(?:[0-9]{1,12}(?:\.[0-9]{1,12})?|(?<![a-zA-Z])(?:sin|cos|tan|exp|log|sqrt|[a-zA-Z])"
    r"(?![a-zA-Z])|\*\*[0-9]{1,2}|[-+*/^() ])*"
)
PARSED_AS_CODE = {
    "countdown": _ARITHMETIC,
    "puzzle24": _ARITHMETIC,
    "polynomial_multiplication": _ALGEBRA,
    "simple_integration": _ALGEBRA,
    "intermediate_integration": _ALGEBRA,
}


class ReasoningGymTask:
    """A reasoning-gym data set: prompts in the R1 template, answers judged by its own scorer.

    An answer is correct if the scorer gives at least `threshold` (1.0: full marks; many scorers
    give part marks). The scorer runs in a worker process, killed after `seconds`. Some scorers
    hand the answer to `eval` or to a parser that calls it: there, only literals or plain
    arithmetic pass (`PARSED_AS_CODE`), anything else is ``unsafe_answer``.

    Other reasons: ``ok``, ``wrong``, ``truncated``, ``too_long``, ``timeout``, ``error`` and
    the faults of `tagged_answer`. Raises `ImportError` if the library is missing, `ValueError`
    for an unknown data set.
    """

    levels = (0,)

    def __init__(self, dataset: str, threshold: float = 1.0, seconds: float = 5.0) -> None:
        require("tasks", "reasoning_gym")
        from reasoning_gym.factory import DATASETS

        if dataset not in DATASETS or dataset == "composite":
            raise ValueError(
                f"reasoning-gym has no single data set {dataset!r}: {sorted(DATASETS)}"
            )
        self.dataset, self.threshold, self.seconds = dataset, threshold, seconds
        self.name = f"reasoning_gym:{dataset}"

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """The data set's first `n` entries for this seed; it has one level, 0."""
        if levels is not None and set(levels) != {0}:
            raise ValueError(f"{self.name} has one level, 0, got {tuple(levels)}")
        import reasoning_gym

        entries = reasoning_gym.create_dataset(self.dataset, seed=seed, size=n)
        return [
            Problem(
                id=f"{self.dataset}/{seed}/{i}",
                prompt=r1_prompt(entry["question"]),
                answer=str(entry["answer"]),
                meta={"seed": seed, "index": i, "size": n},
            )
            for i, entry in enumerate(entries)
        ]

    def verify(self, problem: Problem, completion: str, finished: bool = True) -> Verdict:
        """Score the one final `<answer>` block."""
        if len(completion) > MAX_COMPLETION_CHARS:
            return Verdict(False, False, None, "too_long")
        if not finished:
            return Verdict(False, False, None, "truncated")
        format_ok = format_reward(completion) == 1.0
        answer, fault = tagged_answer(completion)
        if answer is None:
            return Verdict(False, format_ok, None, fault)
        if len(answer) > MAX_ANSWER_CHARS:
            return Verdict(False, format_ok, None, "too_long")
        allowed = PARSED_AS_CODE.get(self.dataset)
        if allowed and not allowed.fullmatch(answer):
            return Verdict(False, format_ok, None, "unsafe_answer")
        correct, reason = self._judge(problem, answer)
        return Verdict(correct, format_ok, answer, reason)

    def _judge(self, problem: Problem, answer: str) -> tuple[bool, str]:
        request = {"scorer": "gym", "dataset": self.dataset, "answer": answer, **problem.meta}
        try:
            score = WORKER.call(request, self.seconds)["score"]
        except TimeoutError:
            return False, "timeout"
        except RuntimeError:
            return False, "error"
        correct = score >= self.threshold
        return correct, "ok" if correct else "wrong"
