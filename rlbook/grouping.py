"""Lists by a key, and their means."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import nan
from statistics import fmean
from typing import Any


def group_by(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Lists of items by what `key` says of them."""
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean of the values that are numbers; NaN when there are none."""
    values = [value for value in values if value == value]
    return fmean(values) if values else nan
