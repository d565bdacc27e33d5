"""The process behind `rlbook.tasks.bounded`: reads requests, writes scores, one JSON per line."""

import ast
import contextlib
import importlib
import json
import os
import sys
from functools import lru_cache

MEMORY_BYTES = 4 << 30
EVALUATING_MODULES = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)


def score_math(request: dict) -> dict:
    """Whether two LaTeX expressions are equal, judged by math-verify."""
    import math_verify

    config = [math_verify.LatexExtractionConfig()]
    answer, reference = (
        math_verify.parse(f"\\boxed{{{text}}}", config, parsing_timeout=None)
        for text in (request["answer"], request["reference"])
    )
    equal = bool(reference) and math_verify.verify(reference, answer, timeout_seconds=None)
    return {"parsed": bool(answer), "reference_parsed": bool(reference), "correct": bool(equal)}


def score_gym(request: dict) -> dict:
    """The reasoning-gym data set's own score of one answer."""
    dataset = gym_dataset(request["dataset"], request["seed"], request["size"])
    entry = dataset[request["index"]]
    return {"score": float(dataset.score_answer(request["answer"], entry))}


@lru_cache(maxsize=8)
def gym_dataset(name: str, seed: int, size: int):
    """A data set whose scorer, where it would `eval` the answer, reads a literal instead."""
    import reasoning_gym

    for module in EVALUATING_MODULES:
        importlib.import_module(f"reasoning_gym.{module}").eval = ast.literal_eval
    return reasoning_gym.create_dataset(name, seed=seed, size=size)


SCORERS = {"math": (score_math, "math_verify"), "gym": (score_gym, "reasoning_gym")}


def main() -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    limit_memory(MEMORY_BYTES)
    for line in sys.stdin:
        request = json.loads(line)
        score, library = SCORERS[request["scorer"]]
        try:
            warm_up = request.get("warm_up")
            reply = {"ready": importlib.import_module(library) and True} if warm_up else None
            reply = reply or score(request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def limit_memory(size: int) -> None:
    """Cap the address space where the system can (not on Windows, not enforced on macOS)."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()
