"""The certificate of kernel k-means, and further rounds where the sample missed something."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import KernelOptions, StreamKernelKMeans

N_ROWS, FAR_ROWS = 60_000, 12


def with_far_rows():
    """Standard normal rows, and a dozen far away, in pairs, of which a sample of 20,000 holds some at most."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 5))
    X[rng.choice(N_ROWS, FAR_ROWS, replace=False)] += 30 * rng.normal(size=(6, 5))[np.arange(FAR_ROWS) // 2]
    return X.astype(np.float32)


def fitted(X, **parameters):
    given = {"kernel": KernelOptions("polynomial", degree=2), "rank": 40, "n_landmarks": 200, "random_state": 0}
    return StreamKernelKMeans(10, progress=False, **(given | parameters)).fit(X)


@pytest.fixture(scope="module")
def rows():
    return with_far_rows()


@pytest.fixture(scope="module")
def left(rows):
    """A fit that never looks further; it warns."""
    with pytest.warns(UserWarning, match="the objective can fall by at least"):
        return fitted(rows, refine=0)


def test_rounds_find_what_the_sample_missed(rows, left):
    found = fitted(rows)
    assert left.n_passes_ == 2
    assert left.possible_gain_ > 0.01
    assert left.inertia_ > left.expected_inertia_ + 5 * left.expected_inertia_error_
    assert 3 <= found.n_passes_ <= 4
    assert found.possible_gain_ <= 0.01
    assert found.inertia_ <= (1 - left.possible_gain_) * left.inertia_
    np.testing.assert_array_equal(found.labels_, found.predict(rows))
    assert found.plan_.more_passes == 2
