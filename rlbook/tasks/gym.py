"""Every data set of the reasoning-gym library as a task."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

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

    `levels` grades the data set: settings of its own by level, such as
    `{2: {"min_terms": 2, "max_terms": 2}}` for "chain_sum". Without them there is one level, 0.

    Other reasons: ``ok``, ``wrong``, ``truncated``, ``too_long``, ``timeout``, ``error`` and
    the faults of `tagged_answer`. Raises `ImportError` if the library is missing, `ValueError`
    for an unknown data set.
    """

    def __init__(
        self,
        dataset: str,
        threshold: float = 1.0,
        seconds: float = 5.0,
        levels: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        require("tasks", "reasoning_gym")
        from reasoning_gym.factory import DATASETS

        if dataset not in DATASETS or dataset == "composite":
            raise ValueError(
                f"reasoning-gym has no single data set {dataset!r}: {sorted(DATASETS)}"
            )
        self.dataset, self.threshold, self.seconds = dataset, threshold, seconds
        self.name = f"reasoning_gym:{dataset}"
        self.settings = {level: dict(one) for level, one in (levels or {0: {}}).items()}
        self.levels = tuple(self.settings)

    def sample(self, seed: int, n: int, levels: Sequence[int] | None = None) -> list[Problem]:
        """The data set's first `n` entries for this seed, levels drawn uniformly where it has any.

        Raises `ValueError` for a level it does not have.
        """
        levels = self.levels if levels is None else tuple(levels)
        if not levels or not set(levels) <= set(self.levels):
            raise ValueError(f"{self.name} has the levels {self.levels}, got {levels}")
        rng = random.Random(f"gym {seed}")
        drawn = [rng.choice(levels) for _ in range(n)]
        sets = {level: self._entries(seed, n, level) for level in set(drawn)}
        return [self._problem(sets[level][i], seed, i, n, level) for i, level in enumerate(drawn)]

    def _entries(self, seed: int, n: int, level: int) -> Any:
        import reasoning_gym

        return reasoning_gym.create_dataset(self.dataset, seed=seed, size=n, **self.settings[level])

    def _problem(self, entry: Mapping[str, Any], seed: int, i: int, n: int, level: int) -> Problem:
        graded = f"/level {level}" if self.settings[level] else ""
        settings = {"settings": self.settings[level]} if self.settings[level] else {}
        return Problem(
            id=f"{self.dataset}/{seed}/{i}{graded}",
            prompt=r1_prompt(entry["question"]),
            answer=str(entry["answer"]),
            level=level,
            meta={"seed": seed, "index": i, "size": n, **settings},
        )

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
