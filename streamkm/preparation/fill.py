"""Filling of missing values with the means of their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.kernels.preparation import rows as kernels


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """The values that stand for NaN, and how often it was there.

    Attributes
    ----------
    means : float64 (d,)
        Of the values that a feature has, zeros of sparse rows included; 0 for a feature without any.
    missing : float64 (d,)
        Share of the rows that lack the feature.
    """

    means: NDArray[np.float64]
    missing: NDArray[np.float64]

    def check_width(self, X: Matrix) -> None:
        """Refuse rows with other features, but sparse ones with fewer: kernels trust widths.

        Raises
        ------
        InvalidInputError
        """
        found, given = len(self.means), X.shape[1]
        if given > found or (given < found and isinstance(X, np.ndarray)):
            raise InvalidInputError(
                f'rows have {given:,} features; the means of invalid="mean" are those of {found:,}: '
                "pass rows with the same features"
            )

    def apply(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write the values of rows that `check_width` has passed, means in place of NaN."""
        if isinstance(X, np.ndarray):
            kernels.fill_dense(X, self.means, out)
        else:
            out[:] = np.where(np.isnan(X.data), self.means[X.indices], X.data)
