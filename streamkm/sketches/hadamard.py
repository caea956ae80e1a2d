"""Sketches after a randomized Hadamard transform, which spreads the norm of a row over all components.

``R = H D / sqrt(p)``, with random signs D and the Walsh-Hadamard matrix H of the padded width p, is a rotation in
O(p log p) a row. After it, components are alike enough to take some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.intrinsics.hashing import hash_features, hash_integers, stream_seed
from streamkm.kernels.sketch import walsh_hadamard as kernels
from streamkm.sketches.base_sketch import SeededSketch, check_numbers, check_width

LEAST_WIDTH = 16  # a vector of float32
MAX_FEATURES = 1 << 30
BATCH_ENTRIES = 1 << 16  # of rotated rows that are held at once, so that they stay in the cache
WIDE_ENTRIES = 1 << 20  # of wider rows: some side by side fill vectors


@dataclass(frozen=True, slots=True)
class Rotation:
    """Random signs and the Walsh-Hadamard transform of rows padded with zeros, not normalized.

    References: Ailon and Chazelle, "The fast Johnson-Lindenstrauss transform and approximate nearest neighbors", SIAM
    J. Comput. 39 (2009).
    """

    n_features: int  # d, from 1 to 2^30
    seed: int  # from 0 to 2^64 - 1. The sign of feature j depends on (seed, j) alone

    def __post_init__(self) -> None:
        if not 1 <= self.n_features <= MAX_FEATURES:
            raise InvalidParameterError(f"n_features={self.n_features}; needed: 1 to {MAX_FEATURES:,}")
        check_numbers(1, 1, self.seed)

    @property
    def n_padded(self) -> int:
        """The width p: the lowest power of two from 16 on that holds the features."""
        return max(LEAST_WIDTH, 1 << (int(self.n_features) - 1).bit_length())

    def batches(self, X: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield (slice of rows, sqrt(p) times the rotated rows as columns (p, b), float32 or float64).

        `X`: (n, d), dense of any real dtype or CSR; narrower rows lack their last features. Raises InvalidInputError:
        if rows are wider than `n_features`.
        """
        check_width(X, self.n_features)
        dtype = working_dtype(X.dtype)
        unused, signs = np.empty(X.shape[1], np.int32), np.empty(X.shape[1], np.float32)
        hash_features(np.uint64(self.seed), 0, X.shape[1], np.uint64(1), unused, signs)
        n_batch = max(1, BATCH_ENTRIES // self.n_padded, min(16, WIDE_ENTRIES // self.n_padded))
        for start in range(0, X.shape[0], n_batch):
            some = X[start : start + n_batch]
            rows = some if isinstance(some, np.ndarray) else some.astype(dtype).toarray()
            tile = np.zeros((self.n_padded, len(rows)), dtype)
            tile[: X.shape[1]] = rows.T
            tile[: X.shape[1]] *= signs[:, None]
            kernels.transform(tile)
            yield slice(start, start + n_batch), tile


@dataclass(frozen=True, slots=True)
class SubsampledHadamard(SeededSketch):
    """Subsampled randomized Hadamard transform: m of the p rotated components, scaled by sqrt(p / m).

    `n_components`: m, at most p. `n_features`: d, from 1 to 2^30. `seed`: from 0 to 2^64 - 1, of signs and components.
    The estimator sets the last two if None, the seed by its `random_state`.

    References: Ailon and Chazelle, SIAM J. Comput. 39 (2009); Tropp, "Improved analysis of the subsampled randomized
    Hadamard transform", Adv. Adapt. Data Anal. 3 (2011); for subspaces, and with them k-means: Boutsidis and Gittens,
    SIAM J. Matrix Anal. Appl. 34 (2013).

    Entries of the map are +-1 / sqrt(m). Components are drawn without replacement. Inner products are unbiased, with
    variance (|x|^2 |y|^2 + <x, y>^2 - 2 sum x_j^2 y_j^2) / m * (p - m) / (p - 1): with m = p the map is a rotation.
    """

    n_components: int
    n_features: int | None = None
    seed: int | None = None
    kind: ClassVar[str] = "hadamard"

    def __post_init__(self) -> None:
        limit = MAX_FEATURES if self.n_features is None else Rotation(self.n_features, 0).n_padded
        check_numbers(self.n_components, limit, self.seed)

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows (n, d), dense of any real dtype or CSR, to (n, m). O(n p log p).

        The result is float32, or float64 if float32 cannot hold the input. Raises InvalidInputError: if rows are wider
        than `n_features`; InvalidParameterError: if the sketch has no seed or no `n_features`.
        """
        rotation = Rotation(self._known("n_features"), self._known("seed"))
        order, seed = np.empty(rotation.n_padded, np.int64), stream_seed(np.uint64(rotation.seed), np.uint64(1))
        hash_integers(np.uint64(seed), np.arange(len(order)), order)
        components = np.sort(np.argpartition(order, self.n_components - 1)[: self.n_components])  # of the lowest hashes
        out = np.empty((X.shape[0], self.n_components), working_dtype(X.dtype))
        scale = out.dtype.type(1 / math.sqrt(self.n_components))
        for rows, rotated in rotation.batches(X):
            out[rows] = scale * rotated[components].T
        return out

    def fits_features(self, n_features: int) -> bool:
        return self.n_features is None or self.n_features >= n_features  # narrower rows lack their last features
