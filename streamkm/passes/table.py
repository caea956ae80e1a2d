"""What the step "table" does to each column: found on a sample of rows, by what the values look like.

Knows nothing of files and estimators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamkm.preparation.scaling import Table, rounding_of

SKEWED = 0.35  # of the distance of the outer quantiles, the difference of their distances from the median
EVENER = 0.75  # as much of it a logarithm may leave
FEW_ROWS = 1000  # from which on different whole numbers identify rows
COUNTS = 0.999  # correlation with the rows' numbers of a column that counts
TAILS = (0.5, 99.5)  # percentiles; values as far beyond as these are apart are clipped


def table_columns(X: NDArray[np.generic], rows: NDArray[np.int64], names: Sequence[str]) -> Table:
    """The treatment of each column, by sampled rows and their numbers in the source. O(s log s * d).

    `names`: of the columns, empty where they have none; those of one-hot columns have a ``=``.
    """
    found = np.empty((6, X.shape[1]))  # the fields of `Table`
    for number in range(X.shape[1]):
        name = names[number] if names else ""
        found[:, number] = _column(X[:, number].astype(np.float64), rows, name, rounding_of(X.dtype))
    return Table(*found)


def _column(values: NDArray[np.float64], rows: NDArray[np.int64], name: str, rounding: float) -> tuple[float, ...]:
    """Shift, factor, bounds, fate and the share beyond the bounds."""
    smallest, largest = values.min(), values.max()
    middle = float(np.float32(np.median(values)))
    if largest - smallest <= rounding * max(abs(smallest), abs(largest)):
        return middle, 1.0, middle, middle, 3, 0.0
    if np.isin(values, (0, 1)).all():  # two categories are 1 apart, in one column or two
        return 0.0, np.sqrt(0.5) if "=" in name else 1.0, 0.0, 1.0, 2, 0.0
    left_out = _identifies(values, rows)
    if left_out:
        return middle, 1.0, middle, middle, left_out, 0.0
    fate, skew = 0, _skew(values)
    if smallest >= 0 and skew > SKEWED and abs(_skew(np.log1p(values))) < EVENER * skew:
        fate, values = 1, np.log1p(values)
    tails = np.percentile(values, TAILS)
    low, high = tails + np.array([-1, 1]) * (tails[1] - tails[0])
    if low == high:  # but for rare rows
        return middle, 1.0, middle, middle, 3, 0.0
    low = max(low, 0.0) if fate else low
    beyond = float(((values < low) | (values > high)).mean())
    clipped = np.clip(values, low, high)
    bounds = np.expm1([low, high]) if fate else (low, high)
    return clipped.mean(), 1 / clipped.std(), *bounds, fate, beyond


def _identifies(values: NDArray[np.float64], rows: NDArray[np.int64]) -> int:
    """The fate of a column that counts or identifies rows; 0 for others."""
    if len(values) > 2 and abs(np.corrcoef(rows, values)[0, 1]) > COUNTS:
        return 4
    whole = len(values) >= FEW_ROWS and (values == np.floor(values)).all()
    return 5 if whole and len(np.unique(values)) == len(values) else 0


def _skew(values: NDArray[np.float64]) -> float:
    low, middle, high = np.percentile(values, (5, 50, 95))
    return float((high + low - 2 * middle) / (high - low)) if high > low else 0.0
