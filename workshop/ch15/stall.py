"""A right step that may be said again: what credit makes of a policy that could finish instead.

At each place the policy finishes, which is right with a fixed chance, or says its step once more.
Behind the last place it is cut off, which earns nothing. Gradients are sums over all answers.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

Array = Float[np.ndarray, " P"]
Gains = Callable[[Sequence[float], float], Sequence[float]]


def answers(again: Array, chance: float) -> list[tuple[float, int, float]]:
    """(probability, places passed, reward) of every answer, the one that is cut off last."""
    reach = np.cumprod([1.0, *again])
    finished = [
        (reach[place] * (1 - p) * of, place, reward)
        for place, p in enumerate(again)
        for reward, of in ((1.0, chance), (0.0, 1 - chance))
    ]
    return [*finished, (reach[-1], len(again), 0.0)]


def true_values(again: Array, chance: float) -> Array:
    """V before each place: what the answers that come there earn on average."""
    told = answers(again, chance)
    return np.array(
        [
            sum(p * r for p, passed, r in told if passed >= place)
            / sum(p for p, passed, _ in told if passed >= place)
            for place in range(len(again))
        ]
    )


def climb(
    gains: Gains,
    worth: Callable[[Array], Array],
    places: int = 8,
    chance: float = 0.5,
    updates: int = 60,
    lr: float = 2.0,
) -> list[float]:
    """Mean number of steps before the first and after each exact update, credit by `gains`.

    `worth` makes of the true values what the credit believes of a prefix.
    """
    logits = np.zeros(places)
    path = []
    for _ in range(updates + 1):
        again = 1 / (1 + np.exp(-logits))
        told = answers(again, chance)
        path.append(float(sum(p * min(passed + 1, places) for p, passed, _ in told)))
        u, slope = worth(true_values(again, chance)), np.zeros(places)
        for p, passed, reward in told:
            said = min(passed + 1, places)  # choices made: to go on, and to finish or be cut off
            chose = np.arange(said) < passed  # True where the step was said again
            slope[:said] += p * np.array(gains(list(u[:said]), reward)) * (chose - again[:said])
        logits += lr * slope
    return path
