"""Every choice with every other: what one is worth on average, and where it is worth more."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlbook.stats.differences import paired_differences

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Factorial:
    """Runs of a full factorial design, a row per run, in blocks that repeat all of it.

    factors    columns whose levels are all crossed within each block
    blocks     columns that name a block: a seed, and what else had random numbers of its own

    Runs of one block may share prompts and noise, so no two of their differences are independent.
    Those of a block are averaged first, and intervals are Student's t over blocks. Raises
    `ValueError` unless every block holds every combination of levels exactly once.
    """

    runs: pd.DataFrame
    factors: tuple[str, ...]
    blocks: tuple[str, ...]

    def __post_init__(self) -> None:
        columns = [*self.blocks, *self.factors]
        cells = self.runs[columns]
        if cells.duplicated().any():
            raise ValueError(f"two runs of one block and cell: {columns} do not tell them apart")
        expected = self.runs[list(self.factors)].drop_duplicates().shape[0]
        crossed = self.runs[list(self.factors)].nunique().prod()
        sizes = cells.groupby(list(self.blocks)).size()
        if expected != crossed or (sizes != crossed).any():
            raise ValueError(f"not a full factorial: {crossed} cells, blocks of {sorted(sizes)}")

    def effect(
        self, metric: str, factor: str, high: Hashable, low: Hashable, **where: Any
    ) -> dict[str, Any]:
        """`high` minus `low`, over all other choices, in the blocks and cells `where` says.

        The keys are those of `paired_differences`, `seeds` counting the blocks.
        """
        effects = self.block_effects(metric, factor, high, low, where)
        return difference(effects, 0 * effects)

    def interaction(
        self,
        metric: str,
        factor: str,
        high: Hashable,
        low: Hashable,
        by: tuple[str, Hashable, Hashable],
        **where: Any,
    ) -> dict[str, Any]:
        """How much more the effect is under one choice of another column than under the other.

        `by` is that column, factor or block, with the one choice and the other.
        """
        column, one, other = by
        there, here = (
            self.block_effects(metric, factor, high, low, {**where, column: level})
            for level in (one, other)
        )
        if column in self.blocks:
            there, here = there.droplevel(column), here.droplevel(column)
        return difference(there, here)

    def block_effects(
        self, metric: str, factor: str, high: Hashable, low: Hashable, where: dict[str, Any]
    ) -> pd.Series:
        """The mean difference between two levels, block by block."""
        runs = self.runs
        for column, value in where.items():
            runs = runs[runs[column] == value]
        for column, value in [*where.items(), (factor, high), (factor, low)]:
            if value not in set(self.runs[column]):
                raise ValueError(f"no {column} {value!r}; there are {set(self.runs[column])}")
        means = runs.groupby([factor, *self.blocks])[metric].mean()
        return means.loc[high] - means.loc[low]


def difference(one: pd.Series, other: pd.Series) -> dict[str, Any]:
    """Mean of `one` minus `other` over blocks, with interval and power."""
    runs = {"one": one.to_dict(), "other": other.to_dict()}
    (row,) = paired_differences(runs, "other")
    return {name: value for name, value in row.items() if name != "arm"}
