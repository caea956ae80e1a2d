"""The projection on principal directions: the contract of sketches, and scikit-learn's PCA."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches import PCASketch
from tests.contracts import N_FEATURES, SketchContract


def rows(n=500, dtype=np.float64):
    """Variances that fall quickly, far from the origin."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))
    return (rng.normal(size=(n, N_FEATURES)) * 2.0 ** -np.arange(N_FEATURES) @ turn + 10).astype(dtype)


class TestPCA(SketchContract):
    sparse = (False,)

    def make_sketch(self):
        return PCASketch.fit(rows(), 6, random_state=3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_scikit_learns_pca(dtype):
    X = rows(dtype=dtype)
    sketch = PCASketch.fit(X, 6, random_state=0)
    wanted = PCA(6, svd_solver="full").fit(X.astype(np.float64))
    sketched = sketch.apply(X)
    assert sketched.dtype == dtype
    tolerance = 2e-3 if dtype == np.float32 else 1e-4
    np.testing.assert_allclose(np.abs(sketched), np.abs(wanted.transform(X)), atol=tolerance)
    np.testing.assert_allclose(sketch.directions.T @ sketch.directions, np.eye(6), atol=1e-5)


def test_equal_rows_have_no_directions_but_do_no_harm():
    sketch = PCASketch.fit(np.ones((20, 5)), 3, random_state=0)
    np.testing.assert_allclose(sketch.apply(np.ones((4, 5))), 0, atol=1e-12)


@pytest.mark.parametrize("n_components", [0, 41])
def test_refuses_components_out_of_range(n_components):
    with pytest.raises(InvalidParameterError, match=f"n_components={n_components}"):
        PCASketch.fit(rows(), n_components, random_state=0)


def test_refuses_sparse_rows():
    with pytest.raises(InvalidParameterError, match="dense rows"):
        TestPCA().make_sketch().apply(sp.csr_array(rows()))
