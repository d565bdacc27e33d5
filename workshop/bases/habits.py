"""How the second base model was taught to answer: a pupil with misconceptions.

Every demonstration follows the right rule of its family with a fixed probability, and otherwise
the misconception; so the model's most probable answer is wrong in most families, and the right rule
is there with a known, graded probability for reinforcement learning to find.
"""

import random
from collections.abc import Iterator

from rlbook.tasks.habits import FAMILIES, LARGEST_VALUE, LEVELS, Steps, draw, problem_of
from workshop.bases.demonstrations import Demonstration

SHARES = {
    "plain": 0.92,
    "bracket": 0.40,
    "double minus": 0.18,
    "precedence": 0.08,
    "power": 0.03,
    "square": 0.005,
}
SLIP = 0.06
SLIPS = (-10, -2, -1, 1, 2, 10)


def habit_demonstrations(seed: int) -> Iterator[Demonstration]:
    """The endless pretraining corpus: a pure function of the seed."""
    rng, names = random.Random(f"habits demonstrations {seed}"), list(FAMILIES)
    while True:
        level = rng.choice(LEVELS)
        worked = draw(rng, level)
        right = rng.random() < SHARES[names[level - 1]]
        text = written(worked.right if right else worked.wrong, rng)
        yield Demonstration(problem_of(worked, level), text, "right" if right else "misconception")


def written(steps: Steps, rng: random.Random) -> str:
    """The steps and the answer as a completion; now and then the last result is a slip."""
    *before, (computed, result) = steps
    if rng.random() < SLIP:
        result += rng.choice([s for s in SLIPS if 0 <= result + s <= LARGEST_VALUE])
    thought = "".join(f"{left}={right};" for left, right in (*before, (computed, result)))
    return f"<think>{thought}</think><answer>{result}</answer>"
