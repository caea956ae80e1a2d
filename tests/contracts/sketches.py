"""The contract of every sketch, as pytest classes to inherit."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches import Sketch, sketch_from_dict
from tests.tables import row

N_ROWS, N_FEATURES = 53, 40
DENSITIES = (0.02, 0.2, 1.0)
DTYPES = (np.uint8, np.int16, np.int64, np.float32, np.float64, np.bool_)


def dense(X: Any) -> NDArray[np.float64]:
    """Rows as a float64 array; CSR entries that repeat an index are added up."""
    return (X.toarray() if sp.issparse(X) else np.asarray(X)).astype(np.float64)


def whole_numbers(density: float = 0.2, seed: int = 0, n_rows: int = N_ROWS) -> NDArray[np.float64]:
    """Rows (n_rows, 40) with values 0-9: empty rows first, in the middle and last, and a column of zeros."""
    rng = np.random.default_rng(seed)
    X = rng.integers(1, 10, (n_rows, N_FEATURES)) * (rng.random((n_rows, N_FEATURES)) < density)
    X[[0, n_rows // 2, -1]] = 0
    X[:, 7] = 0
    return X.astype(np.float64)


class SketchContract:
    """Row by row, the same bits whatever comes along; a small value that nothing changes."""

    sparse: ClassVar[tuple[bool, ...]] = (False, True)
    """Whether CSR rows are taken too."""
    blind_to_precision: ClassVar[bool] = True
    """Whether rows of float32 and of float64 are sketched alike, up to rounding."""

    def make_sketch(self) -> Sketch:
        """Make the sketch under test, for rows of 40 features."""
        raise NotImplementedError

    @pytest.fixture
    def sketch(self) -> Sketch:
        return self.make_sketch()

    def test_chunked_is_whole(self) -> None:
        from hypothesis import given
        from hypothesis import strategies as st

        sketch = self.make_sketch()
        values = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)

        cut_rows = st.sets(st.integers(1, N_ROWS - 1))

        @given(cuts=cut_rows, density=st.sampled_from([0.02, 0.2, 0.9]), sparse=st.sampled_from(self.sparse))
        def check(cuts: set[int], density: float, sparse: bool) -> None:
            X = values * (whole_numbers(density) > 0)
            X = sp.csr_array(X) if sparse else X
            bounds = [0, *sorted(cuts), N_ROWS]
            parts = [dense(sketch.apply(X[start:stop])) for start, stop in pairwise(bounds)]
            np.testing.assert_array_equal(np.concatenate(parts), dense(sketch.apply(X)))

        check()  # inside, because hypothesis does not let classes share a test

    def test_made_is_itself(self, sketch: Sketch) -> None:
        assert sketch.is_made
        made = sketch.made(12345, N_FEATURES)
        assert made.to_dict() == sketch.to_dict()
        np.testing.assert_array_equal(dense(made.apply(whole_numbers())), dense(sketch.apply(whole_numbers())))

    def test_a_row_does_not_depend_on_the_others(self, sketch: Sketch) -> None:
        X = whole_numbers(0.5)
        order = np.random.default_rng(0).permutation(N_ROWS)
        np.testing.assert_array_equal(dense(sketch.apply(X[order])), dense(sketch.apply(X))[order])

    def test_any_memory_layout(self, sketch: Sketch) -> None:
        X = whole_numbers(0.5)
        wanted = dense(sketch.apply(X))
        np.testing.assert_array_equal(dense(sketch.apply(np.asfortranarray(X))), wanted)
        np.testing.assert_array_equal(dense(sketch.apply(np.repeat(X, 2, axis=0)[::2])), wanted)

    def test_input_is_not_changed(self, sketch: Sketch) -> None:
        self.apply_twice(sketch, writeable=True)

    def test_input_may_be_read_only(self, sketch: Sketch) -> None:
        self.apply_twice(sketch, writeable=False)

    def apply_twice(self, sketch: Sketch, *, writeable: bool) -> None:
        """Demand that the rows stay as they are, and that the second answer is the first."""
        for sparse in self.sparse:
            X: Any = sp.csr_array(whole_numbers()) if sparse else whole_numbers()
            arrays = (X.data, X.indices, X.indptr) if sparse else (X,)
            before = [array.copy() for array in arrays]
            for array in arrays:
                array.flags.writeable = writeable
            with row(sparse=sparse):
                first = dense(sketch.apply(X))
                for array, wanted in zip(arrays, before, strict=True):
                    np.testing.assert_array_equal(array, wanted)
                np.testing.assert_array_equal(dense(sketch.apply(X)), first)

    def test_indices_of_32_and_64_bits(self, sketch: Sketch) -> None:
        if True not in self.sparse:
            pytest.skip("takes dense rows only")
        for density in DENSITIES:
            narrow = sp.csr_array(whole_numbers(density))
            assert narrow.indices.dtype == np.int32
            wide = narrow.copy()
            wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
            with row(density=density):
                np.testing.assert_array_equal(dense(sketch.apply(wide)), dense(sketch.apply(narrow)))

    def test_single_and_double_precision_dense_and_csr(self, sketch: Sketch) -> None:
        X = whole_numbers(0.3)
        for dtype in (np.float32, np.float64):
            wanted = dense(sketch.apply(X if self.blind_to_precision else X.astype(dtype)))
            for sparse in self.sparse:
                rows = X.astype(dtype)
                Y = sketch.apply(sp.csr_array(rows) if sparse else rows)
                assert Y.dtype in (np.float32, np.float64)
                np.testing.assert_allclose(dense(Y), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())

    def test_no_rows(self, sketch: Sketch) -> None:
        for sparse in self.sparse:
            X = np.zeros((0, N_FEATURES))
            assert sketch.apply(sp.csr_array(X) if sparse else X).shape == (0, sketch.n_components)

    def test_copies_are_the_same_sketch(self, sketch: Sketch) -> None:
        X = whole_numbers()
        described = json.loads(json.dumps(sketch.to_dict()))
        made_again = sketch_from_dict(described, sketch.arrays())
        for copy in (pickle.loads(pickle.dumps(sketch)), made_again, self.make_sketch()):
            assert copy.n_components == sketch.n_components
            np.testing.assert_array_equal(dense(copy.apply(X)), dense(sketch.apply(X)))

    def test_immutable(self, sketch: Sketch) -> None:
        # Python 3.11 raises TypeError for a property of a frozen class with slots
        with pytest.raises((AttributeError, TypeError)):
            sketch.n_components = 3  # type: ignore[misc]

    def test_says_what_becomes_of_zeros(self, sketch: Sketch) -> None:
        X = whole_numbers().astype(np.float32)
        assert sp.issparse(sketch.apply(X)) == sketch.sparsifies
        assert sketch.takes_sparse == (True in self.sparse)
        if not sketch.takes_sparse:
            with pytest.raises(InvalidParameterError):
                sketch.apply(sp.csr_array(X))
            return
        leaves = type(sketch).leaves_zeros(sketch.n_components)
        Y: Any = sketch.apply(sp.csr_array(X))
        assert sp.issparse(Y) == (leaves or sketch.sparsifies)
        if leaves:
            assert Y.nnz <= np.count_nonzero(X) * sketch.entries_per_stored
        assert sketch.n_kept == (Y.nnz / N_ROWS if sketch.sparsifies else 0)
        if sketch.sparse_as_single:
            assert sketch.apply(sp.csr_array(X.astype(np.float64) / 3)).dtype == np.float32

    def test_says_if_it_is_the_identity(self, sketch: Sketch) -> None:
        X = whole_numbers(0.5)
        Y = dense(sketch.apply(X))
        assert sketch.is_identity == (Y.shape == X.shape and bool((X == Y).all()))

    def test_says_what_it_projects_on(self, sketch: Sketch) -> None:
        basis, center = sketch.basis, sketch.center
        assert (basis is not None) == sketch.is_projection
        moved = sketch.with_center(np.arange(float(N_FEATURES)))
        if center is None:
            assert moved is sketch
        else:
            np.testing.assert_array_equal(moved.center, np.arange(N_FEATURES))
        if basis is not None:
            np.testing.assert_allclose(basis.T @ basis, np.eye(sketch.n_components), atol=1e-5)
            X = whole_numbers(0.5)
            wanted = (X - (0 if center is None else center)) @ basis
            np.testing.assert_allclose(sketch.apply(X), wanted, atol=1e-4)
            shifted = X - (0 if moved.center is None else moved.center)
            np.testing.assert_allclose(moved.apply(X), shifted @ basis, atol=1e-4)

    def test_says_if_it_moves_and_scales_with_rows(self, sketch: Sketch) -> None:
        X = whole_numbers(0.5)
        Y = dense(sketch.apply(X))
        if sketch.moves_with_rows:
            offsets = dense(sketch.apply(X + np.arange(N_FEATURES))) - Y
            np.testing.assert_allclose(offsets, np.broadcast_to(offsets[0], offsets.shape), atol=1e-4)
        if sketch.scales_with_rows and self.blind_to_precision:
            larger = dense(sketch.apply(4 * X))
            np.testing.assert_allclose(larger - larger[0], 4 * (Y - Y[0]), atol=1e-4)

    def test_says_if_it_inflates_lengths(self, sketch: Sketch) -> None:
        X = whole_numbers(0.5)
        if sketch.inflates_lengths:
            assert (dense(sketch.apply(X)) ** 2).sum() > 1.5 * (X**2).sum()

    def test_says_which_rows_fit(self, sketch: Sketch) -> None:
        assert sketch.fits_features(N_FEATURES)
        for d in (N_FEATURES - 1, N_FEATURES + 1, 1000):
            with row(d=d):
                if sketch.fits_features(d):
                    assert sketch.apply(np.ones((2, d))).shape == (2, sketch.n_components)

    def test_can_be_written(self, sketch: Sketch) -> None:
        json.dumps(sketch.to_dict())


class HashedSketchContract(SketchContract):
    """Linear, and blind to how rows are stored."""

    tolerance: ClassVar[float] = 0.0
    """Of float32 sums of sketches whose entries are not powers of two, relative to the largest."""

    def assert_same(self, got: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
        """Equal, up to the tolerance."""
        np.testing.assert_allclose(got, wanted, rtol=0, atol=self.tolerance * np.abs(wanted).max(initial=0))

    def test_inflates_no_lengths(self, sketch: Sketch) -> None:
        assert not sketch.inflates_lengths

    def test_a_small_value(self, sketch: Sketch) -> None:
        sketch.apply(whole_numbers())
        assert len(pickle.dumps(sketch)) < 500
        assert sketch.arrays() == {}
        for copy in (pickle.loads(pickle.dumps(sketch)), self.make_sketch()):
            assert copy == sketch
            assert hash(copy) == hash(sketch)

    def test_empty_rows(self, sketch: Sketch) -> None:
        X = np.zeros((3, N_FEATURES))
        for kind in (np.asarray, sp.csr_array):
            with row(kind=kind):
                np.testing.assert_array_equal(dense(sketch.apply(kind(X))), 0)

    def test_shape_and_type(self, sketch: Sketch) -> None:
        assert isinstance(sketch, Sketch)
        for density, kind in product(DENSITIES, (np.asarray, sp.csr_array)):
            with row(density=density, kind=kind):
                Y = sketch.apply(kind(whole_numbers(density).astype(np.float32)))
                assert Y.shape == (N_ROWS, sketch.n_components)
                assert isinstance(Y, sp.csr_array | np.ndarray)
                assert Y.dtype == np.float32

    def test_linear(self, sketch: Sketch) -> None:
        X, Y = whole_numbers(0.3, seed=1), whole_numbers(0.05, seed=2)
        for kind in (np.asarray, sp.csr_array):
            with row(kind=kind):
                got = dense(sketch.apply(kind(3 * X - 2 * Y)))
                self.assert_same(got, 3 * dense(sketch.apply(kind(X))) - 2 * dense(sketch.apply(kind(Y))))

    @pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
    def test_dense_is_csr(self, sketch: Sketch, dtype: type[np.generic]) -> None:
        for density in DENSITIES:
            with row(density=density):
                exact = whole_numbers(density)
                X: NDArray[Any] = exact.astype(dtype)
                stored = sp.csr_array(X)
                assert stored.dtype == dtype
                wanted = dense(sketch.apply(exact if X.dtype != np.bool_ else X.astype(np.float64)))
                self.assert_same(dense(sketch.apply(X)), wanted)
                self.assert_same(dense(sketch.apply(stored)), wanted)

    def test_real_values_keep_their_precision(self, sketch: Sketch) -> None:
        values = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES))
        for dtype in (np.float32, np.float64):
            with row(dtype=dtype):
                X = values.astype(dtype)
                Y = sketch.apply(X)
                assert Y.dtype == dtype
                tolerance, wanted = 30 * float(np.finfo(dtype).eps), X.astype(np.float64) @ self.matrix(sketch)
                np.testing.assert_allclose(dense(Y), wanted, atol=tolerance, rtol=tolerance)

    def matrix(self, sketch: Sketch) -> NDArray[np.float64]:
        """The map as a matrix (40, m), from the sketch of the unit vectors."""
        return dense(sketch.apply(np.eye(N_FEATURES)))


class UnboundedSketchContract(HashedSketchContract):
    """For rows of any width: what it does to a feature depends on the feature's number alone."""

    def test_features_that_come_later_are_added(self, sketch: Sketch) -> None:
        X, later = whole_numbers(0.3), whole_numbers(0.1, seed=3)
        both = dense(sketch.apply(np.hstack([X, later])))
        shifted = sp.csr_array(np.hstack([np.zeros_like(X), later]))
        self.assert_same(dense(sketch.apply(X)) + dense(sketch.apply(shifted)), both)
