"""Shifts, factors and fill values of features, and how they apply to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.preparation import row_steps as kernels
from streamkm.preparation.column_steps import StepColumns, member

FATES = ("a number", "its logarithm", "a category", "constant", "a counter", "a number that identifies rows")
"""Decisions of the step "table" on a column, see `Table.fate`; from the fourth on, the column is left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """A shift and then a factor for each feature."""

    shift: NDArray[np.float64]  # subtracted, (d,); empty if found on sparse rows, whose zeros stay
    factor: NDArray[np.float64]

    def only(self, columns: StepColumns) -> Scaling:
        """A scaling of the chosen columns, which leaves others unchanged."""
        chosen = member(columns, len(self.factor))
        shift = np.where(chosen, self.shift, 0.0) if len(self.shift) else self.shift
        return Scaling(shift, np.where(chosen, self.factor, 1.0))

    def apply(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write shifted and scaled values of rows that passed `check_width`; sparse ones are not shifted."""
        if not isinstance(X, np.ndarray):
            kernels.scale_entries(X.indices, X.data, self.factor, out)
            return
        width = X.shape[1]
        shift = self.shift if len(self.shift) else np.zeros(width)
        kernels.scale_dense(X, shift, lengthened(self.factor, width, 1.0), out)

    def undone(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in the original units."""
        return X / lengthened(self.factor, X.shape[1], 1.0) + (self.shift if len(self.shift) else 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Table(Scaling):
    """Statistics of the step "table": columns are clipped, logarithms of some taken, then shifted and scaled."""

    low: NDArray[np.float64]  # bounds of values, in the units of the data; equal for columns that are left out
    high: NDArray[np.float64]
    fate: NDArray[np.float64]  # index into `FATES`
    beyond: NDArray[np.float64]  # share of the sampled rows outside the bounds

    @property
    def logarithms(self) -> NDArray[np.bool_]:
        """The columns of which logarithms are taken."""
        return self.fate == 1

    def apply(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write prepared values of dense rows that passed `check_width`."""
        np.clip(X, self.low, self.high, out=out)
        out[:, self.logarithms] = np.log1p(out[:, self.logarithms])
        Scaling.apply(self, out, out)

    def undone(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in the original units, within the bounds."""
        X = Scaling.undone(self, X)
        X[:, self.logarithms] = np.expm1(X[:, self.logarithms])
        return X

    def told(self, name: Callable[[int], str]) -> Iterator[str]:
        """Sentences on columns that are left out or clipped, and on logarithms."""
        if self.logarithms.any():
            yield f"logarithms are taken of {', '.join(map(name, np.flatnonzero(self.logarithms).tolist()))}"
        for number in np.flatnonzero((self.fate > 2) | (self.beyond > 0)).tolist():
            if self.fate[number] > 2:
                yield f"{name(number)} is left out: it is {FATES[int(self.fate[number])]}"
            else:
                yield (
                    f"{name(number)} has {self.beyond[number]:.2%} of its values outside {self.low[number]:.6g} to "
                    f"{self.high[number]:.6g}, where they are clipped; if it misleads, leave it out: "
                    f"--exclude {name(number)}"
                )


def check_width(X: Matrix, n_features: int, step: str, *, may_be_wider: bool = False) -> None:
    """Refuse dense rows of fewer features, and wider rows: kernels trust widths. Raises InvalidInputError."""
    given, kind = X.shape[1], "dense" if isinstance(X, np.ndarray) else "sparse"
    if (kind == "dense" and given < n_features) or (given > n_features and not may_be_wider):
        raise InvalidInputError(
            f"{kind} rows have {given:,} features; {step} was found on {n_features:,}: pass rows with the same features"
        )


def rounding_of(dtype: Any) -> float:
    """Relative difference within which values count as equal: 128 units of the last place of the computing dtype."""
    return 128 * float(np.finfo(working_dtype(np.dtype(dtype))).eps)


def lengthened(values: NDArray[np.float64], length: int, fill: float) -> NDArray[np.float64]:
    """Values padded to `length` with another value."""
    return np.append(values, np.full(max(0, length - len(values)), fill))


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """The values that replace NaN, and how often it occurred."""

    means: NDArray[np.float64]  # (d,): of a feature's values, zeros of sparse rows included; 0 if it has none
    missing: NDArray[np.float64]  # (d,): share of the rows that lack the feature

    def apply(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write values of rows that passed `check_width`, with means in place of NaN."""
        if isinstance(X, np.ndarray):
            kernels.fill_dense(X, self.means, out)
        else:
            out[:] = np.where(np.isnan(X.data), self.means[X.indices], X.data)
