"""Kernel fits that are killed at any moment go on with the same bits; their certificate and further rounds."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial

import numpy as np
import pytest
from sklearn.base import clone

from streamkm import KernelOptions, Nystroem, StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import CheckpointError, InvalidParameterError
from streamkm.sources.dense import DenseSource
from tests.children import assert_same_fit, killed_until_done, outcome, started_fit
from tests.tables import cases

FULL = (pytest.mark.slow, pytest.mark.full)
OPTIONS = {"kernel": "rbf", "n_clusters": 10, "random_state": 3, "n_init": 2, "tol": 0, "max_iter": 30}
CASES = {
    "all rows": ("x.npy", {"fit_on": "all", "n_landmarks": 200, "rank": 30, "chunk_bytes": 80_000}),
    "sample": ("x.npy", {"n_landmarks": 200, "rank": 20, "method": Nystroem("leverage"), "chunk_bytes": 80_000}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 2, (10, 16))
    np.save(folder / "x.npy", (centers[rng.integers(0, 10, 12_000)] + rng.normal(0, 1, (12_000, 16))).astype("f4"))
    return folder


@pytest.fixture(scope="module")
def wanted(folder):
    """Fits that nothing happened to, by name; each is made once."""

    @cache
    def fitted(name):
        file, options = CASES[name]
        return StreamKernelKMeans(progress=False, **(OPTIONS | options)).fit(str(folder / file))

    return fitted


def test_killed_fits_end_with_the_same_bits(folder, wanted, tmp_path):
    file, options = CASES["all rows"]
    start = partial(started_fit, folder / file, tmp_path / "state", tmp_path / "out.npz", OPTIONS | options)
    assert killed_until_done(start, [0.05, *np.random.default_rng(5).uniform(0.05, 0.8, 2)]) >= 1
    with np.load(tmp_path / "out.npz") as found:
        assert_same_fit(found, wanted("all rows"))
    assert not (tmp_path / "state").exists()  # of no more use


@pytest.mark.parametrize(
    ("name", "record", "first", "last"),
    [  # how often the run that continues reads the first chunk and the last
        pytest.param("all rows", "begin", 4, 4, marks=FULL),
        ("all rows", "sketch", 3, 4),
        pytest.param("all rows", "landmarks", 3, 3, marks=FULL),
        ("all rows", "gram", 2, 3),
        pytest.param("all rows", "map", 2, 2, marks=pytest.mark.slow),
        pytest.param("all rows", "seed", 1, 1, marks=FULL),
        pytest.param("all rows", "lloyd", 1, 1, marks=pytest.mark.slow),
        ("all rows", "assign-0", 0, 1),
        pytest.param("sample", "map", 1, 1, marks=pytest.mark.slow),
        ("sample", "found", 1, 1),
    ],
)
def test_a_fit_goes_on_from_every_record(folder, wanted, tmp_path, monkeypatch, stop, name, record, first, last):
    file, options = CASES[name]
    path = str(folder / file)
    kmeans = StreamKernelKMeans(progress=False, executor=1, **(OPTIONS | options))
    stop(kmeans, path, tmp_path / "state", record, 2 if record == "sketch" else 1)  # the first is empty
    read, original = Counter(), DenseSource.read
    monkeypatch.setattr(DenseSource, "read", lambda self, chunk: (read.update([chunk.index]), original(self, chunk))[1])
    kmeans.fit(path, checkpoint=tmp_path / "state")
    assert (read[0], read[max(read)]) == (first, last)
    assert_same_fit(outcome(kmeans), wanted(name))
    assert kmeans.trace_residual_ == wanted(name).trace_residual_
    assert kmeans.kernel_ == wanted(name).kernel_
    np.testing.assert_array_equal(kmeans.sketch_sample_, wanted(name).sketch_sample_)
    np.testing.assert_array_equal(kmeans.sample_labels_, wanted(name).sample_labels_)


@pytest.fixture(scope="module")
def few(folder):
    return np.load(folder / "x.npy")[:600]


@cases(
    "options, records",
    [
        ({"method": "orthogonal-fourier", "fit_on": "all"}, ("map", "found")),
        ({"method": "srht"}, ("landmarks", "map")),
        ({"method": "sub-gaussian", "fit_on": "all"}, ("landmarks", "map")),
        ({"method": Nystroem("kmeans"), "fit_on": "all", "kernel": "polynomial"}, ("landmarks", "map", "found")),
    ],
)
def test_every_map_is_kept(few, tmp_path, stop, options, records):
    given = OPTIONS | {"n_landmarks": 60, "rank": 12, "chunk_bytes": 10_000, "progress": False} | options
    whole = StreamKernelKMeans(**given).fit(few)
    for record in records:
        kmeans = StreamKernelKMeans(**given)
        stop(kmeans, few, tmp_path / "state", record)
        kmeans.fit(few, checkpoint=tmp_path / "state")
        assert_same_fit(outcome(kmeans), whole)
        assert kmeans.trace_residual_ == whole.trace_residual_
        np.testing.assert_array_equal(kmeans.predict(few), whole.labels_)


def product(X, landmarks):
    return np.asarray(X @ landmarks.T, float) / 16


def test_a_function_is_refused_before_rows_are_read(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 3))
    kmeans = StreamKernelKMeans(2, kernel=product, progress=False)
    with pytest.raises(InvalidParameterError, match="a checkpoint holds no Python function"):
        kmeans.fit(X, checkpoint=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_other_settings_are_refused_by_name(folder, tmp_path, stop):
    X = np.load(folder / "x.npy")[:2000]
    kmeans = StreamKernelKMeans(5, n_landmarks=50, progress=False, random_state=0)
    stop(kmeans, X, tmp_path, "map")
    for changed, name in (
        ({"kernel": KernelOptions(gamma_factor=2.0)}, r"kernel\.gamma_factor"),
        ({"kernel": product}, r"kernel\.kernel"),
        ({"method": Nystroem(landmark_rank=5)}, r"method\.landmark_rank"),
    ):
        with pytest.raises(CheckpointError, match=name):
            clone(kmeans).set_params(**changed).fit(X, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="of another run"):
        StreamKMeans(5, progress=False, random_state=0).fit(X, checkpoint=tmp_path)
    kmeans.set_params(kernel=KernelOptions(), executor=1, progress=True)  # all the same to it
    kmeans.fit(X, checkpoint=tmp_path)


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
