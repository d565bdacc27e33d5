"""Chapter 01: its questions, each with what is run, claimed, printed and asked of it."""

import pandas as pd

from workshop.shared.question import Question
from workshop.shared.scorecard import Questions


def live(results: pd.DataFrame, cooling: pd.DataFrame) -> dict[str, str]:
    """What the rows quote of the chapter's own runs, by row and world."""
    runs, found = results.set_index(["arm", "world"]), {}
    for world in cooling:
        before = cooling[world]
        for name, arm, column, temperature in (
            ("chosen", "only the right ones", "one sample", 1),
            ("blind", "chosen blindly", "one sample", 1),
            ("mode", "only the right ones", "greedy", 0),
        ):
            values = runs.loc[(arm, world), column]
            after = f"{values.mean():.2f} [{values.min():.2f}, {values.max():.2f}]"
            found[f"{name}_{world}"] = f"{before[temperature]:.2f} → {after}"
        best = before[0.25:1.0].idxmax()
        colder = f"{before[best]:.2f} at T = {best:g}, {before[0.0]:.2f} greedily"
        found[f"cooled_{world}"] = f"{before[1.0]:.2f} → {colder}"
    return found


QUESTIONS = Questions(
    Question(
        claim="keeping what is right lifts single answers",
        row={
            "pressing": "{chosen_habits}",
            "control": "{chosen_sums}",
        },
    ),
    Question(
        claim="it is the choice: chosen blindly",
        row={
            "pressing": "{blind_habits}",
            "control": "{blind_sums}",
        },
    ),
    Question(
        claim="cooling does the same",
        row={
            "pressing": "{cooled_habits}",
            "control": "{cooled_sums}",
        },
    ),
    Question(
        claim="it changes the mode (greedy answers)",
        row={
            "pressing": "{mode_habits}",
            "control": "{mode_sums}",
        },
    ),
)
