"""What chapter 01 claims: of its runs, and in its scorecard."""

import pandas as pd


def scored_live(results: pd.DataFrame, cooling: pd.DataFrame) -> list[dict[str, str]]:
    """The rows of the scorecard, with the numbers of the chapter's own runs on each world."""
    runs = results.set_index(["arm", "world"])

    def lifted(arm: str, column: str, world: str, start: float) -> str:
        values = runs.loc[(arm, world), column]
        return f"{start:.2f} → {values.mean():.2f} [{values.min():.2f}, {values.max():.2f}]"

    def of(arm: str, column: str, temperature: float) -> dict[str, str]:
        where = {"pressing": "habits", "control": "sums"}
        return {
            key: lifted(arm, column, world, cooling[world][temperature])
            for key, world in where.items()
        }

    colder = {world: cooling[world][0.25:1.0].max() for world in cooling}
    rows = (
        ("keeping what is right lifts single answers", of("only the right ones", "one sample", 1)),
        ("it is the choice: chosen blindly", of("chosen blindly", "one sample", 1)),
        ("cooling does the same", {
            key: f"{cooling[world][1.0]:.2f} → {colder[world]:.2f}, the best temperature"
            for key, world in (("pressing", "habits"), ("control", "sums"))
        }),
        ("it changes the mode (greedy answers)", of("only the right ones", "greedy", 0)),
    )  # fmt: skip
    return [{"claim": claim, **found} for claim, found in rows]
