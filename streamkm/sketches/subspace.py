"""Principal subspaces of all rows, found by streaming: sums of d x d or d x l numbers, never the rows together.

`subspace_fit` picks the sums: the Gram matrix of narrow rows, exactly; for wide ones a randomized range finder.
Callers use the subspace for projections or leverage scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.cluster.label_order import add_dense
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.panels import Panels, add_outer_products
from streamkm.kernels.sketch import subspace_sums as kernels
from streamkm.sketches.base_sketch import Sketch, SketchFit, SketchFitBytes

GRAM_FEATURES = 2048  # up to 32 MiB of sums; above, an n x d x d product costs more than the range finder's passes
OVERSAMPLING = 0.5  # further columns of the test matrix for each direction wanted,
LEAST_OVERSAMPLING = 10
BATCH_ENTRIES = 1 << 20  # of dense rows that are converted to float64 at once
SMALLEST_SHIFT = 1e-200  # so that rows of zeros have a Cholesky factor too


@dataclass(frozen=True, slots=True)
class Subspace:
    """Leading eigenvectors of ``X.T @ W @ X``, which are right singular vectors of the weighted rows."""

    vectors: NDArray[np.float64]  # (d, m): orthonormal columns; in each, the entry of largest size is positive
    values: NDArray[np.float64]  # (m,): eigenvalues: squared singular values, largest first
    mean: NDArray[np.float64] | None  # (d,): taken from the rows first; None: nothing was
    dtype: np.dtype[Any]  # float32 or float64, that the rows are worked with in


Make: TypeAlias = Callable[[Subspace], Sketch]


@dataclass(slots=True)
class SubspaceSums:
    """Sums over rows, in float64; they grow when wider rows come."""

    # (d, p): ``X.T @ W @ X @ T`` for a test matrix T, or the Gram matrix on and below the diagonal
    product: NDArray[np.float64]
    total: NDArray[np.float64]  # (d,): weighted sum of the rows
    weight: float = 0.0  # of their weights; both where a mean is to be taken out
    double: bool = False  # whether rows of float64 were among them


def join_sums(states: Sequence[SubspaceSums], shape: tuple[int, int] = (0, 0)) -> SubspaceSums:
    """Add up, in order, to sums of at least this shape; no addend is changed, a single one that fits is returned."""
    rows, columns = (max(sizes) for sizes in zip(shape, *(state.product.shape for state in states), strict=True))
    if len(states) == 1 and states[0].product.shape == (rows, columns):
        return states[0]
    joined = SubspaceSums(np.zeros((rows, columns)), np.zeros(rows))
    for state in states:
        joined.product[: len(state.product), : state.product.shape[1]] += state.product
        joined.total[: len(state.total)] += state.total
        joined.weight += state.weight
        joined.double |= state.double
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class SubspaceGram:
    """The Gram matrix ``X.T @ W @ X`` (d, d), then its leading eigenvectors, exact up to rounding.

    O(n * d^2) for dense rows, O(sum of nnz(row)^2) for sparse ones; 16 * d^2 bytes of sums and product a worker.
    """

    n_components: int  # m; d, where the rows have no more
    make: Make  # what is made of the `Subspace`; picklable
    # (d,): something near the rows' mean: their exact mean is then taken out. From the start, because sums of squares
    # far from the origin leave no digits for what lies around the mean. For dense rows
    shift: NDArray[np.float64] | None = None

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> SubspaceSums:
        d = X.shape[1]
        sums = join_sums([] if state is None else [state], (d, d))
        sums.double |= working_dtype(X.dtype) == np.float64
        if not isinstance(X, np.ndarray):
            kernels.add_gram(X.indptr, X.indices, X.data, weights, sums.product)
            return sums
        for rows, some in _batches(sums, X, weights, self.shift):
            scaled = rows * np.sqrt(some)[:, None] if len(some) else rows
            add_outer_products(scaled, sums.product)
        return sums

    join = staticmethod(join_sums)

    def finish(self, state: Any) -> Sketch:
        from scipy.linalg import eigh

        gram, mean = state.product, None
        d = len(gram)
        if self.shift is not None:
            offset = state.total / state.weight
            gram = gram - state.weight * np.outer(offset, offset)
            mean = self.shift + offset
        m = min(self.n_components, d)
        # of the lower triangle: sparse rows fill no more
        values, vectors = eigh(gram, lower=True, subset_by_index=[d - m, d - 1])
        return self.make(_subspace(vectors[:, ::-1], values[::-1], mean, state))


@dataclass(frozen=True, slots=True, eq=False)
class RangeFit:
    """A randomized range finder in one pass: ``Y = X.T @ W @ X @ T`` (d, l) for a Gaussian test matrix T.

    T is a function of (seed, feature), so that d need not be known. Nystroem's approximation of A = X.T @ W @ X,
    ``Y (T.T Y)^-1 Y.T``, by a shift and a Cholesky factor, equals ``X.T P X`` with P the projection on the range of
    X T, for which the textbook's range finder needs one more pass. O(nnz * l); 8 * d * l bytes of sums, and of the test
    matrix. On 20,000 x 47,236 topics and m = 20 to 200, it leaves 1-3 % more than the best directions.

    References: Tropp, Yurtsever, Udell and Cevher, "Fixed-rank approximation of a positive-semidefinite matrix from
    streaming data", NIPS 2017, algorithm 3; Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM
    Review 53 (2011), theorem 10.5: the squared error is expected to be at most 1 + m / (l - m - 1) times the best of
    rank m.
    """

    n_components: int  # m
    n_columns: int  # l, a multiple of `lanes.LANES`
    seed: int  # from 0 to 2^64 - 1
    make: Make  # what is made of the `Subspace`; picklable
    shift: NDArray[np.float64] | None = None  # (d,): as for `SubspaceGram`

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> SubspaceSums:
        d = X.shape[1]
        sums = join_sums([] if state is None else [state], (d, self.n_columns))
        sums.double |= working_dtype(X.dtype) == np.float64
        if isinstance(X, np.ndarray):
            table = Panels.of(self._test_rows(np.arange(d)))
            for rows, some in _batches(sums, X, weights, self.shift):
                product = table.product(rows)
                if len(some):
                    product *= some[:, None]
                Panels.of(product).product(rows.T, out=sums.product, add=True)
            return sums
        # only what occurs: text has many features, a chunk of it few
        places = np.zeros(d, np.int32)
        places[X.indices[: X.nnz]] = 1
        present = np.flatnonzero(places)
        np.cumsum(places, out=places)
        places -= 1
        added = np.zeros((len(present), self.n_columns))
        data = X.data.astype(np.float64, copy=False)
        kernels.add_range(X.indptr, places[X.indices[: X.nnz]], data, weights, self._test_rows(present), added)
        sums.product[present] += added
        return sums

    join = staticmethod(join_sums)

    def finish(self, state: Any) -> Sketch:
        d = len(state.product)
        sums, basis, mean = state.product, self._test_rows(np.arange(d)), None
        if self.shift is not None:
            offset = state.total / state.weight
            sums = sums - state.weight * np.outer(offset, offset @ basis)
            mean = self.shift + offset
        columns = min(sums.shape)
        vectors, values = nystroem(sums[:, :columns], basis[:, :columns])
        m = min(self.n_components, d)
        return self.make(_subspace(vectors[:, :m], values[:m], mean, state))

    def _test_rows(self, features: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rows of the test matrix."""
        out = np.empty((len(features), self.n_columns))
        kernels.fill_gaussians(np.uint64(self.seed), features, out)
        return out


def subspace_fit(
    n_components: int,
    make: Make,
    *,
    n_features: int,
    seed: int,
    shift: NDArray[np.float64] | None = None,
) -> SubspaceGram | RangeFit:
    """Sums that find the leading m-dimensional subspace in one pass.

    `make`: makes a sketch of the `Subspace`; picklable. `n_features`: d, or a guess: it only decides between the two
    ways. `seed`: of the range finder. `shift`: float64 (d,), near the mean of dense rows, whose exact mean is then
    subtracted.
    """
    if n_components < 1:
        raise InvalidParameterError(f"n_components={n_components}; needed: an integer from 1")
    if n_features <= GRAM_FEATURES:
        return SubspaceGram(n_components, make, shift)
    return RangeFit(n_components, range_columns(n_components), seed, make, shift)


def range_columns(n_components: int) -> int:
    """Columns l of the test matrix for m directions: half as many more, and whole vectors."""
    wanted = n_components + max(LEAST_OVERSAMPLING, round(OVERSAMPLING * n_components))
    return -(-wanted // LANES) * LANES


def subspace_bytes(n_components: int, n_features: int) -> SketchFitBytes:
    """Memory of the sums."""
    if n_features <= GRAM_FEATURES:
        gram = 8 * n_features**2
        return SketchFitBytes(gram, gram + 8 * BATCH_ENTRIES, 4 * gram)
    each = 8 * n_features * range_columns(n_components)
    return SketchFitBytes(each, 2 * each + 8 * BATCH_ENTRIES, 5 * each)


def fit_rows(fit: SketchFit, X: Matrix, weights: NDArray[np.float64]) -> Sketch:
    """Find a sketch on rows in memory: ndarray or csr_array (n, d), with weights, float64 (n,) or (0,)."""
    return fit.finish(fit.step(None, X, weights))


def nystroem(sums: NDArray[np.float64], basis: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvectors (d, l) and eigenvalues (l,) of ``Y (T.T Y)^-1 Y.T``, largest first. O(d * l^2).

    A small multiple of T is added to Y and taken from the eigenvalues again, so that T.T Y has a Cholesky factor
    whatever the rank; it grows if rounding needs more. `sums`: float64 (d, l), Y = A T for a positive semidefinite A.
    `basis`: float64 (d, l), T; l at most d.

    References: Tropp, Yurtsever, Udell and Cevher, NIPS 2017, algorithm 3.
    """
    from scipy.linalg import solve_triangular, svd

    norm = float(np.linalg.norm(sums))
    if not np.isfinite(norm):
        raise InvalidInputError("sums of squares of the rows exceed float64; scale the data down")
    shift = max(np.sqrt(len(sums)) * np.finfo(float).eps * norm, SMALLEST_SHIFT)
    factor = None
    while factor is None:
        shifted = sums + shift * basis
        core = basis.T @ shifted
        try:
            factor = np.linalg.cholesky((core + core.T) / 2)
        except np.linalg.LinAlgError:
            shift *= 10
    # (l, d) in column order, so that both work in place
    root = solve_triangular(factor, shifted.T, lower=True, overwrite_b=True)
    _, singular, vectors = svd(root, full_matrices=False, overwrite_a=True)
    return vectors.T, np.maximum(singular**2 - shift, 0.0)


def _subspace(
    vectors: NDArray[np.float64], values: NDArray[np.float64], mean: NDArray[np.float64] | None, sums: SubspaceSums
) -> Subspace:
    """Make a subspace with signs that do not depend on the way the vectors were found."""
    dtype = np.dtype(np.float64 if sums.double else np.float32)
    return Subspace(np.ascontiguousarray(oriented(vectors)), np.maximum(values, 0.0), mean, dtype)


def oriented(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with signs that do not depend on the eigensolver: the largest entry is positive."""
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


def _batches(
    sums: SubspaceSums, X: NDArray[Any], weights: NDArray[np.float64], shift: NDArray[np.float64] | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield copies of rows in float64, less the shift if any, which are then added to the total, and their weights."""
    n_batch = max(1, BATCH_ENTRIES // max(1, X.shape[1]))
    for start in range(0, X.shape[0], n_batch):
        rows, some = X[start : start + n_batch].astype(np.float64, order="C"), weights[start : start + n_batch]
        if shift is not None:
            rows -= shift
            order, ends, counts = np.arange(len(rows)), np.array([0, len(rows)]), np.zeros(1)
            add_dense(rows, some, order, ends, 0, False, sums.total[None], counts)
            sums.weight += float(counts[0])
        yield rows, some
