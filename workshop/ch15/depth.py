"""Chapter 15: how many batches a sum of so many operations needs, in runs that are on record.

The axis of ScaleLogic, arXiv:2605.06638: updates T until an accuracy against the depth D, T ∝ D^γ.
"""

import numpy as np
import pandas as pd

OPERATIONS = (3, 4, 5, 6)  # a sum of level n has n − 1


def batches_until(runs: pd.DataFrame, accuracy: float) -> list[float]:
    """By depth, when the mean curve of all runs, smoothed over three batches, first is as high."""
    found = []
    for operations in OPERATIONS:
        curve = runs.groupby("step")[f"accuracy_level_{operations + 1}"].mean()
        curve = curve.rolling(3, center=True, min_periods=1).mean()
        i = int((curve >= accuracy).to_numpy().argmax())
        (before, after), (low, high) = curve.index[i - 1 : i + 1], curve.iloc[i - 1 : i + 1]
        found.append(before + (after - before) * (accuracy - low) / (high - low))
    return found


def exponent(batches: list[float]) -> float:
    """γ by least squares on logarithms."""
    return float(np.polyfit(np.log(OPERATIONS), np.log(batches), 1)[0])
