"""Sketches after a randomized Hadamard transform, which spreads the norm of a row over all components.

``R = H D / sqrt(p)``, with random signs D and the Walsh-Hadamard matrix H of the padded width p, is a rotation: it
keeps all distances, in O(p log p) a row. After it, components are alike enough to take some of them, or to hash them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.intrinsics.hashing import hash_features, hash_places, stream_seed
from streamkm.kernels.sketch import hadamard as kernels
from streamkm.kernels.sketch.countsketch import sketch_dense
from streamkm.sketches.countsketch import CountSketch
from streamkm.sketches.seeded import SeededSketch
from streamkm.sketches.validation import check_components, check_seed, check_width

LEAST_WIDTH = 16  # a vector of float32
MAX_FEATURES = 1 << 30
BATCH_ENTRIES = 1 << 16
"""Of rotated rows that are held at once, so that they stay in the cache."""


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
        check_seed(self.seed)

    @property
    def n_padded(self) -> int:
        """The width p: the lowest power of two from 16 on that holds the features."""
        return max(LEAST_WIDTH, 1 << (int(self.n_features) - 1).bit_length())

    def batches(self, X: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Rotate rows, some at a time.

        `X`: ndarray (n, d) of any real dtype, or csr_array (n, d), narrower rows lack their last features. Yields
        slice: of rows; ndarray (b, p), float32 or float64: sqrt(p) times the rotated rows; written again by the next
        step. Raises InvalidInputError: if rows are wider than `n_features`.
        """
        check_width(X, self.n_features)
        dtype = working_dtype(X.dtype)
        signs = self._signs(X.shape[1]).astype(dtype)
        values = None if isinstance(X, np.ndarray) else as_working(X.data)
        n_batch = max(1, BATCH_ENTRIES // self.n_padded)
        rotated = np.empty((min(n_batch, X.shape[0]), self.n_padded), dtype)
        for start in range(0, X.shape[0], n_batch):
            stop = min(start + n_batch, X.shape[0])
            out = rotated[: stop - start]
            if isinstance(X, np.ndarray):
                kernels.rotate_dense(np.ascontiguousarray(as_working(X[start:stop])), signs, out)
            else:
                kernels.rotate_csr(X.indptr, X.indices, values, start, signs, out)
            yield slice(start, stop), out

    def _signs(self, n_features: int) -> NDArray[np.float32]:
        unused, signs = np.empty(n_features, np.int32), np.empty(n_features, np.float32)
        hash_features(np.uint64(self.seed), 0, n_features, np.uint64(1), unused, signs)
        return signs


class _RotatedSketch(SeededSketch):
    """A sketch of rotated rows, whose number of features may be left to the estimator, too."""

    __slots__ = ()
    n_features: int | None

    @property
    def is_made(self) -> bool:
        return self.seed is not None and self.n_features is not None

    def made(self, seed: int, n_features: int | None) -> Self:
        width = n_features if self.n_features is None else self.n_features
        return replace(self, seed=seed if self.seed is None else self.seed, n_features=width)  # type: ignore[type-var]

    def fits_features(self, n_features: int) -> bool:
        return self.n_features is None or self.n_features >= n_features  # narrower rows lack their last features

    @property
    def _rotation(self) -> Rotation:
        return Rotation(self._known("n_features", self.n_features), self._seed)


@dataclass(frozen=True, slots=True)
class SubsampledHadamard(_RotatedSketch):
    """Subsampled randomized Hadamard transform: m of the p rotated components, scaled by sqrt(p / m).

    `n_components`: m, at most the padded width p. `n_features`: d, from 1 to 2^30. None: the estimator that the sketch
    is given to sets it. `seed`: from 0 to 2^64 - 1; decides about signs and components. None: the estimator sets it, by
    its `random_state`.

    References: Ailon and Chazelle, SIAM J. Comput. 39 (2009); Tropp, "Improved analysis of the subsampled randomized
    Hadamard transform", Adv. Adapt. Data Anal. 3 (2011); for subspaces, and with them k-means: Boutsidis and Gittens,
    SIAM J. Matrix Anal. Appl. 34 (2013).

    Notes
    -----
    Entries of the map are +-1 / sqrt(m). Components are drawn without replacement. Inner products are unbiased, with
    variance (|x|^2 |y|^2 + <x, y>^2 - 2 sum x_j^2 y_j^2) / m * (p - m) / (p - 1): with m = p the map is a rotation.
    O(p log p) a row, whatever m.
    """

    n_components: int
    n_features: int | None = None
    seed: int | None = None
    kind: ClassVar[str] = "hadamard"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_seed()
        limit = MAX_FEATURES if self.n_features is None else Rotation(self.n_features, 0).n_padded
        check_components(self.n_components, limit)

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows.

        O(n p log p).

        `X`: ndarray (n, d) of any real dtype, or csr_array (n, d). Returns ndarray (n, m), float32, or float64 where
        float32 cannot hold the input. Raises InvalidInputError: if rows are wider than `n_features`;
        InvalidParameterError: if the sketch has no seed or no number of features.
        """
        out = np.empty((X.shape[0], self.n_components), working_dtype(X.dtype))
        components, scale = self.components(), out.dtype.type(1 / math.sqrt(self.n_components))
        for rows, rotated in self._rotation.batches(X):
            kernels.pick(rotated, components, scale, out[rows])
        return out

    def components(self) -> NDArray[np.int64]:
        """The rotated components that are taken, ascending: those with the lowest hash."""
        n_padded = self._rotation.n_padded
        order = np.empty(n_padded, np.int64)
        hash_places(np.uint64(stream_seed(np.uint64(self._seed), np.uint64(1))), np.arange(n_padded), order)
        return np.sort(np.argpartition(order, self.n_components - 1)[: self.n_components])

    def to_dict(self) -> dict[str, Any]:
        described = {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}
        return {**described, "n_features": self.n_features}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}


@dataclass(frozen=True, slots=True)
class HadamardCountSketch(_RotatedSketch):
    """CountSketch of rotated rows.

    A class of its own and not an option of CountSketch: it needs d beforehand, costs O(p log p) a row and makes
    sparse rows dense, so nothing that holds for CountSketch's cost holds for it.

    `n_components`: m, from 1 to 2^31. `n_features`: d, from 1 to 2^30. None: the estimator that the sketch is given to
    sets it. `seed`: from 0 to 2^64 - 1. None: the estimator sets it, by its `random_state`. `nnz_per_feature`: int,
    default 1, s, as of `CountSketch`.

    References: Dasgupta, Kumar and Sarlos, "A sparse Johnson-Lindenstrauss transform", STOC 2010: preconditioning
    before sparse maps.

    Notes
    -----
    CountSketch suffers when few features carry the norm: where two of them meet in a component, all rows that have
    both are spoilt, with probability 1 / m whatever the data. Rotated rows have no such features. Their variance is no
    lower: (|x|^2 |y|^2 + <x, y>^2 - 2 q) / m, for s that divide m, where q is the mean over signs of the sum of
    squared products of rotated entries, (|x|^2 |y|^2 + 2 <x, y>^2 - 2 sum x_j^2 y_j^2) / p. What is won are the tails.
    """

    n_components: int
    n_features: int | None = None
    seed: int | None = None
    nnz_per_feature: int = 1
    kind: ClassVar[str] = "hadamard-countsketch"
    passes_to_fit: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._check_seed()
        if self.n_features is not None:
            Rotation(self.n_features, 0)
        CountSketch(self.n_components, nnz_per_feature=self.nnz_per_feature)

    def apply(self, X: Matrix) -> NDArray[Any]:
        """Sketch rows.

        O(n p (log p + s)).

        `X`: ndarray (n, d) of any real dtype, or csr_array (n, d). Returns ndarray (n, m), float32, or float64 where
        float32 cannot hold the input. Raises InvalidInputError: if rows are wider than `n_features`;
        InvalidParameterError: if the sketch has no seed or no number of features.
        """
        out = np.zeros((X.shape[0], self.n_components), working_dtype(X.dtype))
        rotation, sketch = self._rotation, self.countsketch()
        hashes = [sketch.hash(0, rotation.n_padded, block) for block in range(self.nnz_per_feature)]
        scale = sketch.scale / math.sqrt(rotation.n_padded)
        scaled = [(buckets, signs.astype(out.dtype) * out.dtype.type(scale)) for buckets, signs in hashes]
        for rows, rotated in rotation.batches(X):
            for buckets, signs in scaled:
                sketch_dense(rotated, buckets, signs, out[rows])
        return out

    def countsketch(self) -> CountSketch:
        """What the rotated rows are sketched by."""
        seed = stream_seed(np.uint64(self._seed), np.uint64(1))
        return CountSketch(self.n_components, int(seed), self.nnz_per_feature)

    def to_dict(self) -> dict[str, Any]:
        described = {"kind": self.kind, "n_components": self.n_components, "seed": self.seed}
        return {**described, "n_features": self.n_features, "nnz_per_feature": self.nnz_per_feature}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}
