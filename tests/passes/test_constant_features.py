"""Features that are constant but for rounding are not scaled up."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler

from streamkm import StreamKMeans
from streamkm.preparation.moments import MomentsFit


def totals(n_rows, kind):
    """Shares that add up to 1 but for rounding, and sums near 0.3 beside two features that vary."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([0.6] * 5, n_rows).astype(kind)
    tenths = np.where(np.arange(n_rows) % 2, kind(0.1) + kind(0.2), kind(0.3))
    varied = rng.normal(size=(n_rows, 2)) * [1, 1e-3] + [5, 5]
    return np.column_stack([varied, shares.sum(axis=1), tenths, -1e6 * shares.sum(axis=1)]).astype(kind)


@pytest.mark.parametrize("step", ["standardize", "robust"])
def test_constant_but_for_rounding_is_constant(step):
    for kind, n_rows in ((np.float32, 1500), (np.float64, 40)):
        X = totals(n_rows, kind)
        for rows in (X, sp.csr_array(X)):
            factor = StreamKMeans(2, preprocess=[step], random_state=0).fit(rows).preparation_.found[0].factor
            np.testing.assert_array_equal(factor[2:], 1)
            assert factor[1] > 500 or rows is not X


def test_the_bound_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    widths = np.logspace(-16, -8, 60)
    X = 1 + widths * rng.normal(size=(2000, 60))
    fit = MomentsFit(True)
    np.testing.assert_allclose(
        1 / fit.finish(fit.step(None, X, np.empty(0))).factor, StandardScaler().fit(X).scale_, 1e-2
    )
