"""Random Fourier features of the Gaussian kernel: data-oblivious, in any number.

Inner products of ``[cos(w.x), sin(w.x)]``, for random frequencies w, approach the kernel's values. A projection may
follow, for a fair comparison with Nystroem features of as many directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.sketches.base_sketch import check_fits
from streamkm.sketches.kernel_columns import BATCH_ROWS
from streamkm.sketches.kernel_map import Projected, projected


@dataclass(frozen=True, slots=True, eq=False)
class FourierMap(Projected):
    """``apply(X) = sqrt(1 / p) [cos(Y), sin(Y)] @ projection`` with ``Y = (X - shift) @ frequencies``.

    References: Rahimi and Recht, "Random features for large-scale kernel machines", NIPS 2007, algorithm 1; orthogonal
    frequencies: Yu, Suresh, Choromanski, Holtmann-Rice and Kumar, "Orthogonal random features", NIPS 2016, section 3.
    """

    frequencies: NDArray[np.float32]  # (d, p)
    shift: NDArray[np.float64]  # (d,): changes no inner product; taken away so that angles are small
    projection: NDArray[np.float32]  # (2 p, m)
    kind: ClassVar[str] = "fourier"

    def __post_init__(self) -> None:
        arrays = (self.frequencies, self.shift, self.projection)
        fits = [array.ndim for array in arrays] == [2, 1, 2] and len(self.frequencies) == len(self.shift)
        fits = fits and len(self.projection) == 2 * self.frequencies.shape[1]
        fits = fits and [str(array.dtype) for array in arrays] == ["float32", "float64", "float32"]
        check_fits(self, fits, "float32 (d, p), float64 (d,), float32 (2 p, m)")

    @classmethod
    def draw(
        cls, gamma: float, shift: NDArray[np.float64], n_columns: int, *, orthogonal: bool, rng: np.random.Generator
    ) -> FourierMap:
        """Draw frequencies for ``exp(-gamma |x - y|^2)``, with the identity as projection.

        `n_columns`: twice the frequencies: even, from 2. `orthogonal`: draw frequencies orthogonal in groups of up to
        d, with Gaussian lengths; O(d * p^2).
        """
        if n_columns < 2 or n_columns % 2:
            raise InvalidParameterError(f"{n_columns} random features; needed: an even number from 2")
        width, n_frequencies = len(shift), n_columns // 2
        drawn = rng.normal(size=(width, n_frequencies))
        if orthogonal:
            for start in range(0, n_frequencies, width):
                group = drawn[:, start : start + width]
                lengths = np.linalg.norm(rng.normal(size=group.shape), axis=0)
                drawn[:, start : start + width] = np.linalg.qr(group)[0] * lengths
        frequencies = np.ascontiguousarray(drawn * np.sqrt(2 * gamma), np.float32)
        return cls(frequencies, shift, np.eye(n_columns, dtype=np.float32))

    def apply(self, X: Matrix) -> Matrix:
        return projected(self.batches(X), X.shape[0], self.projection)

    def batches(self, X: Matrix) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (first row, random features (256, 2 p)) before the projection; the next batch overwrites them."""
        width = len(self.shift)
        if X.shape[1] > width or (isinstance(X, np.ndarray) and X.shape[1] < width):
            raise InvalidInputError(f"rows have {X.shape[1]:,} features; the frequencies have {width:,}")
        n_frequencies = self.frequencies.shape[1]
        values = np.zeros((BATCH_ROWS, 2 * n_frequencies), np.float32)
        frequencies = Panels.of(self.frequencies)
        shifted = (self.shift @ self.frequencies.astype(np.float64)).astype(np.float32)  # of sparse rows, afterwards
        for start in range(0, X.shape[0], BATCH_ROWS):
            rows = X[start : start + BATCH_ROWS]
            if isinstance(rows, np.ndarray):
                angles = frequencies.product(rows, shift=self.shift)
            else:
                angles = rows.astype(np.float32) @ self.frequencies[: rows.shape[1]] - shifted
            np.cos(angles, out=values[: len(angles), :n_frequencies])
            np.sin(angles, out=values[: len(angles), n_frequencies:])
            values *= np.float32(1 / np.sqrt(n_frequencies))
            yield start, values[: len(angles)]

    def fits_features(self, n_features: int) -> bool:
        return len(self.shift) == n_features
